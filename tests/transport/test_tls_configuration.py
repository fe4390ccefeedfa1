"""TLS settings that cannot work are found at the start, and the error has the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError

from sluice.protocol.errors import ErrorCode
from sluice.transport.tls import TlsConfigurationError
from tests.support.certificates import YESTERDAY, Authority
from tests.support.peers import Service, a_config
from tests.support.tls_files import load_tls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[["Given"], dict[str, Any]]


class Given:
    """Good settings, to be spoilt."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "authority")
        self.stranger = Authority(directory / "stranger")
        self.settings = self.authority.settings()

    def file(self, content: bytes) -> Path:
        path = self.directory / "spoilt"
        path.write_bytes(content)
        return path

    def encrypted_key(self) -> Path:
        key = serialization.load_pem_private_key(self.settings["tls_key_file"].read_bytes(), None)
        return self.file(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )

    def expired(self) -> dict[str, Any]:
        certificate, key = self.authority.issue(not_after=YESTERDAY)
        return {"tls_certificate_file": certificate, "tls_key_file": key}


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


SPOILT: dict[str, tuple[Change, str]] = {
    "certificate missing": (
        lambda given: {"tls_certificate_file": given.directory / "no.pem"},
        r"tls_certificate_file cannot be read \(value .*/no.pem: No such file",
    ),
    "key missing": (
        lambda given: {"tls_key_file": given.directory / "no.key"},
        r"tls_key_file cannot be read \(value .*/no.key: No such file",
    ),
    "authorities missing": (
        lambda given: {"tls_ca_file": given.directory / "no.pem"},
        r"tls_ca_file cannot be read \(value .*/no.pem: No such file",
    ),
    "a directory": (
        lambda given: {"tls_key_file": given.directory},
        r"tls_key_file cannot be read .*Is a directory.*let the user of this process",
    ),
    "key of another certificate": (
        lambda given: {"tls_key_file": given.authority.issue()[1]},
        r"tls_key_file does not belong to transport.tls_certificate_file .*\.key.*\.pem",
    ),
    "key encrypted": (
        lambda given: {"tls_key_file": given.encrypted_key()},
        r"tls_key_file is encrypted.*/spoilt.*openssl pkey",
    ),
    "certificate no PEM": (
        lambda given: {"tls_certificate_file": given.file(b"no certificate")},
        r"tls_certificate_file or transport.tls_key_file cannot be used .*spoilt.*PEM form",
    ),
    "authorities no PEM": (
        lambda given: {"tls_ca_file": given.file(b"")},
        r"tls_ca_file has no certificates in PEM form .*spoilt",
    ),
    "certificate expired": (
        lambda given: given.expired(),
        r"would be refused by others .*certificate has expired.*Renew",
    ),
    "signed by another authority": (
        lambda given: {"tls_ca_file": given.stranger.ca_file},
        r"would be refused by others .*ca.pem: unable to get local issuer certificate",
    ),
    "no certificate": (
        lambda given: {"tls_certificate_file": None, "tls_key_file": None},
        r"has no certificate to show .*tls_certificate_file and transport.tls_key_file",
    ),
}


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("case", SPOILT)
async def test_a_listener_does_not_start_with_it(given: Given, case: str) -> None:
    change, message = SPOILT[case]
    service = Service(a_config(**(given.settings | change(given))))
    with pytest.raises(TlsConfigurationError, match=message) as caught:
        await service.listener.start()
    assert caught.value.code is ErrorCode.CONFIGURATION
    assert caught.value.value is not None
    assert caught.value.remedy
    assert service.listener.port == 0
    assert not service.listener._acceptors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls_ca_file": None}, "tls_enabled = true requires tls_ca_file"),
        ({"tls_key_file": None}, "tls_key_file = None: give both or neither"),
        ({"tls_certificate_file": None}, "tls_certificate_file = None and"),
        ({"tls_minimum_version": "1.1"}, "'1.2' or '1.3'"),
    ],
)
def test_settings_that_contradict_each_other(
    given: Given, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        a_config(**(given.settings | change))


def test_without_tls_no_file_is_read(given: Given) -> None:
    spoilt = given.settings | {"tls_enabled": False, "tls_ca_file": given.directory / "no.pem"}
    assert load_tls(a_config(**spoilt), accepts=True) is None
