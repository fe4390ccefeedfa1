"""The record writer when the partition has no buffer: waiting, refusing, cancelling."""

import asyncio
import inspect
import struct
from collections.abc import Awaitable

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import EndOfData
from sluice.shuffle.errors import PartitionReleased, WriterUnusable
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.fake_partition import FakePartition
from tests.support.raises_code import raises_code

TIMEOUT_SECONDS = 60


def frame(record: bytes) -> bytes:
    return struct.pack(">I", len(record)) + record


def writer_of(partition: FakePartition, **options) -> RecordWriter:
    return RecordWriter(partition, BytesSerializer(), **options)


async def waiting(pending: Awaitable[None] | None, partition: FakePartition) -> asyncio.Task[None]:
    """Start to await the result of a call, up to its wait for a buffer."""
    assert pending is not None
    task = asyncio.ensure_future(pending)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await partition.writer_waits.wait()
    partition.writer_waits.clear()
    return task


async def read_until_done(task: asyncio.Task[None], partition: FakePartition) -> list[bytes]:
    """Read whenever the writer waits, and at last; return the data of each subpartition."""
    streams = [b""] * partition.num_subpartitions
    task.add_done_callback(lambda _: partition.writer_waits.set())
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            partition.finish_open()  # as a real partition does when it has no buffer left
            for index in range(partition.num_subpartitions):
                streams[index] += partition.stream(index)
            if task.done():
                break
            await partition.writer_waits.wait()
            partition.writer_waits.clear()
    await task
    return streams


async def test_the_rest_is_written_when_a_buffer_comes():
    partition = FakePartition(segment_bytes=8, buffers=1)
    writer = writer_of(partition)
    task = await waiting(writer.emit(bytes(range(20))), partition)
    assert await read_until_done(task, partition) == [frame(bytes(range(20)))]
    assert writer.emit(b"") is None, "the writer goes on"


async def test_a_batch_waits_for_buffers_and_goes_on_where_it_stopped():
    partition = FakePartition(3, segment_bytes=8, buffers=2)
    writer = writer_of(partition)
    records = [bytes([number]) * 3 for number in range(30)]
    task = await waiting(writer.emit_batch(records), partition)
    streams = await read_until_done(task, partition)
    for index in range(3):
        assert streams[index] == b"".join(map(frame, records[index::3]))


async def test_a_record_that_waited_is_flushed():
    partition = FakePartition(2, buffers=0)
    writer = writer_of(partition, buffer_timeout_seconds=0)
    task = await waiting(writer.emit_batch([b"a", b"b"], [1, 0]), partition)
    assert partition.flushed == []
    partition.give(2)
    await task
    assert partition.flushed == [1, 0]


async def test_a_call_before_the_previous_one_was_awaited_is_refused():
    partition = FakePartition(buffers=0)
    writer = writer_of(partition)
    pending = writer.emit(b"a")
    for call in (
        lambda: writer.emit(b"b"),
        lambda: writer.emit_batch([b"b"]),
        lambda: writer.broadcast_emit(b"b"),
        lambda: writer.random_emit(b"b"),
        lambda: writer.broadcast_event(EndOfData()),
    ):
        with raises_code(ErrorCode.INTERNAL, "The previous call .*Await"):
            call()
    with raises_code(ErrorCode.INTERNAL, "The previous call .*Await"):
        await writer.finish()
    assert not writer.is_available
    writer.flush_all()  # is always allowed
    task = await waiting(pending, partition)
    with raises_code(ErrorCode.INTERNAL, "The previous call .*Await"):
        writer.emit(b"b")
    partition.give(1)
    await task
    assert writer.emit(b"b") is None
    assert partition.stream() == frame(b"a") + frame(b"b")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("started", [True, False])
async def test_what_is_cancelled_before_a_part_is_written_was_not_emitted(started, batch):
    partition = FakePartition(2, buffers=0)
    writer = writer_of(partition)
    pending = writer.emit_batch([b"a", b"b"], [0, 1]) if batch else writer.emit_to(b"a", 0)
    assert pending is not None
    task = await waiting(pending, partition) if started else asyncio.ensure_future(pending)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    partition.give(1)
    assert writer.emit_to(b"c", 1) is None
    assert [partition.stream(index) for index in range(2)] == [b"", frame(b"c")]
    assert partition.failures == []


@pytest.mark.parametrize("started", [True, False])
async def test_a_cancel_in_the_middle_of_a_record_fails_the_writer(started):
    partition = FakePartition(segment_bytes=8, buffers=1)
    writer = writer_of(partition)
    pending = writer.emit(bytes(10))
    assert pending is not None
    if started:
        task = await waiting(pending, partition)
    else:
        task = asyncio.ensure_future(pending)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(WriterUnusable, match="in the middle of a record"):
        writer.emit(b"b")
    assert [type(error) for error in partition.failures] == [WriterUnusable]
    assert "value 8, limit 14" in str(partition.failures[0])
    with pytest.raises(WriterUnusable):
        await writer.finish()
    partition.read()
    assert partition.free == 1


@pytest.mark.parametrize("first_whole", [True, False])
async def test_a_cancel_in_the_middle_of_a_batch_fails_the_writer(first_whole):
    """Some records are written, at least in part, and the caller cannot tell which."""
    partition = FakePartition(2, segment_bytes=8, buffers=1)
    writer = writer_of(partition)
    records = [bytes(4), b"x"] if first_whole else [bytes(5), b"x"]
    task = await waiting(writer.emit_batch(records, [0, 1]), partition)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(WriterUnusable):
        writer.emit(b"b")


@pytest.mark.parametrize("begun", [False, True])
async def test_the_partition_fails_while_the_writer_waits(begun):
    partition = FakePartition(segment_bytes=8, buffers=int(begun))
    writer = writer_of(partition)
    task = await waiting(writer.emit(bytes(20)), partition)
    partition.fail(PartitionReleased("gone"))
    with pytest.raises(PartitionReleased):
        await task
    with pytest.raises(WriterUnusable if begun else PartitionReleased, match="gone"):
        writer.emit(b"b")


async def test_fail_before_the_awaitable_is_awaited():
    partition = FakePartition(buffers=0)
    writer = writer_of(partition)
    pending = writer.emit(b"a")
    assert pending is not None
    writer.fail(PartitionReleased("gone"))
    assert inspect.getcoroutinestate(pending) == inspect.CORO_CLOSED
    with pytest.raises(WriterUnusable, match="gone"):
        writer.emit(b"b")


async def test_fail_by_another_task_while_the_writer_waits():
    partition = FakePartition(segment_bytes=8, buffers=1)
    writer = writer_of(partition)
    task = await waiting(writer.emit(bytes(20)), partition)
    writer.fail(PartitionReleased("gone"))
    with pytest.raises(PartitionReleased):
        await task
    with pytest.raises(WriterUnusable, match="gone"):
        writer.emit(b"b")
    partition.read()
    assert partition.free == 1
