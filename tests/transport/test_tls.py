"""TLS on the TCP data port: accepted and refused certificates, and the end of connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode, Fault, SluiceError, UnexpectedMessage
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    DATA,
    ROLE_PRODUCER,
    AddCredit,
    BufferResponse,
    ErrorResponse,
    Ping,
    Pong,
    RegionData,
    decode_control,
    encode,
)
from sluice.transport.address import Address
from sluice.transport.errors import DeadlineExceeded, TlsRefused
from tests.support.certificates import YESTERDAY, Authority
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    a_config,
    a_hello,
    a_service,
    end,
    open_client,
    small_send_buffer,
    turns,
    until,
)
from tests.support.tls_files import load_tls

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.transport.config import TransportConfig


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that neither side trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


def tls_config(authority: Authority, **changes: Any) -> TransportConfig:
    return a_config(**(authority.settings() | changes))


def pattern(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SEGMENT // 4)


# ---- accepted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", ["1.2", "1.3"])
async def test_both_sides_talk_over_tls(authority: Authority, minimum: str) -> None:
    config = tls_config(authority, tls_minimum_version=minimum)
    async with a_service(config) as service:
        client = await open_client(
            service.address, config, role=ROLE_PRODUCER, application_id="app"
        )
        server = await service.handler()
        client.connection.send(RegionData(0, 0), pattern(7))
        await server.until(lambda: server.received)
        assert server.received == [(RegionData(0, 0), pattern(7))]
        server.connection.send(AddCredit(0, 3))
        await client.until(lambda: client.received)
        assert client.received == [(AddCredit(0, 3), b"")]
        secured = client.connection._transport.get_extra_info("ssl_object")  # type: ignore[union-attr]
        assert secured.version() == "TLSv1.3"
        assert client.connection.is_encrypted
        assert server.connection.is_encrypted
        await end(client)
    assert server.lost


async def test_a_client_that_still_sends_gets_the_error(authority: Authority) -> None:
    config = tls_config(authority)
    async with a_service(config) as service:
        client = await open_client(
            service.address, config, role=ROLE_PRODUCER, application_id="app"
        )
        server = await service.handler()
        server.on_message = lambda message: server.connection.fail(UnexpectedMessage("No"))
        client.connection._transport.pause_reading()  # type: ignore[union-attr]
        client.connection.send(RegionData(0, 0), pattern(0))
        await server.until(lambda: server.connection.closing)
        await turns(10)
        for number in range(200):
            client.connection.send(RegionData(0, number), pattern(number))
            await turns()
        client.connection._transport.resume_reading()  # type: ignore[union-attr]
        error = await client.until_lost()
        assert isinstance(error, RemoteError)
        assert error.code is ErrorCode.UNEXPECTED_MESSAGE
        await server.until_lost()
        assert len(server.received) == 1


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_with_the_loops_own_tls(
    authority: Authority, newest: ssl.TLSVersion
) -> None:
    """Both versions, against an implementation that is not ours."""
    async with a_service(tls_config(authority, tls_minimum_version="1.2")) as service:
        context = authority.client_context()
        context.maximum_version = newest
        reader, writer = await asyncio.open_connection(*service.address, ssl=context)
        writer.write(encode(a_hello()))
        await read_frame(reader)
        writer.write(encode(Ping(5)) + encode(Ping(6)))
        assert (await read_frame(reader))[0] == encode(Pong(5))[8:]
        assert (await read_frame(reader))[0] == encode(Pong(6))[8:]
        writer.close()
        await (await service.handler()).until_lost()
        await writer.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        prefix = await reader.readexactly(8)
        control = await reader.readexactly(int.from_bytes(prefix[:4], "big"))
        return control, await reader.readexactly(int.from_bytes(prefix[4:], "big"))


async def test_a_client_without_certificate_where_none_is_required(authority: Authority) -> None:
    async with a_service(tls_config(authority, tls_require_client_certificate=False)) as service:
        config = a_config(tls_enabled=True, tls_ca_file=authority.ca_file)
        await end(await open_client(service.address, config))


async def test_the_unix_socket_stays_plain(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with a_service(tls_config(authority, socket_path=path)) as service:
        with await RawPeer.connect(path) as peer:
            await peer.shake_hands()
        await (await service.handler()).until_lost()
        client = await open_client(Address(str(path), 0), tls_config(authority))
        assert not client.connection.is_encrypted
        await end(client)


# ---- refused -----------------------------------------------------------------------------------


async def refused(server: TransportConfig, client: TransportConfig) -> SluiceError:
    """Return the error of the side that connects; check that nothing is left of the attempt."""
    async with a_service(server) as service:
        with pytest.raises((TlsRefused, RemoteError)) as caught:
            await open_client(service.address, client)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.listener.close()  # does not end while a connection is counted
        assert service.listener.accepted_total == 1  # there was no retry
        assert not service.handlers
    error = caught.value
    assert error.code is ErrorCode.CONFIGURATION
    assert not error.retryable
    assert "transport.tls_" in str(error)
    return error


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("who", "told", "logged"),
    [
        ("untrusted", "unknown ca", "self-signed certificate in certificate chain"),
        ("without", "", "shows no certificate"),
        ("expired", "certificate expired", "certificate has expired"),
    ],
)
async def test_a_client_that_is_not_trusted(
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: ssl.TLSVersion,
    who: str,
    told: str,
    logged: str,
) -> None:
    """With TLS 1.3 the client's own handshake is over when it is refused."""
    server = tls_config(authority, tls_minimum_version="1.2")
    contexts = load_tls(server, accepts=True)
    assert contexts is not None
    assert contexts.server is not None
    contexts.server.maximum_version = version
    both = tmp_path / "both.pem"
    both.write_text(authority.ca_file.read_text() + stranger.ca_file.read_text())
    settings: dict[str, Any] = {"tls_certificate_file": None, "tls_key_file": None}
    if who == "untrusted":
        settings = stranger.settings()
    elif who == "expired":
        monkeypatch.setattr(
            "sluice.transport.tls._try_out", lambda *_: None
        )  # it was good at the start
        certificate, key = authority.issue(not_after=YESTERDAY)
        settings = {"tls_certificate_file": certificate, "tls_key_file": key}
    settings |= {"tls_enabled": True, "tls_ca_file": both, "tls_minimum_version": "1.2"}
    error = await refused(server, a_config(**settings))
    assert isinstance(error, TlsRefused)
    assert error.fault is Fault.REMOTE
    assert told in str(error)
    assert logged in caplog.text
    assert "refusing connection 127.0.0.1:" in caplog.text


