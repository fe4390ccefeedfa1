"""One connection per peer: shared users, reference counts, cancellation at every point."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.transport.address import Address
from sluice.transport.connection_pool import ConnectionPool
from sluice.transport.errors import ConnectFailed
from tests.support.peers import (
    PATIENCE_SECONDS,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

A = Address("a", 1)
B = Address("b", 1)


class FakeClient:
    def __init__(self, number: int) -> None:
        self.number = number
        self.closing = False
        self.closed = 0

    def close(self) -> None:
        self.closing = True
        self.closed += 1


class Factory:
    """Makes clients when the test says so."""

    def __init__(self, failures: Iterable[int] = (), *, at_once: bool = False) -> None:
        self.failures = set(failures)
        self.attempts = 0
        self.cancelled = 0
        self.clients: list[FakeClient] = []
        self.proceed = asyncio.Event()
        if at_once:
            self.proceed.set()

    async def __call__(self, address: Address) -> FakeClient:
        number = self.attempts
        self.attempts += 1
        try:
            await self.proceed.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if number in self.failures:
            raise ConnectFailed(f"attempt {number}")
        client = FakeClient(number)
        self.clients.append(client)
        return client


async def test_ten_users_at_once_share_one_connection() -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(10)]
    await turns()
    assert pool.clients() == []
    factory.proceed.set()
    clients = await asyncio.gather(*users)
    assert len(set(map(id, clients))) == 1
    assert factory.attempts == 1
    assert pool.clients() == [clients[0]]
    for _ in range(9):
        pool.release(A, clients[0])
        assert not clients[0].closed
    pool.release(A, clients[0])  # the last one closes it
    assert clients[0].closed == 1
    assert len(pool) == 0


async def test_a_failure_goes_to_all_waiters_and_is_not_kept() -> None:
    factory = Factory(failures=[0, 1])
    pool = ConnectionPool(factory)
    for attempt in range(2):
        factory.proceed.clear()
        users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(10)]
        await turns()
        factory.proceed.set()
        results = await asyncio.gather(*users, return_exceptions=True)
        assert [str(result) for result in results] == [f"attempt {attempt}"] * 10
        assert all(isinstance(result, ConnectFailed) for result in results)
        assert len(pool) == 0
    client = await pool.acquire(A)
    assert client.number == 2
    pool.release(A, client)


async def test_a_user_in_the_turn_of_a_failure_gets_a_new_attempt() -> None:
    factory = Factory(failures=[0])
    pool = ConnectionPool(factory)
    first = asyncio.ensure_future(pool.acquire(A))
    await turns()
    entry = next(iter(pool._entries.values()))
    assert entry.task is not None
    late: list[asyncio.Task[FakeClient]] = []
    # done callbacks run in order: this one before the waiters get the failure
    entry.task.add_done_callback(lambda _: late.append(asyncio.ensure_future(pool.acquire(A))))
    factory.proceed.set()
    with pytest.raises(ConnectFailed):
        await first
    client = await late[0]
    assert client.number == 1
    pool.release(A, client)


async def test_one_cancelled_waiter_does_not_hurt_the_others() -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(3)]
    await turns()
    users[0].cancel()
    await turns()
    assert users[0].cancelled()
    assert len(pool) == 1
    factory.proceed.set()
    first, second = await asyncio.gather(*users[1:])
    assert first is second
    pool.release(A, first)
    assert len(pool) == 1
    pool.release(A, second)
    assert first.closed == 1


@pytest.mark.parametrize("turns_before_cancel", range(6))
async def test_a_waiter_cancelled_while_the_attempt_succeeds(turns_before_cancel: int) -> None:
    """A waiter cancelled in any turn around the success does not close the others' client."""
    factory = Factory()
    pool = ConnectionPool(factory)
    users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(3)]
    await turns()
    factory.proceed.set()
    await turns(turns_before_cancel)
    users[0].cancel()
    gone, first, second = await asyncio.gather(*users, return_exceptions=True)
    assert isinstance(first, FakeClient)
    assert first is second
    assert not first.closing
    if isinstance(gone, FakeClient):  # it was through already
        pool.release(A, gone)
    pool.release(A, first)
    assert not first.closing
    pool.release(A, first)
    assert first.closed == 1
    assert len(pool) == 0


@pytest.mark.parametrize("turns_before_cancel", range(6))
async def test_all_cancelled_leave_nothing_behind(turns_before_cancel: int) -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(3)]
    await turns()
    factory.proceed.set()
    await turns(turns_before_cancel)
    for user in users:
        user.cancel()
    for result in await asyncio.gather(*users, return_exceptions=True):
        if isinstance(result, FakeClient):
            pool.release(A, result)
    await turns()
    assert len(pool) == 0
    assert all(client.closing for client in factory.clients)


