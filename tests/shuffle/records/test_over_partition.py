"""Writer and reader on the two sides of a real pipelined partition, without a network."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from sluice.protocol.events import CustomEvent, EndOfPartition
from sluice.shuffle.dataflow.operator_outputs import RecordWriterOutput
from sluice.shuffle.dataflow.stream_elements import StreamElementSerializer, StreamRecord, Watermark
from sluice.shuffle.errors import WriterUnusable
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.record_reader import ChannelRecord, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer

if TYPE_CHECKING:
    from collections.abc import Iterator


T = TypeVar("T")

TIMEOUT_SECONDS = 60
SUBPARTITIONS = 3


class ViewGate:
    """A gate over one subpartition, with unlimited credit."""

    def __init__(self, partition: PipelinedResultPartition, index: int = 0) -> None:
        self._told = asyncio.Event()
        self.view = partition.create_view(index, self._told.set)

    def poll(self) -> BufferOrEvent | None:
        buffer = self.view.next_buffer(1)
        return None if buffer is None else BufferOrEvent(0, buffer)

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        while (taken := self.poll()) is None:
            self._told.clear()
            await self._told.wait()
        return taken


@contextmanager
def partition_of(
    segment_bytes: int, segments: int, num_subpartitions: int = SUBPARTITIONS
) -> Iterator[PipelinedResultPartition]:
    network_pool = NetworkBufferPool(segments, segment_bytes)
    pool = network_pool.create_local_pool("partition", segments, segments)
    partition = PipelinedResultPartition("partition", num_subpartitions, pool)
    try:
        yield partition
    finally:
        partition.release()
        free = network_pool.available_segments
        network_pool.destroy()
    assert free == segments, "segments were lost"


def reader_of(partition: PipelinedResultPartition, index: int) -> RecordReader[bytes]:
    return RecordReader(ViewGate(partition, index), BytesSerializer(), 1)


async def read_all(reader: RecordReader[T]) -> list[object]:
    found: list[object] = []
    async for element in reader:
        found.append(element.value if isinstance(element, ChannelRecord) else element.event)
    reader.close()
    return found


@pytest.mark.parametrize("timeout_seconds", [0, -1])
@pytest.mark.parametrize(("segment_bytes", "segments"), [(7, 3), (64, 4), (4096, 8)])
async def test_broadcast_unicast_and_events_by_turns(segment_bytes, segments, timeout_seconds):
    """With few segments the writer waits all the time, and the open buffers must not block it."""
    chance = random.Random(segment_bytes)
    expected: list[list[object]] = [[] for _ in range(SUBPARTITIONS)]
    with partition_of(segment_bytes, segments) as partition:
        readers = [reader_of(partition, index) for index in range(SUBPARTITIONS)]
        writer = RecordWriter(partition, BytesSerializer(), buffer_timeout_seconds=timeout_seconds)
        async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read_all(reader)) for reader in readers]
            for number in range(400):
                subpartition = chance.choice([ALL_SUBPARTITIONS, 0, 1, 2])
                targets = range(3) if subpartition == ALL_SUBPARTITIONS else [subpartition]
                if chance.random() < 0.1:
                    event = CustomEvent("", b"%d" % number)
                    writer.emit_event(event, subpartition)
                    for index in targets:
                        expected[index].append(event)
                    continue
                records = [
                    bytes([number % 256]) * chance.choice([0, 3, 60, 200])
                    for _ in range(chance.choice([1, 1, 5]))
                ]
                if len(records) == 1:
                    pending = writer.emit_to(records[0], subpartition)
                else:
                    pending = writer.emit_batch(records, subpartition)
                if pending is not None:
                    await pending
                for index in targets:
                    expected[index] += records
            await writer.finish()
        for index in range(SUBPARTITIONS):
            found = reads[index].result()
            assert isinstance(found[-1], EndOfPartition)
            assert found[:-1] == expected[index]


async def test_a_record_cut_off_by_a_cancelled_wait_never_reaches_a_reader():
    with partition_of(16, 2, 1) as partition:
        reader = reader_of(partition, 0)
        writer = RecordWriter(partition, BytesSerializer())
        assert writer.emit(b"whole") is None
        pending = writer.emit(bytes(100))
        assert pending is not None
        task = asyncio.ensure_future(pending)
        await asyncio.sleep(0)  # it waits for a buffer now
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(WriterUnusable, match="interrupted"):
            await read_all(reader)
        with pytest.raises(WriterUnusable):
            writer.emit(b"")
        reader.close()


async def test_elements_of_a_chain_through_a_partition():
    """The next task reads the elements that the last output of a chain writes."""
    elements = StreamElementSerializer(BytesSerializer())
    with partition_of(64, 6, 2) as partition:
        readers = [RecordReader(ViewGate(partition, index), elements, 1) for index in range(2)]
        writer = RecordWriter(partition, elements)
        output = RecordWriterOutput(writer)
        async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read_all(reader)) for reader in readers]
            for number in range(20):
                pending = output.collect(StreamRecord(b"%d" % number, number))
                if pending is not None:
                    await pending
                if (pending := output.emit_watermark(Watermark(number))) is not None:
                    await pending
            await writer.finish()
        for index in range(2):
            expected: list[object] = []
            for number in range(20):
                if number % 2 == index:
                    expected.append(StreamRecord(b"%d" % number, number))
                expected.append(Watermark(number))
            assert reads[index].result()[:-1] == expected
