"""One record, and one full stack of buffers, on their way between two tasks of the public API."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer, ViewSerializer
from tests.support.api_clients import emitted, give_back
from tests.support.mini_cluster import eventually
from tests.support.tasks import EVERY_SOURCE, ended, full_record, is_stuck

REMOTE = pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
ONLY_FULL = -1
SEGMENTS = 3


def lent(partition) -> int:
    """Return the number of the partition's buffers in use: pool 1."""
    return int(partition.writer.memory.pool.lent_segments)


async def filled(writer, capacity: int) -> asyncio.Future[None]:
    """Write as many full records as there is room for, and another; return its emit."""
    for number in range(capacity):
        await emitted(writer.emit(full_record(number)))
    pending = writer.emit(full_record(capacity))
    assert pending is not None
    emitting = asyncio.ensure_future(pending)
    assert await is_stuck(emitting)
    return emitting


@REMOTE
@EVERY_SOURCE
async def test_a_record_walks_through_both_pools(tmp_path, tasks_from, remote):
    """Fill, flush, transfer, deserialize in place, recycle: a segment of each pool in turn."""
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(ViewSerializer())
        # Fill: the record is in a buffer of pool 1, and stays because the buffer is not full.
        assert writer.emit(b"A" * 100) is None
        for _ in range(3):
            await asyncio.sleep(0)
        assert lent(partition) == 1
        assert not gate.gate.is_available
        # Transfer: a flush lets it go, and the buffer stays open for more records.
        writer.flush_all()
        await gate.gate.wait_available()
        # Deserialize: the user function sees the segment's own bytes.
        element = await reader.next()
        assert isinstance(element, ChannelRecord)
        assert isinstance(element.value, memoryview)
        assert element.value == b"A" * 100
        assert lent(partition) == 1
        # Recycle: the rest of the buffer goes the same way, and then it is free.
        rest = b"B" * (len(full_record(0)) - 100 - 4)
        assert writer.emit(rest) is None
        element = await reader.next()
        assert isinstance(element, ChannelRecord)
        assert element.value == rest
        reader.close()
        await eventually(lambda: lent(partition) == 0, "the buffer of pool 1 to come back")
        assert await ended(partition, gate) == []


@REMOTE
@EVERY_SOURCE
async def test_a_full_stack_stops_the_producer_and_each_read_lets_it_go_on(
    tmp_path, tasks_from, remote
):
    """As many records are inside as there are buffers; one read makes room for one."""
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        emitting = await filled(writer, SEGMENTS + tasks.buffers_between)
        written = SEGMENTS + tasks.buffers_between + 1
        assert lent(partition) == SEGMENTS
        assert not writer.is_available
        assert not partition.writer.is_available
        for number in range(4):
            assert await reader.next() == ChannelRecord(0, full_record(number))
            await emitting
            pending = writer.emit(full_record(written))
            assert pending is not None, "room for one, and no more"
            emitting = asyncio.ensure_future(pending)
            written += 1
        for number in range(4, written):
            assert await reader.next() == ChannelRecord(0, full_record(number))
        await emitting
        await partition.writer.wait_available()
        await eventually(lambda: lent(partition) == 0, "all buffers of pool 1")
        assert partition.writer.memory.hard_back_pressured_seconds > 0
        assert await ended(partition, gate) == []


