"""Unaligned checkpoints from client to client: data is overtaken in clients and daemons."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.protocol.events import CheckpointBarrier
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord, captured_records
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import TASKS, api_clients, emitted, pipelined
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
PRODUCERS = 2
RECORDS_BETWEEN = 300
BARRIERS = 3


class Producer:
    """Writes records of all lengths to one partition, with barriers between."""

    def __init__(self, number: int) -> None:
        self.records: list[bytes] = []
        self.before: list[int] = []
        self._random = random.Random(number)
        self._number = number

    async def run(self, partition) -> None:
        writer = partition.record_writer(BytesSerializer())
        for checkpoint_id in range(BARRIERS + 1):
            for _ in range(self._random.randrange(RECORDS_BETWEEN)):
                length = self._random.choice((10, 100, 1000, 2 * SEGMENT_SIZE_BYTES))
                record = b"%d %d " % (self._number, len(self.records)) + bytes(length)
                await emitted(writer.emit(record))
                self.records.append(record)
            if checkpoint_id < BARRIERS:
                writer.emit_unaligned_barrier(checkpoint_id, 0)
                self.before.append(len(self.records))
        await partition.finish()


@TASKS
@READ_AT
async def test_snapshot_and_capture_are_all_that_was_emitted_before_the_barrier(
    tmp_path, reader_at, clients_at
):
    producers = [Producer(number) for number in range(PRODUCERS)]
    read: list[list[bytes]] = [[] for _ in producers]
    snapshots = {}
    captures = {}
    async with (
        mini_cluster(tmp_path) as cluster,
        clients_at(cluster, 0, reader_at) as (client, consumer),
        asyncio.TaskGroup() as tasks,
    ):
        partitions = [client.open_result_partition(1, n, 1) for n in range(PRODUCERS)]
        async with partitions[0] as first, partitions[1] as second:
            for producer, partition in zip(producers, (first, second), strict=True):
                tasks.create_task(producer.run(partition))
            async with consumer.open_gate([first.location, second.location], 0) as gate:
                reader = gate.reader(BytesSerializer())
                while (element := await reader.next()) is not None:
                    if isinstance(element, ChannelRecord):
                        read[element.channel_index].append(element.value)
                        if len(read[0] + read[1]) % 50 == 0:
                            await asyncio.sleep(0.001)  # a slow reader: everything fills up
                        continue
                    event = element.event
                    if isinstance(event, CheckpointBarrier):
                        number = event.checkpoint_id
                        if number not in captures:
                            snapshots[number] = [list(records) for records in read]
                            captures[number] = reader.capture(number)
    assert read == [producer.records for producer in producers]
    assert sorted(captures) == list(range(BARRIERS))
    overtaken = 0
    for number, capture in captures.items():
        assert capture.is_complete
        records = captured_records(capture.take(), BytesSerializer())
        for channel, producer in enumerate(producers):
            captured = records.get(channel, [])
            overtaken += len(captured)
            before = producer.records[: producer.before[number]]
            assert snapshots[number][channel] + captured == before
    assert overtaken


@READ_AT
async def test_what_waits_in_every_pool_on_the_way_is_captured(tmp_path, reader_at):
    record = bytes(SEGMENT_SIZE_BYTES - 4)
    async with (
        mini_cluster(tmp_path) as cluster,
        api_clients(cluster, 0, reader_at) as (client, consumer),
        client.open_result_partition(1, 0, 1, max_segments=8) as partition,
        consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        written = 0
        while (pending := writer.emit(record)) is None or not pipelined(partition).buffers_out:
            await emitted(pending)
            written += 1
        filling = asyncio.ensure_future(pending)
        # Nothing is read yet, so that the pools on the way fill up.
        await eventually(lambda: pipelined(partition).credit == 0)
        reader = gate.reader(BytesSerializer())
        first = await reader.next()
        assert isinstance(first, ChannelRecord)
        await filling
        written += 1
        writer.emit_unaligned_barrier(1, 0)
        read = 1
        while not isinstance(element := await reader.next(), ChannelEvent):
            read += 1
        assert element.event == CheckpointBarrier(1, 0, True)
        capture = reader.capture(1)
        await emitted(writer.emit(b"after"))
        finishing = asyncio.create_task(partition.finish())
        values = [element.value async for element in reader if isinstance(element, ChannelRecord)]
        await finishing
        assert values == [record] * (written - read) + [b"after"]
        captured = captured_records(capture.take(), BytesSerializer())
        assert captured == {0: [record] * (written - read)}
        assert written - read > 8  # more than the producing client's pool


async def test_a_stored_partition_has_the_barrier_in_its_place_and_no_capture(tmp_path):
    stored = ResultPartitionType.BLOCKING
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        async with client.open_result_partition(1, 0, 1, partition_type=stored) as partition:
            writer = partition.record_writer(BytesSerializer())
            await emitted(writer.emit(b"before"))
            writer.emit_unaligned_barrier(1, 2)
            await emitted(writer.emit(b"after"))
        async with client.open_gate([partition.location], 0) as gate:
            reader = gate.reader(BytesSerializer())
            found = [element async for element in reader]
            with pytest.raises(InvalidRequest, match="pipelined"):
                reader.capture(1)
        assert found[:3] == [(0, b"before"), (0, CheckpointBarrier(1, 2, True)), (0, b"after")]
        assert len(found) == 4
