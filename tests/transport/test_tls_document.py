"""The commands of docs/operate/tls.md make certificates that work."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.schema import ROLE_DRIVER
from sluice.transport.tls import TlsConfigurationError
from tests.support.peers import a_config, a_service, end, open_client
from tests.support.tls_files import load_tls

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.transport.config import TransportConfig


DOCUMENT = Path(__file__).parents[2] / "docs" / "operate" / "tls.md"


def commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every command of the page; return the directory."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("certificates")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands())],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


def settings(directory: Path) -> dict[str, Any]:
    return {
        "tls_enabled": True,
        "tls_certificate_file": directory / "node-1.pem",
        "tls_key_file": directory / "node-1.key",
        "tls_ca_file": directory / "ca.pem",
    }


def test_the_page_has_its_commands() -> None:
    assert len(commands()) == 2


async def test_the_certificates_let_each_other_in(made: Path) -> None:
    config = a_config(**settings(made))
    async with a_service(config) as service:
        await end(await open_client(service.address, config))


@pytest.fixture
def limited(made: Path, tmp_path: Path) -> Callable[[str], TransportConfig]:
    """Return settings with a certificate for one use only."""

    def make(use: str) -> TransportConfig:
        extensions = (made / "node-1.ext").read_text(encoding="ascii")
        extensions = extensions.replace("serverAuth, clientAuth", use)
        (tmp_path / "ext").write_text(extensions, encoding="ascii")
        certificate = tmp_path / f"{use}.pem"
        subprocess.run(
            ["openssl", "x509", "-req", "-in", "node-1.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
             "-set_serial", "77", "-extfile", tmp_path / "ext", "-out", certificate],
            cwd=made, capture_output=True, check=True, timeout=20,
        )  # fmt: skip
        return a_config(**(settings(made) | {"tls_certificate_file": certificate}))

    return make


@pytest.mark.parametrize("accepts", [True, False])
def test_a_certificate_for_servers_alone_is_found_at_the_start(
    limited: Callable[[str], TransportConfig], accepts: bool
) -> None:
    with pytest.raises(TlsConfigurationError, match="extendedKeyUsage clientAuth, serverAuth"):
        load_tls(limited("serverAuth"), accepts=accepts)


async def test_a_certificate_for_clients_alone_does_for_clients(
    made: Path, limited: Callable[[str], TransportConfig]
) -> None:
    config = limited("clientAuth")
    async with a_service(a_config(**settings(made))) as service:
        await end(await open_client(service.address, config, role=ROLE_DRIVER, application_id="a"))
    with pytest.raises(TlsConfigurationError, match="extendedKeyUsage clientAuth, serverAuth"):
        load_tls(config, accepts=True)
