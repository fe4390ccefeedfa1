"""TLS: makes contexts from the settings, tests them, reloads them, and explains refusals.

Both sides show a certificate: the accepting side requires one from the connecting side unless it is
configured not to. Both are checked against the same certificate authorities. When a file changes,
the next connection uses it; :class:`ReloadingTls` has the rules.
"""

import datetime
import hashlib
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ..protocol.errors import ErrorCode, SluiceError
from .config import TransportConfig
from .errors import TlsRefused, code_field

logger = logging.getLogger(__name__)

_MINIMUM_VERSIONS: Final = {
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}
_HANDSHAKE_TURNS: Final = 8
"""A handshake needs two or three flights from each side."""

_MAX_KEPT: Final = 64
"""Number of settings whose contexts a process keeps for later connections."""

_HOST_NAME_MISMATCHES: Final = (62, 64)
"""OpenSSL's verification codes for a host name or an address that the certificate lacks."""


class TlsConfigurationError(SluiceError):
    """A certificate, a key or a set of authorities cannot be used."""

    code = ErrorCode.CONFIGURATION


@dataclass(frozen=True, slots=True)
class Tls:
    """Contexts for the connections of a process."""

    client: ssl.SSLContext
    """For the side that connects."""
    server: ssl.SSLContext | None
    """For the side that accepts; None in a process that only connects."""
    certificate: "OwnCertificate | None"
    """The certificate that the contexts show, if any."""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The certificate that this process shows."""

    digest: bytes
    """SHA-256 of its DER form, 32 bytes."""
    expires_at: float
    """When it expires, in seconds since 1970."""


class ReloadingTls:
    """The contexts of some settings, reloaded when their files change.

    1. Each new connection compares the status of the three files with the one before the last
       attempt. The files are not read while it is the same.
    2. After a change the files are read and tested as at the start. New connections use the new
       contexts, and open connections keep theirs.
    3. If the files cannot be used, the contexts stay. The log and a counter report that once, and
       the next change triggers the next attempt: a key and its certificate are two files, so one
       of them is always replaced first.

    All connections of a process with the same settings share one object, from any thread.
    """

    def __init__(self, settings: "_Settings") -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._seen = settings.file_status()  # before reading, to detect a later change
        self._tls = _load(settings)
        self.reloads = 0
        """Reloads since the start."""
        self.failures = 0
        """Failed reloads since the start."""

    @property
    def in_use(self) -> Tls:
        """The contexts of the last files that could be used."""
        return self._tls

    def current(self) -> Tls:
        """Return the contexts for a new connection; reload changed files first."""
        if self._settings.file_status() != self._seen:
            with self._lock:
                # Another thread may have been faster.
                if self._settings.file_status() != self._seen:
                    self._load_anew()
        return self._tls

    def reload(self) -> bool:
        """Read the files now, whether or not they have changed.

        Returns:
            False if they cannot be used; then the contexts stay, and the log has the reason.
        """
        with self._lock:
            return self._load_anew()

    def __str__(self) -> str:
        """Return the files, and the certificate's fingerprint and expiry."""
        shown = self._tls.certificate
        files = ", ".join(map(str, self._settings.files))
        if shown is None:
            return files
        end = datetime.datetime.fromtimestamp(shown.expires_at, datetime.UTC)
        return f"{files} (certificate {shown.digest.hex()}, good until {end:%Y-%m-%d %H:%M} UTC)"

    def _load_anew(self) -> bool:
        self._seen = self._settings.file_status()
        try:
            loaded = _load(self._settings)
        except (TlsConfigurationError, OSError) as error:  # a file may be removed meanwhile
            self.failures += 1
            logger.error(
                "TLS keeps the certificates that were loaded before: %s",
                error,
                extra=code_field(error),
            )
            return False
        self._tls = loaded
        self.reloads += 1
        logger.info("New connections use %s", self)
        return True


