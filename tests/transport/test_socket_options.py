"""Options of the sockets of connections."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.transport import socket_options
from sluice.transport.address import Address
from tests.support.peers import a_config, a_service, end, open_client

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("keepalive", "idle", "interval"),
    [(30, 30, 7), (0.5, 1, 1), (100_000, 32767, 8191)],
)
async def test_options_of_both_ends(keepalive: float, idle: int, interval: int) -> None:
    config = a_config(keepalive_seconds=keepalive)
    async with a_service(config) as service:
        client = await open_client(service.address, config)
        server = await service.handler()
        for connection in (client.connection, server.connection):
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == interval
        await end(client)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(60, 60_000), (0.5, 500), (None, 0)])
async def test_both_ends_have_the_user_timeout(seconds: float | None, milliseconds: int) -> None:
    config = a_config(tcp_user_timeout_seconds=seconds)
    async with a_service(config) as service:
        client = await open_client(service.address, config)
        server = await service.handler()
        for connection in (client.connection, server.connection):
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
        await end(client)


async def test_data_that_is_not_read_ends_the_connection() -> None:
    config = a_config(tcp_user_timeout_seconds=0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:  # the client never reads: its window is shut
            socket_options.apply(accepted, config)
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(_send_for_ever, accepted)


def _send_for_ever(sock: socket.socket) -> None:
    while True:  # ends with the connection; the test's timeout bounds it
        sock.sendall(bytes(1 << 20))


async def test_unix_sockets_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s"
    config = a_config(socket_path=path)
    async with a_service(config):
        await end(await open_client(Address(str(path), 0), config))
    with socket.socket(socket.AF_UNIX) as sock:
        socket_options.apply(sock, config)
