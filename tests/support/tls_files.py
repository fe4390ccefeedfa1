"""The TLS files of a process, to be replaced while it runs."""

from __future__ import annotations

import shutil
import ssl
from typing import TYPE_CHECKING, Any

from sluice.transport.loop_protocol import tls_of

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.transport.config import TransportConfig
    from sluice.transport.tls import Tls
    from tests.support.certificates import Authority


class TlsFiles:
    """The three files of a process, replaced as tools for certificates replace them."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        directory.mkdir()
        self.authority = authority
        self.certificate = directory / "shown.pem"
        self.key = directory / "shown.key"
        self.ca = directory / "ca.pem"
        shutil.copy(authority.ca_file, self.ca)
        self.renew(authority)

    def renew(self, authority: Authority, **issue: Any) -> None:
        certificate, key = authority.issue(**issue)
        replace(self.key, key.read_bytes())
        replace(self.certificate, certificate.read_bytes())

    @property
    def shown(self) -> bytes:
        return der(self.certificate)

    @property
    def settings(self) -> dict[str, Any]:
        """The TLS settings of a process with these files."""
        return {
            "tls_enabled": True,
            "tls_certificate_file": self.certificate,
            "tls_key_file": self.key,
            "tls_ca_file": self.ca,
        }


def load_tls(config: TransportConfig, *, accepts: bool = False) -> Tls | None:
    """Return the TLS contexts of a new connection, None when TLS is off."""
    tls = tls_of(config, accepts=accepts)
    return None if tls is None else tls.current()


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.rename(path)


def der(certificate: Path) -> bytes:
    """Return the first certificate of a file."""
    pem = certificate.read_text(encoding="ascii")
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(pem[: pem.index(end) + len(end)])
