"""TLS files that are replaced while connections come and go, and what connections know of them."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.schema import ROLE_PRODUCER, RegionData
from sluice.transport.errors import TlsRefused
from sluice.transport.greeting import CHANNEL_BINDING
from sluice.transport.tls import TlsConfigurationError, reloading_tls
from tests.support.certificates import YESTERDAY, Authority
from tests.support.peers import RecordingHandler, a_config, a_service, end, open_client, pattern
from tests.support.tls_files import TlsFiles, load_tls, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluice.transport.config import TransportConfig
    from sluice.transport.tls import ReloadingTls
    from tests.support.peers import Service


PRODUCER: dict[str, Any] = {"role": ROLE_PRODUCER, "application_id": "app"}


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    # A process keeps the contexts of settings that it has used, and pytest reuses directories.
    own = tmp_path / secrets.token_hex(4)
    return TlsFiles(own / "server", Authority(own / "authority"))


@pytest.fixture
def client_config(files: TlsFiles) -> TransportConfig:
    """A client with files of its own, so that the server's are looked at by the server alone."""
    return a_config(**files.authority.settings())


def config_of(files: TlsFiles, **changes: Any) -> TransportConfig:
    return a_config(**(files.settings | changes))


def info(handler: RecordingHandler, name: str) -> Any:
    assert handler.connection._transport is not None
    return handler.connection._transport.get_extra_info(name)


def shown_by_other_side_of(handler: RecordingHandler) -> bytes | None:
    """Return the certificate of the other side as DER bytes."""
    secured = info(handler, "ssl_object")
    return None if secured is None else secured.getpeercert(binary_form=True)


async def pair(
    service: Service, config: TransportConfig, **hello: Any
) -> tuple[RecordingHandler, RecordingHandler]:
    """Connect; return the handlers of both ends."""
    index = len(service.handlers)
    client = await open_client(service.address, config, **hello)
    return client, await service.handler(index)


def loaded(files: TlsFiles) -> ReloadingTls:
    found = reloading_tls(config_of(files), accepts=True)
    assert found is not None
    return found


# ---- both ends know the same -------------------------------------------------------------------


async def test_another_server_has_another_channel_binding_and_a_renewed_one_too(
    files: TlsFiles, client_config: TransportConfig, tmp_path: Path
) -> None:
    other = TlsFiles(tmp_path / "other", files.authority)
    async with a_service(config_of(files)) as service, a_service(config_of(other)) as second:
        pairs = [await pair(service, client_config), await pair(second, client_config)]
        files.renew(files.authority)
        pairs.append(await pair(service, client_config))
        bindings = [info(client, CHANNEL_BINDING) for client, _ in pairs]
        assert bindings == [info(server, CHANNEL_BINDING) for _, server in pairs]
        assert len(set(bindings)) == 3
        assert all(len(binding) == 32 for binding in bindings)
        assert bindings[2] == hashlib.sha256(files.shown).digest()
        for client, _ in pairs:
            await end(client)


# ---- files that are renewed --------------------------------------------------------------------


async def test_a_new_connection_shows_the_new_certificate_and_an_old_one_goes_on(
    files: TlsFiles, client_config: TransportConfig
) -> None:
    async with a_service(config_of(files)) as service:
        old, old_server = await pair(service, client_config, **PRODUCER)
        before = files.shown
        files.renew(files.authority)
        new, _ = await pair(service, client_config)
        assert shown_by_other_side_of(old) == before
        assert shown_by_other_side_of(new) == files.shown != before
        old.connection.send(RegionData(0, 0), pattern(7))
        await old_server.until(lambda: old_server.received)
        assert old_server.received == [(RegionData(0, 0), pattern(7))]
        assert (loaded(files).reloads, loaded(files).failures) == (1, 0)
        for client in (old, new):
            await end(client)


async def test_another_authority_takes_over_without_a_gap(
    files: TlsFiles, client_config: TransportConfig, tmp_path: Path
) -> None:
    """Old and new authority in the bundle, then the new certificate, then the new one alone."""
    successor = Authority(tmp_path / "successor")
    old_clients, new_clients = client_config, a_config(**successor.settings())
    both = files.ca.read_bytes() + successor.ca_file.read_bytes()
    bundle = tmp_path / "both.pem"
    bundle.write_bytes(both)
    async with a_service(config_of(files)) as service:
        with pytest.raises(TlsRefused, match=r"unknown ca|not accepted"):
            await open_client(service.address, new_clients)
        replace(files.ca, both)
        trusting = a_config(**successor.settings(tls_ca_file=bundle))
        await end(await open_client(service.address, trusting))
        await end(await open_client(service.address, old_clients))
        files.renew(successor)
        await end(await open_client(service.address, new_clients))
        replace(files.ca, successor.ca_file.read_bytes())
        await end(await open_client(service.address, new_clients))
        with pytest.raises(TlsRefused, match=r"unknown ca|not accepted"):
            await open_client(service.address, old_clients)
    assert (loaded(files).reloads, loaded(files).failures) == (3, 0)


# ---- files that cannot be used -----------------------------------------------------------------