def reloading_tls(config: TransportConfig, *, accepts: bool = False) -> ReloadingTls | None:
    """Return the reloading contexts of a configuration, None when TLS is off.

    The first call for given settings reads the files and tests them in a handshake with itself;
    later calls return the same object. A process that accepts connections also connects with the
    certificate that it shows to clients.

    Args:
        config: The settings.
        accepts: Whether this process accepts connections, which requires a certificate.

    Raises:
        TlsConfigurationError: At the first call, a file is missing or unreadable, a key does not
            match, or a certificate is expired, not signed by any of the authorities or not valid
            for its use.
    """
    if not config.tls_enabled:
        return None
    if config.tls_ca_file is None:  # for the type checker: the configuration class refuses it
        raise TlsConfigurationError("TLS is on without transport.tls_ca_file")
    if accepts and config.tls_certificate_file is None:
        raise TlsConfigurationError(
            "TLS is on, but the data port has no certificate to show",
            value="transport.tls_certificate_file = none",
            remedy="Set transport.tls_certificate_file and transport.tls_key_file, or "
            "transport.tls_enabled = false",
        )
    settings = _Settings(
        certificate=config.tls_certificate_file,
        key=config.tls_key_file,
        ca=config.tls_ca_file,
        accepts=accepts,
        require_client_certificate=config.tls_require_client_certificate,
        check_host_name=config.tls_check_host_name,
        minimum_version=config.tls_minimum_version,
    )
    with _making:
        if not accepts:
            settings = settings._replace(accepts=settings._replace(accepts=True) in _made)
        found = _made.pop(settings, None) or ReloadingTls(settings)
        _made[settings] = found  # the most recently used one is last
        if len(_made) > _MAX_KEPT:
            del _made[next(iter(_made))]
        return found


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
            remedy="Read its log; check transport.tls_certificate_file, transport.tls_key_file "
            "and transport.tls_minimum_version here, transport.tls_ca_file there",
        )
    return TlsRefused(
        f"TLS with {remote} failed",
        value=reason.replace("_", " ").lower(),
        remedy="Check transport.tls_minimum_version on both sides, and proxies between them",
    )


class _Settings(NamedTuple):
    """The settings that determine the contexts, as the key of the cache."""

    certificate: Path | None
    key: Path | None
    ca: Path
    accepts: bool
    require_client_certificate: bool
    check_host_name: bool
    minimum_version: Literal["1.2", "1.3"]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.ca) if path is not None)

    def file_status(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return a value that changes when any file is replaced or written to."""
        return tuple(map(_file_status, self.files))


_made: Final[dict[_Settings, ReloadingTls]] = {}
_making: Final = threading.Lock()


def _file_status(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()  # follows links: renewing a mounted secret changes its link
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _load(settings: _Settings) -> Tls:
    shown = None
    client = _context(ssl.PROTOCOL_TLS_CLIENT, settings.minimum_version, settings.ca)
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings.minimum_version, settings.ca)
    if settings.certificate is not None and settings.key is not None:
        for context in (client, server):
            _load_certificate(context, settings.certificate, settings.key)
        server.verify_mode = ssl.CERT_REQUIRED
        client.check_hostname = False
        if not settings.accepts:  # a client certificate is enough
            client.verify_mode = ssl.CERT_NONE
        shown = _try_out(server, client, settings.certificate, settings.ca)
    client.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname = settings.check_host_name
    if not settings.require_client_certificate:
        server.verify_mode = ssl.CERT_NONE
    return Tls(client, server if settings.accepts else None, shown)


def _context(side: int, minimum_version: str, ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = _MINIMUM_VERSIONS[minimum_version]
    # Written data must always be encrypted at once: a renegotiation could ask to read first.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections are few and long-lived: sessions are not resumed
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
                remedy="Name the certificate's own key; in a chain the own certificate comes first",
            ) from error
        raise TlsConfigurationError(
            "transport.tls_certificate_file or transport.tls_key_file cannot be used",
            value=f"{certificate}, {key}: {error.reason or error}",
            remedy="Both must be in PEM form, with a key of at least 2048 bits (RSA) or 224 (EC)",
        ) from error


def _check_readable(key: str, path: Path) -> None:
    """Raise for a file that cannot be read; errors of ``ssl`` do not name the file."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsConfigurationError(
            f"transport.{key} cannot be read",
            value=f"{path}: {error.strerror or error}",
            remedy="Correct the path, or let the user of this process read the file",
        ) from error


def _try_out(
    server: ssl.SSLContext, client: ssl.SSLContext, certificate: Path, ca: Path
) -> OwnCertificate:
    """Try a handshake of this process with itself, to fail early if others would refuse it.

    This detects a certificate that is expired, that is not signed by an authority in the file, or
    that servers or clients must not use.

    Returns:
        The certificate as the contexts show it. The file may have changed since.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server)
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [connecting, accepting]
    try:
        for _ in range(_HANDSHAKE_TURNS):
            for side in tuple(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    continue
            if not waiting:
                return _shown(connecting, accepting)
        raise TlsConfigurationError(
            "A handshake of this process with itself did not end", value=certificate
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
            remedy="Renew it or sign it by an authority in the file, and allow both uses on a "
            "TaskManager (extendedKeyUsage clientAuth, serverAuth)",
        ) from error


def _shown(connecting: ssl.SSLObject, accepting: ssl.SSLObject) -> OwnCertificate:
    shown = connecting.getpeercert(binary_form=True)
    fields = accepting.getpeercert()  # the same certificate; only the verifier gets its fields
    if shown is None or fields is None:
        raise TlsConfigurationError("A handshake of this process with itself shows no certificate")
    return OwnCertificate(
        hashlib.sha256(shown).digest(), ssl.cert_time_to_seconds(str(fields["notAfter"]))
    )
