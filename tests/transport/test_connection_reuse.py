"""Real connections between two uses, and attempts to connect between failures."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import CloseRequest
from sluice.transport.address import Address
from sluice.transport.connection_pool import ConnectionPool
from sluice.transport.connector import connect
from sluice.transport.errors import ConnectFailed
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RecordingHandler,
    a_config,
    a_hello,
    a_service,
    turns,
)
from tests.support.tcp_proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from sluice.protocol.schema import Hello, HelloAck
    from sluice.transport.config import TransportConfig
    from sluice.transport.connection import Connection

A = Address("a", 1)
LONG_SECONDS = 1000.0
"""Longer than any test, for connections that must not expire."""
SHORT_SECONDS = 0.02


class FakeClient:
    def __init__(self) -> None:
        self.closing = False
        self.closed = asyncio.Event()

    def close(self) -> None:
        self.closing = True
        self.closed.set()


async def a_fake(address: Address) -> FakeClient:
    return FakeClient()


class PeerClient:
    """A client on a real connection, which sends a CloseRequest as a TaskManager does."""

    def __init__(self, handler: RecordingHandler) -> None:
        self.handler = handler

    @property
    def closing(self) -> bool:
        return self.handler.connection.closing

    def close(self) -> None:
        if not self.closing:
            self.handler.connection.send(CloseRequest())
            self.handler.connection.close()


def a_pool(config: TransportConfig) -> ConnectionPool[PeerClient]:
    async def factory(address: Address) -> PeerClient:
        handlers: list[RecordingHandler] = []

        def handle(connection: Connection, greeting: Hello | HelloAck) -> RecordingHandler:
            handlers.append(RecordingHandler(connection, greeting))
            return handlers[0]

        await connect(address, a_hello(), handle, config, SEGMENT)
        return PeerClient(handlers[0])

    return ConnectionPool(factory, config.connections_per_peer, config.peer_idle_timeout_seconds)


class FirstConnectionsFail:
    """Breaks so many connections of a proxy in their handshake, and lets the later ones through."""

    def __init__(self, proxy: FaultProxy, failures: int) -> None:
        self.proxy = proxy
        proxy.up = Fault(cut_after_bytes=5)
        self._task = asyncio.ensure_future(self._let_through_after(failures))

    async def _let_through_after(self, failures: int) -> None:
        await self.proxy.connection(failures - 1)
        self.proxy.up = Fault()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize(("failures", "succeeds"), [(2, True), (3, False)])
async def test_two_failures_with_two_retries_succeed_and_three_fail(
    failures: int, succeeds: bool
) -> None:
    async with a_service() as service, FaultProxy(service.address) as proxy:
        pool = a_pool(a_config(connect_retries=2, connect_timeout_seconds=PATIENCE_SECONDS))
        address = Address(proxy.host, proxy.port)
        first = FirstConnectionsFail(proxy, failures)
        users = await asyncio.gather(
            *(pool.acquire(address) for _ in range(10)), return_exceptions=True
        )
        await first.end()
        assert len(proxy.connections) == 3, "all users share the attempts"
        if succeeds:
            assert len(set(map(id, users))) == 1
            assert len(service.handlers) == 1
        else:
            for error in users:
                assert isinstance(error, ConnectFailed)
                assert error.limit == "2 retries"
            assert len(pool) == 0, "a failure is not kept"
            proxy.up = Fault()
            users = [await pool.acquire(address)]
        pool.close()
        for user in users:
            assert isinstance(user, PeerClient)
            await user.handler.until_lost()


async def test_without_retries_the_first_failure_counts() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", nobody.getsockname()[1])
        with pytest.raises(ConnectFailed, match="0 retries"):
            await a_pool(a_config(connect_retries=0)).acquire(address)


async def test_an_idle_connection_serves_the_next_user() -> None:
    async with a_service() as service:
        pool = a_pool(a_config(peer_idle_timeout_seconds=LONG_SECONDS))
        first = await pool.acquire(service.address)
        pool.release(service.address, first)
        assert not first.closing
        assert pool.clients() == [first]
        assert await pool.acquire(service.address) is first
        assert service.listener.accepted_total == 1
        pool.release(service.address, first)
        pool.close()
        await first.handler.until_lost()


async def test_a_connection_closed_while_idle_is_replaced() -> None:
    async with a_service() as service:
        pool = a_pool(a_config(peer_idle_timeout_seconds=LONG_SECONDS))
        first = await pool.acquire(service.address)
        pool.release(service.address, first)
        (await service.handler()).connection.close()
        await first.handler.until_lost()
        assert pool.clients() == [], "a lost connection is not shown as one"
        fresh = await pool.acquire(service.address)
        assert fresh is not first
        assert service.listener.accepted_total == 2
        pool.release(service.address, fresh)
        assert not fresh.closing
        pool.close()
        await fresh.handler.until_lost()


@pytest.mark.parametrize("idle_seconds", [0, SHORT_SECONDS])
async def test_the_last_user_or_the_end_of_the_idle_time_says_goodbye(idle_seconds: float) -> None:
    async with a_service() as service:
        pool = a_pool(a_config(peer_idle_timeout_seconds=idle_seconds))
        users = [await pool.acquire(service.address) for _ in range(2)]
        server = await service.handler()
        pool.release(service.address, users[0])
        assert not users[0].closing
        pool.release(service.address, users[1])
        assert users[1].closing is (idle_seconds == 0)
        await server.until(lambda: (CloseRequest(), b"") in server.received)
        assert len(pool) == 0
        await users[0].handler.until_lost()


async def test_a_user_within_the_idle_time_stops_the_clock() -> None:
    pool = ConnectionPool(a_fake, idle_timeout_seconds=SHORT_SECONDS)
    client = await pool.acquire(A)
    pool.release(A, client)
    assert await pool.acquire(A) is client
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3 * SHORT_SECONDS):
            await client.closed.wait()
    pool.release(A, client)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await client.closed.wait()
    assert len(pool) == 0


async def test_a_client_that_is_closing_is_not_kept() -> None:
    pool = ConnectionPool(a_fake, idle_timeout_seconds=LONG_SECONDS)
    client = await pool.acquire(A)
    client.close()
    pool.release(A, client)
    assert len(pool) == 0


async def test_cancelled_users_do_not_keep_an_attempt() -> None:
    """Only connections have an idle time; an attempt without waiters is given up."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(address: Address) -> FakeClient:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return FakeClient()

    pool = ConnectionPool(endless, idle_timeout_seconds=LONG_SECONDS)
    user = asyncio.ensure_future(pool.acquire(A))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await begun.wait()
        user.cancel()
        await ended.wait()
    await turns()
    assert len(pool) == 0
