"""Listening, the admission limit, Unix socket files, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import DATA, BufferResponse, Pong
from sluice.transport.acceptor import bind
from sluice.transport.address import Address
from sluice.transport.connection import Connection
from sluice.transport.loop_protocol import LoopProtocol
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    Service,
    a_config,
    a_hello,
    a_service,
    end,
    open_client,
    turns,
    until,
)
from tests.support.raises_code import raises_code

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_port_in_use_is_named_with_the_remedy() -> None:
    async with a_service() as service:
        second = Service(a_config(data_port=service.listener.port))
        with raises_code(ErrorCode.CONFIGURATION, "^Cannot listen on 127") as caught:
            await second.listener.start()
        text = str(caught.value)
        assert str(service.listener.port) in text
        assert "transport.data_port" in text
        await end(await open_client(service.address))


async def test_an_address_of_another_host_is_refused() -> None:
    with raises_code(
        ErrorCode.CONFIGURATION, r"^Cannot .*Set transport\.bind_host to an address of this"
    ):
        await Service(a_config(bind_host="192.0.2.1")).listener.start()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")


@needs_ipv6
async def test_addresses_of_both_families_are_served_at_the_same_port() -> None:
    async with a_service(a_config(bind_host="127.0.0.1, ::1")) as service:
        remotes = []
        for number, host in enumerate(("127.0.0.1", "::1")):
            leg = await open_client(Address(host, service.listener.port))
            remotes.append((await service.handler(number)).connection.remote)
            await end(leg)
        assert remotes[0].startswith("127.0.0.1:")
        assert remotes[1].startswith("[::1]:")


@pytest.mark.parametrize("hosts", [("*",), ("*", "0.0.0.0"), ("127.0.0.1", "*")])
async def test_a_star_binds_every_address_of_the_families_that_there_are(
    hosts: tuple[str, ...],
) -> None:
    sockets = await bind(hosts, 0)
    try:
        addresses = {sock.getsockname()[0] for sock in sockets}
        assert addresses == ({"0.0.0.0", "::"} if has_ipv6() else {"0.0.0.0"})
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


async def test_a_star_is_satisfied_with_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr("sluice.transport.acceptor.socket.socket", without_ipv6)
    (sock,) = await bind(("*",), 0)
    sock.close()
    with pytest.raises(OSError, match="not supported"):
        await bind(("0.0.0.0", "::"), 0)


async def test_a_free_port_is_free_on_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel chooses it for the first address; another program may have it on the second."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.3", 0))
        taken.listen()
        chosen = iter([taken.getsockname()[1]])
        real = socket.socket.bind

        def choose(sock: socket.socket, address: tuple[str, int]) -> None:
            host, port = address
            real(sock, (host, next(chosen, 0) if port == 0 else port))

        monkeypatch.setattr("sluice.transport.acceptor.socket.socket.bind", choose)
        sockets = await bind(("127.0.0.2", "127.0.0.3"), 0)
        ports = {sock.getsockname()[1] for sock in sockets}
        for sock in sockets:
            sock.close()
        assert len(ports) == 1
        assert ports != {taken.getsockname()[1]}
    assert next(chosen, None) is None


async def test_tcp_and_unix_are_both_served(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sluice.sock"
    async with a_service(a_config(socket_path=path)) as service:
        over_tcp = await open_client(service.address)
        over_unix = await open_client(Address(str(path), 0))
        first, second = await service.handler(0), await service.handler(1)
        assert first.connection.remote.startswith("127.0.0.1:")
        assert second.connection.remote == f"unix:{path}"
        assert first.connection.label == first.connection.remote
        assert second.connection.label == f"unix:{path} connection {second.connection.key}"
        assert first.connection.key != second.connection.key
        assert len(service.listener.connections) == service.listener.accepted_total == 2
        await end(over_tcp)
        await end(over_unix)
        await first.until_lost()
        await second.until_lost()
        assert not service.listener.connections
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o777])
async def test_the_socket_has_the_permissions_that_were_set(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "sluice.sock"
    async with a_service(a_config(socket_path=path, socket_mode=mode)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


async def test_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    async with a_service(a_config(socket_path=path)):
        await end(await open_client(Address(str(path), 0)))


async def test_the_socket_of_a_living_daemon_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    async with a_service(a_config(socket_path=path)):
        second = Service(a_config(socket_path=path))
        with raises_code(ErrorCode.CONFIGURATION, r"^Cannot listen .*transport\.socket_path"):
            await second.listener.start()
        await end(await open_client(Address(str(path), 0)))
        with pytest.raises(ConnectionRefusedError):  # nor does its TCP port stay open
            await RawPeer.connect(second.address)


async def test_a_file_that_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    path.write_text("precious")
    with raises_code(ErrorCode.CONFIGURATION, "^Cannot listen .*not a socket"):
        await Service(a_config(socket_path=path)).listener.start()
    assert path.read_text() == "precious"


async def test_a_socket_that_another_daemon_took_over_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    async with a_service(a_config(socket_path=path)):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen()
    assert path.exists()


async def test_connections_above_the_limit_are_refused_with_the_reason() -> None:
    async with a_service(a_config(max_connections=2)) as service:
        first = await open_client(service.address)
        second = await open_client(service.address)
        with pytest.raises(RemoteError) as caught:
            await open_client(service.address)
        assert caught.value.code == ErrorCode.TOO_MANY_CONNECTIONS
        assert caught.value.retryable
        assert "transport.max_connections" in str(caught.value)
        assert service.listener.refused_total == 1
        assert len(service.handlers) == 2
        await end(second)
        await (await service.handler(1)).until_lost()
        third = await open_client(service.address)  # there is room again
        await end(first)
        await end(third)


async def test_silent_connections_do_not_take_the_places_of_others() -> None:
    """Nobody is refused because of them: the oldest of them makes room."""
    async with a_service(a_config(max_connections=4, max_handshakes=2)) as service:
        first = await open_client(service.address)
        with contextlib.ExitStack() as silent:
            peers = [silent.enter_context(await RawPeer.connect(service.address)) for _ in range(2)]
            await until(lambda: len(service.listener.connections) == 3)
            for number in range(5):
                peers.append(silent.enter_context(await RawPeer.connect(service.address)))
                assert await peers[number].read_to_end() == b""
                await until(lambda: len(service.listener.connections) == 3)
                assert service.listener.refused_total == number + 1
            second = await open_client(service.address)
            assert await peers[5].read_to_end() == b""
            assert service.listener.outcomes.refused == {"too many": 6}
            assert len(service.listener.connections) == 3  # the newest of them waits
        await until(lambda: len(service.listener.connections) == 2)
        others = [await open_client(service.address) for _ in range(2)]
        with pytest.raises(RemoteError, match=r"transport\.max_connections"):
            await open_client(service.address)
        for client in (first, second, *others):
            await end(client)


async def test_the_address_with_the_most_handshakes_makes_room() -> None:
    async with a_service(a_config(max_handshakes=3)) as service:
        with contextlib.ExitStack() as silent:
            alone = await RawPeer.connect(service.address, source="127.0.0.2")
            silent.enter_context(alone)
            await until(lambda: len(service.listener.connections) == 1)
            for _ in range(6):
                silent.enter_context(await RawPeer.connect(service.address))
            await until(lambda: service.listener.refused_total == 4)
            await alone.shake_hands()
            assert len(service.handlers) == 1


async def test_stop_accepting_leaves_connections_alone(tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    async with a_service(a_config(socket_path=path)) as service:
        client = await open_client(service.address)
        service.listener.stop_accepting()
        service.listener.stop_accepting()
        assert not path.exists()
        with pytest.raises(ConnectionRefusedError):
            await RawPeer.connect(service.address)
        client.connection.send(BufferResponse(1, 0, 0, 1))  # not allowed upwards: an answer comes
        assert isinstance(await client.until_lost(), RemoteError)


async def test_close_waits_until_every_connection_is_gone() -> None:
    service = Service(a_config())
    await service.listener.start()
    clients = [await open_client(service.address) for _ in range(3)]
    with await RawPeer.connect(service.address):  # before its handshake
        await until(lambda: len(service.listener.connections) == 4)
        closing = [asyncio.ensure_future(service.listener.close()) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*closing)
    assert not service.listener.connections
    assert all(handler.lost for handler in service.handlers)
    for client in clients:
        await client.until_lost()


async def test_a_cancelled_close_does_not_spoil_another() -> None:
    config = a_config(close_timeout_seconds=0.3)
    async with a_service(config) as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            connection = (await service.handler()).connection
            connection.send(Pong(1), bytes(8 << 20))  # never read: the close takes its time
            first = asyncio.ensure_future(service.listener.close())
            second = asyncio.ensure_future(service.listener.close())
            await turns()
            first.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await second
            assert first.cancelled()
            assert not service.listener.connections


async def test_close_is_bounded_though_a_peer_reads_nothing() -> None:
    service = Service(a_config(close_timeout_seconds=0.2))
    await service.listener.start()
    with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
        await peer.shake_hands()
        handler = await service.handler()
        released: list[int] = []
        for number in range(4):
            release = functools.partial(released.append, number)
            handler.connection.send(Pong(1), memoryview(bytes(4 << 20)), release)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.listener.close()
        assert released == [0, 1, 2, 3]
        assert len(handler.lost) == 1


async def test_a_connection_that_is_closed_before_it_is_made_is_closed_all_the_same() -> None:
    """As when the listener closes in the very turn of the loop in which it accepts."""
    closed: list[Connection] = []
    gone = asyncio.Event()

    def on_closed(connection: Connection) -> None:
        closed.append(connection)
        gone.set()

    connection = Connection(a_config(), SEGMENT, _no_handler, hello=a_hello(), on_closed=on_closed)
    connection.close()
    async with a_service() as service:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            lambda: LoopProtocol(connection), *service.address
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()
        assert closed == [connection]
        assert transport.is_closing()
        assert service.handlers == []


def _no_handler(*_: object) -> RecordingHandler:
    raise AssertionError("no handshake took place")


async def test_a_connection_accepted_after_the_close_is_closed_at_once() -> None:
    service = Service(a_config())
    await service.listener.start()
    accept = service.listener._accept
    await service.listener.close()
    loop = asyncio.get_running_loop()
    made: list[Connection] = []

    def late() -> LoopProtocol:
        made.append(accept(service.listener._over_tcp))
        return LoopProtocol(made[0])

    server = await loop.create_server(late, "127.0.0.1", 0)
    with await RawPeer.connect(Address("127.0.0.1", server.sockets[0].getsockname()[1])) as peer:
        assert await peer.read_to_end() == b""
    server.close()
    assert made[0].closing
    assert service.handlers == []
    await until(lambda: not service.listener.connections)


async def test_traffic_of_connections_that_are_gone_is_still_counted() -> None:
    async with a_service() as service:
        client = await open_client(service.address)
        handler = await service.handler(0)
        role = handler.connection.role
        before = service.listener.traffic()[role]
        assert (before.messages_in, before.messages_out) == (1, 1)  # the handshake
        handler.connection.send(BufferResponse(0, 0, 0, DATA), bytes(100))
        await client.until(lambda: client.received)
        sent = service.listener.traffic()[role]
        assert sent.messages_out == 2
        assert sent.bytes_out == client.connection.bytes_in > before.bytes_out + 100
        await end(client)
        await handler.until_lost()
        await turns()
        assert not service.listener.connections
        assert service.listener.traffic()[role].messages_out == 2
