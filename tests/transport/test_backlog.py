"""What a peer leaves unread, and who gives way when all connections together have too much."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.control_memory import ControlMemory
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.limits import MAX_CONTROL_BYTES
from sluice.protocol.schema import BeginRegion, ErrorResponse, HelloAck, Ping, Pong, encode
from sluice.transport.access import Accepting, Access
from sluice.transport.backlog import (
    MAX_UNREAD_ANSWERS_BYTES,
    MAX_UNREAD_PONGS,
    MAX_UNSENT_REQUESTS_BYTES,
    Backlog,
)
from sluice.transport.connection import Connection
from sluice.transport.errors import ConnectionLost
from sluice.transport.write_side import WriteSide
from tests.support.memory_transport import MemoryTransport
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    a_config,
    a_producer,
    a_service,
    an_ack,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.peers import Service

LONG = BeginRegion(1, 0, 0, [2**40] * 120_000, 7)
"""A message of a megabyte and a little more."""


def unexpected(error: SluiceError) -> None:
    raise AssertionError(f"evicted: {error}")


# ---- the count -------------------------------------------------------------------------------


@pytest.fixture
async def out() -> WriteSide:
    return WriteSide(100, 200)


@pytest.mark.parametrize(
    ("accepted", "most"), [(True, MAX_UNREAD_ANSWERS_BYTES), (False, MAX_UNSENT_REQUESTS_BYTES)]
)
async def test_each_side_has_its_limit(out: WriteSide, accepted: bool, most: int) -> None:
    backlog = Backlog(accepted=accepted)
    out.backlog_bytes = most
    assert backlog.refusal(out) is None
    out.backlog_bytes += 1
    error = backlog.refusal(out)
    assert isinstance(error, ConnectionLost)
    assert (error.value, error.limit) == (most + 1, most)
    assert "does not read" in error.message
    assert error.remedy


async def test_unread_bytes_are_reserved_in_the_budget_until_they_are_read(out: WriteSide) -> None:
    budget = ControlMemory(100_000)
    backlog = Backlog(accepted=True)
    backlog.count_in(budget, "app", unexpected)
    for unread in (1, 5000, 50_000):
        out.backlog_bytes = unread
        assert backlog.refusal(out) is None
        assert unread <= budget.used_bytes < unread + 5000
    backlog.cleared()
    assert budget.used_bytes == 0
    out.backlog_bytes = 10
    assert backlog.refusal(out) is None
    assert budget.used_bytes > 0
    backlog.close()
    assert budget.used_bytes == 0


async def test_without_room_in_the_budget_the_peer_is_refused(out: WriteSide) -> None:
    budget = ControlMemory(10_000)
    backlog = Backlog(accepted=True)
    backlog.count_in(budget, "app", unexpected)
    out.backlog_bytes = 10_001
    error = backlog.refusal(out)
    assert error is not None
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert error.limit == 10_000
    assert budget.used_bytes == 0


# ---- a connection ----------------------------------------------------------------------------


def accepted_connection(budget: ControlMemory) -> Connection:
    access = Access(allow_anonymous=True)
    return Connection(
        a_config(),
        SEGMENT,
        RecordingHandler,
        accepting=Accepting(an_ack(), access, control_memory=budget),
    )


async def test_one_pong_too_many_ends_the_connection() -> None:
    budget = ControlMemory(MAX_CONTROL_BYTES)
    connection = accepted_connection(budget)
    transport = MemoryTransport(connection)
    assert await transport.feed(encode(a_producer()))
    transport.hold()
    number = 0
    while connection.writable:
        assert await transport.feed(encode(Ping(number)))
        number += 1
    handler = connection._handler
    assert isinstance(handler, RecordingHandler)
    for _ in range(MAX_UNREAD_PONGS):
        assert await transport.feed(encode(Ping(number)))
        number += 1
    assert not connection.closing
    # Every Ping has its Pong, in order.
    pongs = b"".join(encode(Pong(each)) for each in range(number))
    assert connection.write_buffer_bytes == len(pongs)
    assert budget.used_bytes > 0
    await transport.feed(encode(Ping(number)))
    await until(lambda: transport.lost)
    (error,) = handler.lost
    assert (error.value, error.limit) == (MAX_UNREAD_PONGS + 1, MAX_UNREAD_PONGS)
    assert budget.used_bytes == 0


async def test_a_peer_that_reads_again_may_leave_as_many_pongs_unread() -> None:
    connection = accepted_connection(ControlMemory(MAX_CONTROL_BYTES))
    transport = MemoryTransport(connection)
    assert await transport.feed(encode(a_producer()))
    for _ in range(5):
        transport.hold()
        while connection.writable:
            assert await transport.feed(encode(Ping(1)))
        assert await transport.feed(encode(Ping(1)) * MAX_UNREAD_PONGS)
        transport.flow()
        assert connection.writable
    assert not connection.closing
    await transport.end()


# ---- all connections together ----------------------------------------------------------------


@contextlib.asynccontextmanager
async def producers(service: Service, names: list[str]) -> AsyncIterator[list[RawPeer]]:
    """Give connections of applications."""
    with contextlib.ExitStack() as stack:
        peers = []
        for name in names:
            peer = stack.enter_context(await RawPeer.connect(service.address))
            ack = await peer.shake_hands(role=a_producer().role, application_id=name)
            assert type(ack) is HelloAck
            peers.append(peer)
        yield peers


async def test_long_messages_of_one_application_do_not_stop_those_of_another() -> None:
    """Each of the greedy one's messages is begun and never finished."""
    config = a_config(max_control_memory_bytes=MAX_CONTROL_BYTES)
    data = encode(LONG)
    assert len(data) > 2**20
    async with a_service(config) as service:
        budget = service.listener.control_memory
        async with producers(service, ["greedy"] * 4 + ["modest"]) as (*greedy, modest):
            for peer in greedy[:3]:
                await peer.send(data[:-1])
            held = 3 * (len(data) - 8)
            await until(lambda: budget.used_bytes == held)
            await modest.send(data)
            handler = await service.handler(4)
            await handler.until(lambda: handler.received)
            assert handler.received == [(LONG, b"")]
            # One of the greedy application's was closed, with the reason.
            await until(lambda: budget.used_bytes <= held)
            answers = {asyncio.ensure_future(peer.read_frame()): peer for peer in greedy[:3]}
            done, pending = await asyncio.wait(
                answers, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            (answered,) = done
            answers[answered].sock.close()
            (answer, _) = answered.result()
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.LIMIT_EXCEEDED
            assert answer.retryable
            assert answer.limit == str(MAX_CONTROL_BYTES)
            assert "max_control_memory_bytes" in answer.message
            await until(lambda: any(each.lost for each in service.handlers))
            (lost,) = [error for each in service.handlers for error in each.lost]
            assert lost.code is ErrorCode.LIMIT_EXCEEDED
        await until(lambda: not service.listener.connections)
        assert budget.used_bytes == 0
        assert budget.refused_total == 1
