"""Certificates for tests, made on the spot."""

from __future__ import annotations

import datetime
import hashlib
import ssl
from typing import TYPE_CHECKING, Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

if TYPE_CHECKING:
    from pathlib import Path

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


class Authority:
    """A certificate authority, and TLS settings with its certificates.

    Args:
        directory: Where its files go.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self._issued = 0
        self.ca_file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str, not_after: datetime.datetime | None = None) -> tuple[Path, Path]:
        """Return a certificate file and a key file; without names for 127.0.0.1 and others."""
        names = names or ("127.0.0.1", "127.0.0.2", "localhost")
        issued = self._ca.issue_cert(*names, not_after=not_after)
        self._issued += 1
        certificate = self._directory / f"{self._issued}.pem"
        key = self._directory / f"{self._issued}.key"
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(str(certificate), append=index > 0)
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def issue_for_clients(self) -> tuple[Path, Path]:
        """Return the files of a certificate that must not be used by servers."""
        certificate, key = self.issue()
        issued = x509.load_pem_x509_certificate(certificate.read_bytes())
        builder = x509.CertificateBuilder(
            issued.issuer,
            issued.subject,
            issued.public_key(),
            issued.serial_number,
            issued.not_valid_before_utc,
            issued.not_valid_after_utc,
        )
        for extension in issued.extensions:
            value = extension.value
            if isinstance(value, x509.ExtendedKeyUsage):
                value = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(value, extension.critical)
        own_key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(own_key, ec.EllipticCurvePrivateKey)
        signed = builder.sign(own_key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return certificate, key

    def settings(self, *names: str, **changes: Any) -> dict[str, Any]:
        """Return the TLS settings of a process with a certificate of its own."""
        certificate, key = self.issue(*names)
        return {
            "tls_enabled": True,
            "tls_certificate_file": certificate,
            "tls_key_file": key,
            "tls_ca_file": self.ca_file,
        } | changes

    def client_context(self) -> ssl.SSLContext:
        """Return what a client needs that is not ours."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*self.issue())
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return what a server needs that is not ours."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca_file))
        context.load_cert_chain(*self.issue())
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def fingerprint_of(certificate_file: Path) -> str:
    """Return the SHA-256 fingerprint of the first certificate in a file, as openssl prints it."""
    pem = certificate_file.read_text(encoding="ascii")
    end = "-----END CERTIFICATE-----"
    der = ssl.PEM_cert_to_DER_cert(pem[: pem.index(end) + len(end)])
    return ":".join(f"{byte:02X}" for byte in hashlib.sha256(der).digest())
