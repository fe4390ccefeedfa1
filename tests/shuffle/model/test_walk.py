"""The walk of one record through both pools, and back pressure across TaskManagers."""

from __future__ import annotations

import asyncio
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import TYPE_CHECKING, Any

from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord
from sluice.shuffle.records.serializers import ViewSerializer
from tests.shuffle.model.rig import (
    EXCLUSIVE,
    FULL_RECORD_BYTES,
    PATIENCE_SECONDS,
    POOL_2,
    Pipe,
    full_record,
    pipe,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually

if TYPE_CHECKING:
    from collections.abc import Coroutine

MUCH_CREDIT = 1000
STUCK_SECONDS = 0.3
"""Without a buffer for so long the producer counts as stopped; a turn takes well below 1 ms."""


async def test_the_walk_of_record_a(tmp_path):
    """Fill, transfer, deserialize, recycle: where its bytes are at each step, and who pays."""
    async with (
        pipe(tmp_path, 3, serializer=ViewSerializer()) as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        assert (between.held_1, between.held_2, between.credit) == (0, 0, EXCLUSIVE)

        # Fill: the record is in a buffer of pool 1, and stays because the buffer is not full.
        record_a = b"A" * 100
        assert between.writer.emit(record_a) is None
        await asyncio.sleep(0)
        assert (between.held_1, between.held_2) == (1, 0)
        assert between.partition.has_open_buffers
        assert not between.gate.is_available

        # Transfer: a flush lets it go, into a buffer of pool 2, for one credit. The buffer of pool
        # 1 is still open: more records may follow in it.
        between.writer.flush_all()
        await between.gate.wait_available()
        assert (between.held_1, between.held_2, between.queued) == (1, 1, 1)
        assert between.credit == EXCLUSIVE - 1

        # Deserialize: the user function sees the segment's own bytes.
        element = await between.reader.next()
        assert isinstance(element, ChannelRecord)
        assert isinstance(element.value, memoryview)
        assert element.value == record_a
        assert (between.held_2, between.queued) == (1, 0)

        # Recycle: the segment is free for others, and becomes credit of the sender.
        wanted = asyncio.ensure_future(between.reader.next())
        await eventually(lambda: between.credit == EXCLUSIVE, "the credit to come back")
        assert (between.held_1, between.held_2) == (1, 0)

        # The rest of pool 1's buffer goes the same way, and then it is free as well.
        assert between.writer.emit(b"B" * (FULL_RECORD_BYTES - 4 - len(record_a))) is None
        after = await wanted
        assert isinstance(after, ChannelRecord)
        assert len(after.value) == FULL_RECORD_BYTES - 4 - len(record_a)
        await between.until(held_1=0, held_2=1)

        await between.writer.finish()
        assert isinstance(await between.reader.next(), ChannelEvent)
        assert between.reader.is_ended
        await between.until(held_1=0, held_2=0)


async def test_a_slow_consumer_step_by_step(tmp_path):
    """It exhausts pool 2, then pool 1, then stops the producer; reading undoes each step."""
    segments = 3
    async with pipe(tmp_path, segments) as between, asyncio.timeout(PATIENCE_SECONDS):
        written = 0
        pending: Coroutine[Any, Any, None] | None = None

        def write() -> bool:
            nonlocal written, pending
            pending = between.writer.emit(full_record(written))
            written += 1
            return pending is None

        for number in range(POOL_2):  # into pool 2: exclusive buffers, then floating ones
            assert write()
            await between.until(held_1=0, held_2=number + 1)
        assert between.credit == 0
        for number in range(segments):  # then they stay in pool 1
            assert write()
            assert (between.held_1, between.held_2) == (number + 1, POOL_2)
        assert not between.writer.is_available
        assert between.sender.view is not None
        assert between.sender.view.backlog == segments
        assert not write()  # then the producer stops
        assert pending is not None
        producing = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        assert not producing.done()
        assert between.pool_1.waiting_listeners == 1

        # One record read is one buffer of pool 2 free, one credit, one buffer of pool 1 free: the
        # producer goes on.
        assert await between.reader.next() == ChannelRecord(0, full_record(0))
        await producing
        for number in range(1, written):
            assert await between.reader.next() == ChannelRecord(0, full_record(number))
        await between.until(held_1=0, held_2=0)
        assert between.writer.is_available
        assert between.pool_1.waiting_listeners == 0
        await eventually(lambda: between.credit >= EXCLUSIVE, "all credit")
        await between.writer.finish()
        assert isinstance(await between.reader.next(), ChannelEvent)


async def test_floating_buffers_come_with_the_backlog_and_go(tmp_path):
    """Exhausted, pool 2 has exclusive and floating buffers; idle, only exclusive ones."""
    segments = 2 * POOL_2
    async with pipe(tmp_path, segments) as between, asyncio.timeout(PATIENCE_SECONDS):
        for number in range(segments):
            assert between.writer.emit(full_record(number)) is None
        await between.until(held_1=segments - POOL_2, held_2=POOL_2)
        assert between.credit == 0
        await eventually(lambda: between.queued == POOL_2, "all buffers of pool 2 in the queue")
        for number in range(segments):
            assert await between.reader.next() == ChannelRecord(0, full_record(number))
        await between.until(held_1=0, held_2=0)
        await between.writer.finish()
        assert isinstance(await between.reader.next(), ChannelEvent)


async def write_until_stuck(between: Pipe) -> tuple[int, asyncio.Task[None]]:
    """Write full records until the producer waits for a buffer that does not come."""
    written = 0
    while True:
        pending = between.writer.emit(full_record(written))
        written += 1
        if pending is None:
            continue
        producing = asyncio.ensure_future(pending)
        done, _ = await asyncio.wait([producing], timeout=STUCK_SECONDS)
        if not done:
            return written, producing


async def read_all(between: Pipe, written: int) -> None:
    """Read everything, and check that the back pressure ends."""
    for number in range(written):
        assert await between.reader.next() == ChannelRecord(0, full_record(number))
    await between.until(held_1=0, held_2=0)
    await between.writer.finish()
    assert isinstance(await between.reader.next(), ChannelEvent)


async def test_credit_carries_back_pressure_between_task_managers(tmp_path):
    """The socket is free for others; this channel has no credit."""
    segments = 3
    async with pipe(tmp_path, segments) as between, asyncio.timeout(PATIENCE_SECONDS):
        written, producing = await write_until_stuck(between)
        assert written == segments + POOL_2 + 1
        assert between.connection.writable
        assert between.credit == 0
        await read_all(between, written)
        await producing


def shrink_socket_buffers(between: Pipe) -> asyncio.Transport:
    """Make the kernel buffer little; return the receiving transport."""
    (client,) = between.cluster[1].peers.clients()
    receiving, sending = client.connection._transport, between.connection._transport
    assert receiving is not None
    assert sending is not None
    small = SEGMENT_SIZE_BYTES
    receiving.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, small)
    sending.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, small)
    return receiving


async def test_without_credit_the_socket_carries_it_alone(tmp_path):
    """Watermark mode: a receiver without memory does not read, and the sender fills up."""
    segments = 3
    async with (
        pipe(tmp_path, segments, flow_control="watermark") as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        shrink_socket_buffers(between)
        written, producing = await write_until_stuck(between)
        assert not between.connection.writable
        assert (between.held_1, between.held_2) == (segments, POOL_2)
        assert written > segments + POOL_2 + 1, "some are in the kernel"
        await read_all(between, written)
        await producing


async def test_the_socket_carries_back_pressure_between_task_managers(tmp_path):
    """There is credit, but the network takes no more: the producer stops."""
    segments = 3
    async with (
        pipe(
            tmp_path, segments, exclusive_buffers_per_channel=MUCH_CREDIT, network_segments=2048
        ) as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        receiving = shrink_socket_buffers(between)
        receiving.pause_reading()
        written, producing = await write_until_stuck(between)
        assert written < MUCH_CREDIT
        assert not between.connection.writable
        assert between.credit > 0
        assert between.held_1 == segments
        assert between.held_2 == 0
        receiving.resume_reading()
        await producing
        await read_all(between, written)
