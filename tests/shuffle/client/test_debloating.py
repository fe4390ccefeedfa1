"""Adaptive buffer sizes from client to client: what is in flight, and how long a barrier takes."""

from __future__ import annotations

import asyncio
import time

import pytest

from protocol.events import CheckpointBarrier
from shuffle.partition.partition_type import ResultPartitionType
from shuffle.records.record_reader import ChannelEvent
from shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, gates, mini_cluster

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
RECORD = bytes(range(100))
SLOW_BYTES_PER_SECOND = 400_000
TARGET_SECONDS = 0.02
DEBLOATING = {
    "debloat_target_seconds": TARGET_SECONDS,
    "debloat_period_seconds": 0.02,
    "debloat_min_buffer_size_bytes": 64,
}
BEFORE_THE_BARRIER = 3_000  # records that are read until then: enough for the sizes to settle


class Exchange:
    """One writer that writes as much as it may, and one reader of a given speed."""

    def __init__(self, producer, consumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self.written = 0
        self.read: list[bytes] = []
        self.in_flight_bytes = 0
        self.barrier_seconds = 0.0
        self.statistics = None
        self.announced_bytes: int | None = None
        self._barrier_wanted = asyncio.Event()
        self._barrier_sent = 0.0
        self._barrier_read = False

    async def run(self, bytes_per_second: float | None, in_the_middle=lambda: None) -> None:
        """Write and read until a barrier sent in the middle has come; then to the end."""
        async with self._producer.open_result_partition(1, 7, 1, max_segments=12) as partition:
            writing = asyncio.create_task(self._write(partition))
            async with self._consumer.open_gate([partition.location], 0) as gate:
                reader = gate.reader(BytesSerializer())
                start = time.monotonic()
                while (element := await reader.next()) is not None:
                    if isinstance(element, ChannelEvent):
                        if isinstance(element.event, CheckpointBarrier):
                            self.barrier_seconds = time.monotonic() - self._barrier_sent
                            self._barrier_read = True
                            bytes_per_second = None  # the rest at once
                        continue
                    self.read.append(element.value)
                    if len(self.read) == BEFORE_THE_BARRIER:
                        self.statistics = gate.gate.statistics()
                        self.announced_bytes = partition.writer.buffer_size_bytes
                        self.in_flight_bytes = (self.written - len(self.read)) * len(RECORD)
                        in_the_middle()
                        self._barrier_wanted.set()
                    if bytes_per_second is not None:
                        due = start + len(self.read) * len(RECORD) / bytes_per_second
                        if (ahead := due - time.monotonic()) > 0.002:
                            await asyncio.sleep(ahead)  # this is the work of a slow reader
            await writing

    async def _write(self, partition) -> None:
        writer = partition.record_writer(BytesSerializer())
        while not self._barrier_read:
            if self._barrier_wanted.is_set() and not self._barrier_sent:
                self._barrier_sent = time.monotonic()
                writer.broadcast_event(CheckpointBarrier(1, 2, False))
            if (pending := writer.emit(RECORD)) is not None:
                await pending
            self.written += 1
            if self.written % 64 == 0:
                await asyncio.sleep(0)
        await partition.finish()


async def exchange(tmp_path, reader_at, rate, taskmanagers=None, in_the_middle=None, **client):
    async with (
        mini_cluster(tmp_path, **(taskmanagers or {})) as cluster,
        api_clients(cluster, 0, reader_at, **client) as clients,
    ):
        run = Exchange(*clients)
        await run.run(rate, lambda: in_the_middle and in_the_middle(cluster))
        assert run.read == [RECORD] * run.written
        assert run.written > BEFORE_THE_BARRIER
        return run


@READ_AT
async def test_a_slow_reader_has_little_in_flight_and_its_barrier_comes_soon(tmp_path, reader_at):
    full = await exchange(tmp_path / "full", reader_at, SLOW_BYTES_PER_SECOND)
    small = await exchange(tmp_path / "small", reader_at, SLOW_BYTES_PER_SECOND, **DEBLOATING)
    assert full.announced_bytes is None
    assert full.statistics.buffer_size_bytes is None
    assert small.announced_bytes < SEGMENT_SIZE_BYTES / 4
    assert small.statistics.buffer_size_bytes == small.announced_bytes
    assert small.statistics.in_flight_seconds < 5 * TARGET_SECONDS
    assert small.in_flight_bytes < full.in_flight_bytes / 2
    assert small.barrier_seconds < full.barrier_seconds / 2


@READ_AT
async def test_a_fast_reader_keeps_full_buffers(tmp_path, reader_at):
    settings = {**DEBLOATING, "debloat_target_seconds": 1}
    run = await exchange(tmp_path, reader_at, None, **settings)
    assert run.announced_bytes is None
    assert run.statistics.buffer_size_bytes == SEGMENT_SIZE_BYTES


@READ_AT
async def test_a_taskmanager_debloats_the_gates_of_clients_that_do_not(tmp_path, reader_at):
    def look(cluster):
        ((gate, _),) = gates(cluster[reader_at])
        assert gate.debloater.is_running

    run = await exchange(tmp_path, reader_at, SLOW_BYTES_PER_SECOND, DEBLOATING, look)
    assert run.announced_bytes < SEGMENT_SIZE_BYTES / 4
    assert run.statistics.buffer_size_bytes is None


async def test_a_client_that_announces_sizes_decides_alone(tmp_path):
    def look(cluster):
        ((gate, _),) = gates(cluster[1])
        assert not gate.debloater.is_running

    run = await exchange(tmp_path, 1, SLOW_BYTES_PER_SECOND, DEBLOATING, look, **DEBLOATING)
    assert run.announced_bytes == run.statistics.buffer_size_bytes


async def test_gates_over_stored_partitions_are_left_alone(tmp_path):
    async with (
        mini_cluster(tmp_path, **DEBLOATING) as cluster,
        api_clients(cluster, 0, **DEBLOATING) as (client,),
    ):
        locations = [await stored(client, number) for number in range(2)]
        async with client.open_gate(locations, 0, 2) as gate:
            assert gate.gate.debloater is None
            await eventually(lambda: gates(cluster[0]))
            ((there, _),) = gates(cluster[0])
            assert there.debloater is None


async def stored(client, number):
    blocking = ResultPartitionType.BLOCKING
    async with client.open_result_partition(1, number, 2, partition_type=blocking) as partition:
        await partition.emit_buffer(RECORD, 0)
    return partition.location