async def test_a_server_that_is_not_trusted(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refused(tls_config(stranger), tls_config(authority))
    assert isinstance(error, TlsRefused)
    assert "self-signed certificate in certificate chain" in str(error)
    assert "unknown ca" in caplog.text  # the server gets the reason


async def test_a_server_of_another_name(authority: Authority) -> None:
    server = authority.settings("elsewhere.example")
    error = await refused(a_config(**server), tls_config(authority))
    assert "tls_check_host_name" in str(error)
    assert "127.0.0.1" in str(error)
    unchecked = tls_config(authority, tls_check_host_name=False)
    async with a_service(a_config(**server)) as service:
        await end(await open_client(service.address, unchecked))


async def test_a_plain_client_at_a_tls_port_gets_the_reason(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refused(tls_config(authority), a_config())
    assert isinstance(error, RemoteError)
    assert "speaks TLS only" in str(error)
    assert "speaks TLS only" in caplog.text


async def test_a_tls_client_at_a_plain_port_gets_the_reason(authority: Authority) -> None:
    error = await refused(a_config(), tls_config(authority))
    assert isinstance(error, TlsRefused)
    assert "does not speak TLS" in str(error)


async def test_versions_without_a_common_one(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_service(tls_config(authority)) as service:
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*service.address, ssl=context)
        await until(lambda: not service.listener.connections)
    assert "unsupported protocol" in caplog.text
    assert "tls_minimum_version" in caplog.text


# ---- deadlines and ends ------------------------------------------------------------------------


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_a_client_that_does_not_finish_its_handshake(
    authority: Authority, caplog: pytest.LogCaptureFixture, hello: bytes
) -> None:
    config = tls_config(authority, handshake_timeout_seconds=0.2)
    async with a_service(config) as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.send(hello)
            assert await peer.read_to_end() == b""
        await until(lambda: not service.listener.connections)
    assert "No TLS handshake in time" in caplog.text


async def test_after_tls_the_deadline_goes_on_for_the_hello(authority: Authority) -> None:
    config = tls_config(authority, handshake_timeout_seconds=1)
    async with a_service(config) as service:
        reader, writer = await asyncio.open_connection(
            *service.address, ssl=authority.client_context()
        )
        control, _ = await read_frame(reader)
        message = decode_control(control)
        assert isinstance(message, ErrorResponse)
        assert message.code == ErrorCode.DEADLINE_EXCEEDED
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_does_not_answer_the_client_hello(authority: Authority) -> None:
    config = tls_config(authority, handshake_timeout_seconds=0.2, connect_timeout_seconds=5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeadlineExceeded, match="No TLS handshake in time"),
    ):
        await open_client(Address(*silent.getsockname()), config)


async def test_plain_bytes_within_tls_end_the_connection(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that were tampered with end the connection."""
    config = tls_config(authority)
    async with a_service(config) as service:
        client = await open_client(service.address, config)
        server = await service.handler()
        sock = client.connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        os.write(sock.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        error = await server.until_lost()
        assert isinstance(error, TlsRefused)
        assert not server.received
        await client.until_lost()
    assert "refusing connection" in caplog.text


async def test_a_connection_above_the_limit_gets_the_reason(authority: Authority) -> None:
    config = tls_config(authority, max_connections=1)
    async with a_service(config) as service:
        first = await open_client(service.address, config)
        with pytest.raises(RemoteError) as caught:
            await open_client(service.address, config)
        assert caught.value.code is ErrorCode.TOO_MANY_CONNECTIONS
        await end(first)


async def test_a_listener_that_closes_does_not_wait_for_handshakes(authority: Authority) -> None:
    config = tls_config(authority, handshake_timeout_seconds=60, close_timeout_seconds=60)
    async with a_service(config) as service:
        with await RawPeer.connect(service.address) as peer:
            await until(lambda: service.listener.connections)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await service.listener.close()
            assert await peer.read_to_end() == b""


async def test_bytes_sent_before_the_end_arrive(authority: Authority) -> None:
    config = tls_config(authority)
    async with a_service(config) as service:
        client = await open_client(service.address, config)
        server = await service.handler()
        small_send_buffer(server.connection)
        for number in range(100):
            server.connection.send(BufferResponse(0, number, 0, DATA), pattern(number))
        server.connection.close()
        await client.until_lost()
        assert [payload for _, payload in client.received] == [pattern(n) for n in range(100)]


async def test_a_connect_that_is_cancelled_leaves_nothing(authority: Authority) -> None:
    config = tls_config(authority)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(open_client(Address(*silent.getsockname()), config))
        accepted, _ = await loop.sock_accept(silent)
        with accepted:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await loop.sock_recv(accepted, 1) == b"\x16"
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
                with contextlib.suppress(ConnectionError):
                    while await loop.sock_recv(accepted, 65536):
                        pass