def half(files: TlsFiles, _: Path) -> None:
    content = files.certificate.read_bytes()
    files.certificate.write_bytes(content[: len(content) // 2])


def empty(files: TlsFiles, _: Path) -> None:
    files.key.write_bytes(b"")


def mismatch(files: TlsFiles, _: Path) -> None:
    replace(files.key, files.authority.issue()[1].read_bytes())


def expired(files: TlsFiles, _: Path) -> None:
    files.renew(files.authority, not_after=YESTERDAY)


def of_a_stranger(files: TlsFiles, directory: Path) -> None:
    files.renew(Authority(directory / "stranger"))


def gone(files: TlsFiles, _: Path) -> None:
    files.certificate.unlink()


def no_authorities(files: TlsFiles, _: Path) -> None:
    files.ca.write_bytes(b"nothing")


SPOILT: dict[str, tuple[Callable[[TlsFiles, Path], None], str]] = {
    "half written": (half, r"shown\.pem.*PEM form"),
    "empty": (empty, r"shown\.key.*PEM form"),
    "mismatched": (mismatch, r"does not belong to .*shown\.key"),
    "expired": (expired, r"shown\.pem.*certificate has expired"),
    "of a stranger": (of_a_stranger, r"shown\.pem.*ca\.pem.*unable to get local issuer"),
    "gone": (gone, r"cannot be read .*shown\.pem: No such file"),
    "no authorities": (no_authorities, r"tls_ca_file has no certificates .*ca\.pem"),
}


@pytest.mark.parametrize("case", SPOILT)
async def test_files_that_cannot_be_used_change_nothing_and_are_told_once(
    files: TlsFiles,
    client_config: TransportConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    spoil, reason = SPOILT[case]
    good = [path.read_bytes() for path in (files.certificate, files.key, files.ca)]
    before = files.shown
    async with a_service(config_of(files)) as service:
        spoil(files, tmp_path)
        for _ in range(3):
            client, server = await pair(service, client_config)
            assert shown_by_other_side_of(client) == before
            assert info(server, CHANNEL_BINDING) == hashlib.sha256(before).digest()
            await end(client)
        tls = loaded(files)
        assert (tls.reloads, tls.failures) == (0, 1)
        (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "keeps the certificates that were loaded before" in line.getMessage()
        assert re.search(reason, line.getMessage()), line.getMessage()
        # What is whole again is used from the next connection on.
        for path, content in zip((files.certificate, files.key, files.ca), good, strict=True):
            replace(path, content)
        await end(await open_client(service.address, client_config))
        assert (tls.reloads, tls.failures) == (1, 1)


async def test_a_link_to_another_directory_is_a_change(files: TlsFiles, tmp_path: Path) -> None:
    """Kubernetes renews a mounted secret so."""
    second = TlsFiles(tmp_path / "second", files.authority)
    link = tmp_path / "current"
    link.symlink_to(files.certificate.parent)
    linked = config_of(files,
        tls_certificate_file=link / "shown.pem", tls_key_file=link / "shown.key",
        tls_ca_file=link / "ca.pem",
    )  # fmt: skip
    first = load_tls(linked, accepts=True)
    beside = tmp_path / "next"
    beside.symlink_to(second.certificate.parent)
    beside.rename(link)
    renewed = load_tls(linked, accepts=True)
    assert first is not None
    assert renewed is not None
    assert renewed is load_tls(linked, accepts=True)
    assert first.certificate is not None
    assert renewed.certificate is not None
    assert first.certificate.digest == hashlib.sha256(files.shown).digest()
    assert renewed.certificate.digest == hashlib.sha256(second.shown).digest()


# ---- without a connection ----------------------------------------------------------------------


def test_files_are_not_read_while_they_are_the_same(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = loaded(files)
    before = tls.current()
    monkeypatch.setattr("sluice.transport.tls._load", None)
    assert tls.current() is before is loaded(files).in_use


def test_a_reload_reads_files_that_have_not_changed(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tls = loaded(files)
    before = tls.current()
    assert tls.reload()
    assert tls.current() is not before
    assert tls.reloads == 1
    assert hashlib.sha256(files.shown).hexdigest() in caplog.text
    assert "good until" in caplog.text
    half(files, files.ca)
    assert not tls.reload()
    assert (tls.reloads, tls.failures) == (1, 1)
    tls.current()
    assert tls.failures == 1  # told already


def test_the_end_of_the_certificate_in_use_is_known(files: TlsFiles) -> None:
    from cryptography import x509

    tls = loaded(files)
    assert tls.in_use.certificate is not None
    end_of = x509.load_der_x509_certificate(files.shown).not_valid_after_utc
    assert tls.in_use.certificate.expires_at == end_of.timestamp()


def test_a_process_that_accepts_connects_with_the_same_contexts(files: TlsFiles) -> None:
    tls = loaded(files)
    assert reloading_tls(config_of(files)) is tls
    other = TlsFiles(files.ca.parent.parent / "other", files.authority)
    assert reloading_tls(config_of(other)) is not tls


def test_a_first_load_that_fails_is_an_error_and_is_tried_again(files: TlsFiles) -> None:
    good = files.certificate.read_bytes()
    half(files, files.ca)
    with pytest.raises(TlsConfigurationError, match="PEM form"):
        load_tls(config_of(files), accepts=True)
    files.certificate.write_bytes(good)
    assert load_tls(config_of(files), accepts=True) is not None


def test_the_contexts_of_old_settings_are_let_go(files: TlsFiles) -> None:
    first = load_tls(config_of(files))
    for number in range(70):
        authorities = files.ca.with_name(f"authorities{number}.pem")
        authorities.write_bytes(files.ca.read_bytes())
        load_tls(a_config(tls_enabled=True, tls_ca_file=authorities))
    assert load_tls(config_of(files)) is not first