async def test_a_cancelled_attempt_is_not_kept() -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    user = asyncio.ensure_future(pool.acquire(A))
    await turns()
    user.cancel()
    await turns(1)
    second = asyncio.ensure_future(pool.acquire(A))  # while the first attempt is being cancelled
    await turns()
    assert user.cancelled()
    assert factory.cancelled == 1
    factory.proceed.set()
    client = await second
    assert client.number == 1
    pool.release(A, client)


async def test_a_closing_client_is_replaced_and_its_users_do_not_count() -> None:
    factory = Factory(at_once=True)
    pool = ConnectionPool(factory)
    old = await pool.acquire(A)
    assert await pool.acquire(A) is old
    old.closing = True
    new = await pool.acquire(A)
    assert new is not old
    pool.release(A, old)
    pool.release(A, old)
    assert not new.closing
    assert pool.clients() == [new]
    pool.release(A, new)
    assert new.closed == 1
    assert len(pool) == 0


@pytest.mark.parametrize("connected", [True, False])
async def test_a_retired_client_serves_its_users_to_the_end(connected: bool) -> None:
    factory = Factory(at_once=connected)
    pool = ConnectionPool(factory, idle_timeout_seconds=PATIENCE_SECONDS)
    users = [asyncio.ensure_future(pool.acquire(A)) for _ in range(2)]
    await turns()
    pool.retire()
    factory.proceed.set()
    old, same = await asyncio.gather(*users)
    assert old is same
    new = await pool.acquire(A)
    assert new is not old
    assert len(pool) == 2
    assert set(map(id, pool.clients())) == {id(old), id(new)}
    pool.release(A, old)
    assert [old.closed, new.closed] == [0, 0]
    pool.release(A, old)
    assert [old.closed, new.closed] == [1, 0]
    pool.release(A, new)
    assert [old.closed, new.closed] == [1, 0]  # it is kept for a while
    pool.retire()
    assert [old.closed, new.closed] == [1, 1]
    assert len(pool) == 0


@pytest.mark.parametrize("fails", [True, False])
async def test_a_retired_attempt_is_not_kept(fails: bool) -> None:
    factory = Factory(failures=[0] if fails else [])
    pool = ConnectionPool(factory)
    user = asyncio.ensure_future(pool.acquire(A))
    await turns()
    pool.retire()
    if fails:
        factory.proceed.set()
    else:
        user.cancel()
    with pytest.raises((ConnectFailed, asyncio.CancelledError)):
        await user
    assert len(pool) == 0


async def test_close_ends_retired_clients() -> None:
    pool = ConnectionPool(Factory(at_once=True))
    client = await pool.acquire(A)
    pool.retire()
    pool.close()
    assert client.closed == 1
    assert len(pool) == 0


@pytest.mark.parametrize("per_peer", [2, 3])
async def test_users_are_spread_evenly_over_the_connections_of_each_peer(per_peer: int) -> None:
    factory = Factory(at_once=True)
    pool = ConnectionPool(factory, per_peer)
    taken: dict[Address, list[FakeClient]] = {A: [], B: []}
    for _ in range(2 * per_peer):  # alternating, as a gate over two peers asks
        for address in (A, B):
            taken[address].append(await pool.acquire(address))
    for clients in taken.values():
        counts = [clients.count(client) for client in set(clients)]
        assert counts == [2] * per_peer
    assert len(pool) == 2 * per_peer
    for address, clients in taken.items():
        for client in clients:
            pool.release(address, client)
    assert len(pool) == 0
    assert [client.closed for client in factory.clients] == [1] * (2 * per_peer)


async def test_close_ends_clients_and_attempts_with_an_error_and_not_a_cancellation() -> None:
    factory = Factory(at_once=True)
    pool = ConnectionPool(factory)
    client = await pool.acquire(A)
    factory.proceed.clear()
    waiting = [asyncio.ensure_future(pool.acquire(B)) for _ in range(2)]
    await turns()
    pool.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectFailed] * 2
    assert client.closed == 1
    assert factory.cancelled == 1
    pool.release(A, client)
    with pytest.raises(ConnectFailed):
        await pool.acquire(A)
    assert len(pool) == 0


async def test_a_user_cancelled_while_the_pool_closes_is_cancelled() -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    user = asyncio.ensure_future(pool.acquire(A))
    await turns()
    pool.close()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user


async def test_a_pool_tells_whether_the_next_user_connects() -> None:
    factory = Factory(at_once=True)
    pool = ConnectionPool(factory, connections_per_peer=2)
    assert pool.connects(A)
    first = await pool.acquire(A)
    assert pool.connects(A)  # there may be a second one
    second = await pool.acquire(A)
    assert not pool.connects(A)
    assert pool.connects(B)
    assert (pool.clients(A), pool.clients(B)) == ([first, second], [])
    first.close()
    assert pool.connects(A)
    pool.close()


async def test_an_attempt_under_way_is_joined() -> None:
    factory = Factory()
    pool = ConnectionPool(factory)
    waiting = asyncio.ensure_future(pool.acquire(A))
    await turns()
    assert not pool.connects(A)
    waiting.cancel()
    await turns()
    assert pool.connects(A)
