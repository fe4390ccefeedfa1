"""Certificates for tests, made on the spot."""

from __future__ import annotations

import datetime
import ssl
from typing import TYPE_CHECKING, Any

import trustme

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
