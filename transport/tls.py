"""TLS: makes contexts of the settings, tries them out at the start, and explains refusals.

Both sides show a certificate: the accepting side requires one of the connecting side, unless it is
configured not to. Each is checked against the same certificate authorities and, if any are
configured, the same pinned fingerprints. Certificates are read once; a renewed one is used from the
next start on.
"""

import functools
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ..protocol.errors import ErrorCode, SluiceError
from .config import TransportConfig
from .errors import TransportError

_MINIMUM_VERSIONS: Final = {
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}
_HANDSHAKE_TURNS: Final = 8
"""A handshake needs two or three flights from each side."""

_HOST_NAME_MISMATCHES: Final = (62, 64)
"""OpenSSL's verification codes for a host name or an address that the certificate lacks."""


class TlsConfigurationError(SluiceError):
    """A certificate, a key or a set of authorities cannot be used; found at the start."""

    code = ErrorCode.CONFIGURATION


class TlsRefused(TransportError):
    """A TLS handshake failed: one side does not trust the other, or does not speak TLS.

    Another attempt would end the same way, so there is no retry.
    """

    code = ErrorCode.CONFIGURATION
    retryable = False


@dataclass(frozen=True, slots=True)
class Tls:
    """Contexts and pins for the connections of a process."""

    client: ssl.SSLContext
    """For the side that connects."""
    server: ssl.SSLContext | None
    """For the side that accepts; None in a process that only connects."""
    pins: frozenset[str]
    """SHA-256 fingerprints of the certificates to accept; empty: every trusted certificate."""


def load_tls(config: TransportConfig, *, accepts: bool = False) -> Tls | None:
    """Return the TLS contexts of a configuration, None when TLS is off.

    The first call with given settings reads the files and tries a handshake with itself; later
    calls return the same contexts.

    Args:
        config: The settings.
        accepts: Whether this process accepts connections, and so needs a certificate.

    Raises:
        TlsConfigurationError: A file is missing or unreadable, a key does not match, or a
            certificate is expired, not signed by any of the authorities or not fit for its use.
    """
    if not config.tls_enabled:
        return None
    if config.tls_ca_file is None:  # the configuration class refuses it; for the type checker
        raise TlsConfigurationError("TLS is on without transport.tls_ca_file")
    if accepts and config.tls_certificate_file is None:
        raise TlsConfigurationError(
            "TLS is on, but the data port has no certificate to show",
            value="transport.tls_certificate_file = none",
            remedy="Set transport.tls_certificate_file and transport.tls_key_file, or "
            "transport.tls_enabled = false",
        )
    return _load(
        _Settings(
            certificate=config.tls_certificate_file,
            key=config.tls_key_file,
            ca=config.tls_ca_file,
            accepts=accepts,
            require_client_certificate=config.tls_require_client_certificate,
            check_host_name=config.tls_check_host_name,
            minimum_version=config.tls_minimum_version,
            pins=frozenset(config.tls_pinned_fingerprints),
        )
    )


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate in DER form, as pins are compared."""
    return hashlib.sha256(certificate).hexdigest()


def pin_refusal(tls_object: ssl.SSLObject, pins: frozenset[str]) -> TlsRefused | None:
    """Return why the certificate of the other side is not among the pinned ones, if it is not."""
    certificate = tls_object.getpeercert(binary_form=True)
    if not pins or (certificate is None and tls_object.server_side):
        return None  # the server requires no certificate of clients
    found = "no certificate" if certificate is None else fingerprint(certificate)
    if found in pins:
        return None
    return TlsRefused(
        "The certificate is trusted, but it is not one of the pinned certificates",
        value=found,
        limit=f"{len(pins)} fingerprints",
        remedy="Add it to transport.tls_pinned_fingerprints of the side that refuses",
    )


def refusal(error: ssl.SSLError, remote: str) -> TlsRefused:
    """Explain a failed handshake or a broken record."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "Sign it by an authority in transport.tls_ca_file, or renew it"
        if error.verify_code in _HOST_NAME_MISMATCHES:
            remedy = (
                "Name the host in the certificate's subjectAltName, or set "
                "transport.tls_check_host_name = false"
            )
        return TlsRefused(
            f"The certificate of {remote} is not accepted",
            value=error.verify_message,
            remedy=remedy,
        )
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return TlsRefused(
            f"{remote} shows no certificate",
            remedy="Set transport.tls_certificate_file and transport.tls_key_file there",
        )
    if "ALERT" in reason:
        return TlsRefused(
            f"{remote} refuses the certificate or the TLS settings of this side",
            value=reason.replace("_", " ").lower(),
            remedy="See its log; check transport.tls_certificate_file, transport.tls_key_file and "
            "transport.tls_minimum_version here, transport.tls_ca_file there",
        )
    return TlsRefused(
        f"TLS with {remote} failed",
        value=reason.replace("_", " ").lower(),
        remedy="Check transport.tls_minimum_version on both sides, and proxies between them",
    )


