"""Accepting while the process has no descriptors left: refused at once, or served in need."""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 - connecting imports it, for which a file is opened
import errno
import os
import resource
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ErrorResponse
from sluice.transport import descriptors, listener
from sluice.transport.acceptor import InNeed, bind_remedy, listen
from sluice.transport.address import Address
from sluice.transport.descriptors import Reserve, free_descriptors
from tests.support.certificates import Authority
from tests.support.peers import (
    PATIENCE_SECONDS,
    RawPeer,
    a_config,
    a_service,
    end,
    open_client,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def no_descriptors() -> Iterator[list[int]]:
    """Let this process open no more files; yield those that take the places."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, hard))
    try:
        with contextlib.suppress(OSError):  # the one that ends this
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            with contextlib.suppress(OSError):
                os.close(descriptor)


@contextlib.contextmanager
def client_sockets(*families: int) -> Iterator[list[socket.socket]]:
    made = [socket.socket(family, socket.SOCK_STREAM) for family in families]
    try:
        for sock in made:
            sock.setblocking(False)
        yield made
    finally:
        for sock in made:
            sock.close()


async def answer_of(sock: socket.socket, address: tuple[Any, ...] | str) -> ErrorResponse:
    """Connect and return the error that comes."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await loop.sock_connect(sock, address)
        answer, _ = await RawPeer(sock).read_frame()
        assert await loop.sock_recv(sock, 1) == b""
    assert isinstance(answer, ErrorResponse)
    return answer


async def test_without_descriptors_tcp_and_unix_refuse_at_once_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path)) as service:
        before = await open_client(service.address)
        with client_sockets(socket.AF_INET, socket.AF_UNIX, socket.AF_INET) as clients:
            addresses: tuple[Any, ...] = service.address, str(path), service.address
            with no_descriptors():
                for sock, address in zip(clients, addresses, strict=True):
                    answer = await answer_of(sock, address)
                    assert answer.code == ErrorCode.TOO_MANY_CONNECTIONS
                    assert answer.retryable
                    assert "limit of open files" in answer.message
        assert service.listener.refused_total == 3
        for address in (service.address, Address(str(path), 0)):
            await end(await open_client(address))
        await until(lambda: caplog.text.count("accepts connections again") == 2)
        assert caplog.text.count("cannot accept connections") == 2
        await end(before)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def test_in_need_a_few_are_served_and_then_room_is_asked_for() -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    (acceptor,) = listen([sock], Echo, 8, "a port", InNeed(make_room=asked.set))
    try:
        with client_sockets(*[socket.AF_INET] * 2) as (first, second):
            async with asyncio.timeout(PATIENCE_SECONDS):
                with no_descriptors() as taken:
                    await loop.sock_connect(first, address)
                    await loop.sock_sendall(first, b"in need")
                    assert await loop.sock_recv(first, 100) == b"in need"
                    await loop.sock_connect(second, address)
                    await loop.sock_sendall(second, b"later")
                    await asked.wait()
                    os.close(taken.pop())
                    os.close(taken.pop())
                    assert await loop.sock_recv(second, 100) == b"later"
    finally:
        acceptor.close()
        await acceptor.wait_started()
        await asyncio.sleep(0.01)  # the ends of the connections, on uvloop


async def test_limits_fit_into_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "data_connections", lambda: 5)  # three are served
    async with a_service(a_config()) as service:
        served = [await open_client(service.address) for _ in range(3)]
        with pytest.raises(RemoteError) as caught:
            await open_client(service.address)
        assert caught.value.code == ErrorCode.TOO_MANY_CONNECTIONS
        for client in served:
            await end(client)
        await service.handler(2)
        with await RawPeer.connect(service.address) as silent:  # it has the only handshake
            await until(lambda: len(service.listener.connections) == 1)
            await end(await open_client(service.address))
            assert await silent.read_to_end() == b""


async def test_a_crowd_that_is_refused_does_not_take_the_last_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of them is kept until it has read why; the others get the reason and are closed."""
    monkeypatch.setattr(listener, "data_connections", lambda: 5)
    path = tmp_path / "sluice.sock"
    async with a_service(a_config(socket_path=path)) as service:
        served = [await open_client(service.address) for _ in range(3)]
        with client_sockets(*[socket.AF_INET] * 3) as crowd:
            for sock in crowd:  # all are accepted in one turn of the event loop
                sock.setblocking(True)
                sock.connect(tuple(service.address))
                sock.setblocking(False)
            peers = [RawPeer(sock) for sock in crowd]
            answers = [(await peer.read_frame())[0] for peer in peers]
            told = [answer.message for answer in answers if isinstance(answer, ErrorResponse)]
            assert ["transport.max_connections" in text for text in told] == [True] * 3
            with pytest.raises(RemoteError, match=r"transport\.max_connections"):
                await open_client(Address(str(path), 0))
            assert service.listener.refused_total == 4
            await end(served.pop())
            await (await service.handler(2)).until_lost()
            await end(await open_client(Address(str(path), 0)))
        for client in served:
            await end(client)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_silent_crowd_over_tcp_leaves_room_on_the_unix_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: bool
) -> None:
    """Also if it fills the handshakes and the room for those that are refused."""
    monkeypatch.setattr(listener, "data_connections", lambda: 8)
    path = tmp_path / "sluice.sock"
    settings = Authority(tmp_path).settings() if tls else {}
    config = a_config(socket_path=path, max_handshakes=2, **settings)
    async with a_service(config) as service:
        with client_sockets(*[socket.AF_INET] * 6) as crowd:
            for sock in crowd:
                sock.setblocking(True)
                sock.connect(tuple(service.address))
            await until(lambda: service.listener.accepted_total == 6)
            assert service.listener.refused_total == 4
            assert len(service.listener.connections) <= 3
            await end(await open_client(Address(str(path), 0)))


def test_what_is_free_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "free_descriptors", lambda: 80)
    assert descriptors.data_connections() == 60
    assert descriptors.http_connections() == 10
    monkeypatch.setattr(descriptors, "free_descriptors", lambda: 0)
    assert descriptors.data_connections() == descriptors.http_connections() == 2


def test_free_descriptors_can_be_opened_and_no_more() -> None:
    with no_descriptors() as taken:
        for _ in range(2):
            os.close(taken.pop())
        assert free_descriptors() >= 1
        reserve = Reserve(100)  # takes what it can get
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        assert free_descriptors() == 0
        assert reserve.give()
        assert not reserve.refill()
        reserve.close()
        assert not reserve.give()


def test_the_limit_becomes_the_highest() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        descriptors.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EADDRINUSE, ""), "Stop the process that has it"),
        (OSError(errno.EADDRNOTAVAIL, ""), "Set a_host to an address of this host"),
        (socket.gaierror(socket.EAI_NONAME, ""), "Set a_host to an address of this host"),
        (OSError(errno.EACCES, ""), "Set a_port to 1024 or more"),
        (OSError(errno.EMFILE, ""), "Raise the limit of open files"),
    ],
)
def test_the_remedy_is_for_what_prevented_listening(error: OSError, remedy: str) -> None:
    assert bind_remedy(error, "a_host", "a_port").startswith(remedy)
    assert bind_remedy(OSError(errno.EIO, ""), "a_host", "a_port") == ""