@REMOTE
@EVERY_SOURCE
async def test_the_stream_is_a_bounded_blocking_queue(tmp_path, tasks_from, remote):
    """In any order of puts and takes it holds and blocks as a queue of that capacity does."""
    choices = random.Random(5)
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        capacity = SEGMENTS + tasks.buffers_between
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        model: deque[int] = deque()
        putting: asyncio.Future[None] | None = None
        number = was_full = was_empty = 0

        async def take() -> None:
            element = await reader.next()
            assert element == ChannelRecord(0, full_record(model.popleft()))

        for step in range(120):
            is_blocked = len(model) > capacity
            if choices.random() < (0.9 if step // 40 % 2 == 0 else 0.1) and not is_blocked:
                if putting is not None:
                    await putting  # it is inside, or will be at once
                pending = writer.emit(full_record(number))
                putting = None if pending is None else asyncio.ensure_future(pending)
                model.append(number)
                number += 1
                if len(model) > capacity:
                    assert putting is not None
                    assert await is_stuck(putting)
                    was_full += 1
            elif model:
                await take()
                was_empty += not model
        assert was_full
        assert was_empty
        while model:
            await take()
        if putting is not None:
            await putting
        assert await ended(partition, gate) == []


@REMOTE
@EVERY_SOURCE
async def test_one_notification_is_enough_for_all_that_is_flushed(tmp_path, tasks_from, remote):
    """Records that are flushed before the reader comes are one buffer for it."""
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        assert writer.emit(b"opens the channel") is None
        writer.flush_all()
        taken = await gate.next_buffer_or_event()
        assert taken is not None
        give_back(taken.buffer)
        expected = b""
        for record in (b"first", b"second", b"third"):
            assert writer.emit(record) is None
            expected += len(record).to_bytes(4, "big") + record
            writer.flush_all()
            writer.flush(0)
        taken = await gate.next_buffer_or_event()
        assert taken is not None
        assert bytes(taken.buffer.payload) == expected
        give_back(taken.buffer)
        assert await ended(partition, gate) == []


@REMOTE
@EVERY_SOURCE
async def test_records_arrive_as_the_buffer_timeout_says(tmp_path, tasks_from, remote):
    """The flusher's at its interval, with 0 each at once, and negative only with their buffer."""
    settings = {"buffer_timeout_seconds": 0.1}
    async with (
        tasks_from(tmp_path, remote=remote, **settings) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, buffer_timeout_seconds=ONLY_FULL
        ) as only_full,
        tasks.producer.open_result_partition(1, 8, 1, buffer_timeout_seconds=0) as at_once,
        tasks.producer.open_result_partition(1, 9, 1) as flushed,
        tasks.consumer.open_gate([only_full.location], 0) as first,
        tasks.consumer.open_gate([at_once.location], 0) as second,
        tasks.consumer.open_gate([flushed.location], 0) as third,
    ):
        writers = [
            partition.record_writer(BytesSerializer())
            for partition in (only_full, at_once, flushed)
        ]
        readers = [gate.reader(BytesSerializer()) for gate in (second, third)]
        for number in range(2):
            record = b"%d" % number
            for writer in writers:
                assert writer.emit(record) is None
            assert not third.gate.is_available
            for reader in readers:
                assert await reader.next() == ChannelRecord(0, record)
        assert not first.gate.is_available
        assert lent(only_full) == 1
        assert await ended(only_full, first) == [b"\0\0\0\x010\0\0\0\x011"]
        assert await ended(at_once, second) == []
        assert await ended(flushed, third) == []


@REMOTE
@EVERY_SOURCE
async def test_a_reader_that_stops_stops_only_its_own_producer(tmp_path, tasks_from, remote):
    """Back pressure of one pair of tasks is not felt by another on the same connections."""
    records = 100
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(1, 7, 1, max_segments=SEGMENTS) as stopped,
        tasks.producer.open_result_partition(1, 8, 1, max_segments=SEGMENTS) as running,
        tasks.consumer.open_gate([stopped.location], 0) as unread,
        tasks.consumer.open_gate([running.location], 0) as gate,
    ):
        capacity = SEGMENTS + tasks.buffers_between
        emitting = await filled(stopped.record_writer(BytesSerializer()), capacity)

        async def write_all() -> None:
            writer = running.record_writer(BytesSerializer())
            for number in range(records):
                if (pending := writer.emit(full_record(number))) is not None:
                    await pending
            await running.finish()

        writing = asyncio.create_task(write_all())
        seen = [record async for record in gate.records(BytesSerializer())]
        assert seen == [full_record(number) for number in range(records)]
        await writing
        assert not emitting.done(), "it still waits"
        reader = unread.reader(BytesSerializer())
        for number in range(capacity + 1):
            assert await reader.next() == ChannelRecord(0, full_record(number))
        await emitting
        assert await ended(stopped, unread) == []