class _Settings(NamedTuple):
    """The settings that decide on the contexts: the key under which they are kept."""

    certificate: Path | None
    key: Path | None
    ca: Path
    accepts: bool
    require_client_certificate: bool
    check_host_name: bool
    minimum_version: Literal["1.2", "1.3"]
    pins: frozenset[str]


@functools.lru_cache(maxsize=64)
def _load(settings: _Settings) -> Tls:
    client = _context(ssl.PROTOCOL_TLS_CLIENT, settings.minimum_version, settings.ca)
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings.minimum_version, settings.ca)
    if settings.certificate is not None and settings.key is not None:
        for context in (client, server):
            _load_certificate(context, settings.certificate, settings.key)
        server.verify_mode = ssl.CERT_REQUIRED
        client.check_hostname = False
        if not settings.accepts:  # a certificate for clients alone is enough
            client.verify_mode = ssl.CERT_NONE
        _try_out(server, client, settings.certificate, settings.ca)
    client.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname = settings.check_host_name
    if not settings.require_client_certificate:
        server.verify_mode = ssl.CERT_NONE
    return Tls(client, server if settings.accepts else None, settings.pins)


def _context(side: int, minimum_version: str, ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = _MINIMUM_VERSIONS[minimum_version]
    # Written data must always be encrypted at once: a renegotiation could ask to read first.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections are few and long: sessions are never resumed
    _check_readable("tls_ca_file", ca)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise TlsConfigurationError(
            "transport.tls_ca_file has no certificates in PEM form",
            value=ca,
            remedy="Name a file with the certificates of the authorities to trust",
        ) from error
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_readable("tls_certificate_file", certificate)
    _check_readable("tls_key_file", key)

    def no_password() -> str:
        raise TlsConfigurationError(
            "transport.tls_key_file is encrypted, and a daemon cannot ask for its password",
            value=key,
            remedy="Decrypt it (openssl pkey -in KEY -out PLAIN) and protect it by its file mode",
        )

    try:
        context.load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsConfigurationError(
                "transport.tls_key_file does not belong to transport.tls_certificate_file",
                value=f"{key}, {certificate}",
                remedy="Name the key that belongs to the certificate; in a chain this process's "
                "certificate comes first",
            ) from error
        raise TlsConfigurationError(
            "transport.tls_certificate_file or transport.tls_key_file cannot be used",
            value=f"{certificate}, {key}: {error.reason or error}",
            remedy="Both must be in PEM form, with a key of at least 2048 bits (RSA) or 224 (EC)",
        ) from error


def _check_readable(key: str, path: Path) -> None:
    """Raise for a file that cannot be read; ``ssl`` does not say which file it was."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsConfigurationError(
            f"transport.{key} cannot be read",
            value=f"{path}: {error.strerror or error}",
            remedy="Correct the path, or let the user of this process read the file",
        ) from error


def _try_out(server: ssl.SSLContext, client: ssl.SSLContext, certificate: Path, ca: Path) -> None:
    """Try a handshake of this process with itself: it is refused here as others would refuse it.

    This finds a certificate that is expired, that no authority in the file has signed, or that must
    not be used by servers or by clients.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for _ in range(_HANDSHAKE_TURNS):
            for side in tuple(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    continue
            if not waiting:
                return
        raise TlsConfigurationError(
            "A handshake of this process with itself does not end", value=certificate
        )
    except ssl.SSLError as error:
        if isinstance(error, ssl.SSLCertVerificationError):
            found = error.verify_message
        else:
            found = (error.reason or str(error)).replace("_", " ").lower()
        raise TlsConfigurationError(
            "transport.tls_certificate_file would be refused by others with the same "
            "transport.tls_ca_file",
            value=f"{certificate}, {ca}: {found}",
            remedy="Renew the certificate, sign it by an authority in the file, and let it serve "
            "as a client's and, on a TaskManager, as a server's (extendedKeyUsage clientAuth, "
            "serverAuth)",
        ) from error
