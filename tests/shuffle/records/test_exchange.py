"""Records from task to task: through pipelined partitions, gates, and between TaskManagers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.output_flusher import OutputFlusher
from sluice.shuffle.partition.partition_type import ResultPartitionType, pool_bounds
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import TaskManagerChannelOpener
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment

TIMEOUT_SECONDS = 30
KEY = ShuffleKey("app", 1)
ATTEMPT = 7
NUMBERS = range(3000)


def record(number: int) -> bytes:
    """Make a record: every 100th spans segments; the first 4 bytes are the key."""
    length = 3 * SEGMENT_SIZE_BYTES if number % 100 == 0 else number % 40
    return number.to_bytes(4, "big") + bytes([number % 251]) * length


def pool_of(network_pool: NetworkBufferPool, num_subpartitions: int) -> LocalBufferPool:
    bounds = pool_bounds(ResultPartitionType.PIPELINED_BOUNDED, num_subpartitions, 2, 4)
    return network_pool.create_local_pool("partition", *bounds)


async def write(writer: RecordWriter[bytes], records: Sequence[bytes], batch: int) -> None:
    for start in range(0, len(records), batch):
        if batch == 1:
            pending = writer.emit(records[start])
        else:
            pending = writer.emit_batch(records[start : start + batch])
        if pending is not None:
            await pending
    await writer.finish()


async def read(reader: RecordReader[bytes], batch: int) -> list[bytes]:
    found: list[bytes] = []
    while not reader.is_ended:
        element = await (reader.next() if batch == 1 else reader.read_batch())
        if isinstance(element, ChannelRecord):
            found.append(element.value)
        elif isinstance(element, ChannelRecords):
            found += element.values
    reader.close()
    return found


@contextlib.asynccontextmanager
async def pipelined(
    environment: NetworkEnvironment, num_subpartitions: int, interval_seconds: float
) -> AsyncIterator[PipelinedResultPartition]:
    """Make a partition that consumers can request from the TaskManager."""
    flusher = OutputFlusher(interval_seconds)
    partition = PipelinedResultPartition(
        "partition",
        num_subpartitions,
        pool_of(environment.network_pool, num_subpartitions),
        flusher=flusher,
    )
    environment.partitions.register_pipelined(KEY, ATTEMPT, partition, partition.fail)
    try:
        yield partition
    finally:
        environment.partitions.unregister_pipelined(KEY, ATTEMPT, partition)
        partition.release()
        flusher.close()


@contextlib.asynccontextmanager
async def reading(
    reader: NetworkEnvironment, source: NetworkEnvironment, subpartition: int
) -> AsyncIterator[RecordReader[bytes]]:
    name = f"gate {subpartition}"
    read_pool = ReadPool(reader.network_pool, "not used", 1)
    wanted = SubpartitionRange(KEY, subpartition, subpartition + 1)
    gate = InputGate(TaskManagerChannelOpener(name, reader.gate_services, wanted, read_pool))
    gate.add_channel(ChannelSource(source.taskmanager_id, source.address, [ATTEMPT]))
    try:
        yield RecordReader(gate, BytesSerializer(), 1)
    finally:
        gate.release()


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("interval_seconds", [0, 0.005, -1])
async def test_from_task_to_task(tmp_path: Path, batch: int, interval_seconds: float) -> None:
    """Selector, serializer, segment, flush, the receiver's segment, gate, function."""
    records = [record(number) for number in NUMBERS]
    key = HashSelector[bytes](lambda each: each[:4])
    key.setup(4)
    expected: list[list[bytes]] = [[], [], [], []]
    for each in records:
        expected[key.select(each)].append(each)
    async with (
        mini_cluster(tmp_path, 2) as cluster,
        pipelined(cluster[0], 4, interval_seconds) as partition,
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        readers = [
            await stack.enter_async_context(reading(cluster[index % 2], cluster[0], index))
            for index in range(4)
        ]
        writer = RecordWriter(
            partition,
            BytesSerializer(),
            HashSelector(lambda each: each[:4]),
            buffer_timeout_seconds=interval_seconds,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(writer, records, batch))
            found = [tasks.create_task(read(each, batch)) for each in readers]
        for index in range(4):
            assert found[index].result() == expected[index]


@pytest.mark.parametrize("interval_seconds", [0, 0.005, -1])
async def test_the_buffer_timeout_decides_when_a_record_is_sent(
    tmp_path: Path, interval_seconds: float
) -> None:
    """At once with a timeout of 0; after the interval; with -1 when the buffer is full."""
    async with (
        mini_cluster(tmp_path, 2) as cluster,
        pipelined(cluster[0], 1, interval_seconds) as partition,
        reading(cluster[1], cluster[0], 0) as reader,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        writer = RecordWriter(partition, BytesSerializer(), buffer_timeout_seconds=interval_seconds)
        first = asyncio.ensure_future(reader.next())
        assert writer.emit(b"first") is None
        if interval_seconds >= 0:
            assert await first == ChannelRecord(0, b"first")
            assert writer.emit(b"second") is None
            assert await reader.next() == ChannelRecord(0, b"second")
        else:
            filling = bytes(SEGMENT_SIZE_BYTES - 2 * 4 - len(b"first"))
            assert partition.status().buffers_out == 0
            assert writer.emit(filling) is None
            assert await first == ChannelRecord(0, b"first")
            assert await reader.next() == ChannelRecord(0, filling)
            assert partition.status().buffers_out == 1
        reader.close()


async def test_a_reader_that_does_not_read_stops_the_writer(tmp_path: Path) -> None:
    """The pools bound the records under way; then both go on."""
    content = [number.to_bytes(4, "big") * 250 for number in range(400)]
    async with (
        mini_cluster(tmp_path, 2) as cluster,
        pipelined(cluster[0], 1, 0.005) as partition,
        reading(cluster[1], cluster[0], 0) as reader,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        writer = RecordWriter(partition, BytesSerializer())
        emitted, pending = 0, None
        while pending is None:
            pending = writer.emit(content[emitted])
            emitted += 1
        # Nothing has been sent so far: the loop has not run. One record is cut by the end.
        held_bytes = partition.status().limit_segments * SEGMENT_SIZE_BYTES
        assert emitted == held_bytes // 1004 + 1
        reads = asyncio.ensure_future(read(reader, 1))
        await pending
        await write(writer, content[emitted:], 1)
        assert await reads == content
