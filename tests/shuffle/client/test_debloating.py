"""Adaptive buffer sizes from client to client: the bytes in flight, and those before a barrier."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sluice.protocol.events import CheckpointBarrier
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelEvent
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients, pipelined
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, gates, mini_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.shuffle.client.client import ShuffleClient
    from sluice.shuffle.client.client_gate import ClientGate
    from sluice.shuffle.client.result_partition import ResultPartition
    from sluice.shuffle.gate.statistics import GateStatistics

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
RECORD = bytes(range(100))
SLOW_BYTES_PER_SECOND = 400_000
TARGET_SECONDS = 0.02
DEBLOATING: dict[str, Any] = {
    "debloat_target_seconds": TARGET_SECONDS,
    "debloat_period_seconds": 0.02,
    "debloat_min_buffer_size_bytes": 64,
}
SMALL_BYTES = SEGMENT_SIZE_BYTES / 4
LEAST_RECORDS = 1_000
"""Records read before the first look."""


class Look(NamedTuple):
    """The state of the exchange, as seen between the reads of two records."""

    announced_bytes: int | None
    in_flight_bytes: int
    statistics: GateStatistics
    writer_waits: bool


class Exchange:
    """One writer that writes as much as it may, and one reader of a given speed."""

    def __init__(self, producer: ShuffleClient, consumer: ShuffleClient) -> None:
        self._producer = producer
        self._consumer = consumer
        self.written = 0
        self.read: list[bytes] = []
        self.read_before_barrier = 0
        """Records that the reader still had to read when the barrier was sent."""
        self._barrier_wanted = asyncio.Event()
        self._barrier_sent = False
        self._barrier_read = False

    async def run(
        self, bytes_per_second: float | None, settled: Callable[[Look], bool], on_settled
    ) -> Look:
        """Write and read until sizes are settled, and until a barrier sent then has come.

        The rest is read at once. Returns the measures taken when sizes were settled.
        """
        found: Look | None = None
        async with self._producer.open_result_partition(1, 7, 1, max_segments=12) as partition:
            writing = asyncio.create_task(self._write(partition))
            async with self._consumer.open_gate([partition.location], 0) as gate:
                reader = gate.reader(BytesSerializer())
                start = time.monotonic()
                while (element := await reader.next()) is not None:
                    if isinstance(element, ChannelEvent):
                        if isinstance(element.event, CheckpointBarrier):
                            self.read_before_barrier = len(self.read) - element.event.checkpoint_id
                            self._barrier_read = True
                            bytes_per_second = None
                        continue
                    self.read.append(element.value)
                    if found is None and len(self.read) >= LEAST_RECORDS:
                        look = self._look(partition, gate)
                        if settled(look):
                            found = look
                            on_settled()
                            self._barrier_wanted.set()
                    if bytes_per_second is not None:
                        due = start + len(self.read) * len(RECORD) / bytes_per_second
                        if (ahead := due - time.monotonic()) > 0.002:
                            await asyncio.sleep(ahead)  # this is the work of a slow reader
            await writing
        assert found is not None
        return found

    def _look(self, partition: ResultPartition, gate: ClientGate) -> Look:
        writer = pipelined(partition)
        return Look(
            writer.buffer_size_bytes,
            (self.written - len(self.read)) * len(RECORD),
            gate.gate.statistics(),
            not writer.is_available,
        )

    async def _write(self, partition) -> None:
        writer = partition.record_writer(BytesSerializer())
        while not self._barrier_read:
            if self._barrier_wanted.is_set() and not self._barrier_sent:
                self._barrier_sent = True
                writer.broadcast_event(CheckpointBarrier(len(self.read), 2, False))
            if (pending := writer.emit(RECORD)) is not None:
                await pending
            self.written += 1
            if self.written % 64 == 0:
                await asyncio.sleep(0)
        await partition.finish()


def full(look: Look) -> bool:
    """Tell whether all buffers on the way are in use."""
    return look.writer_waits


def small(look: Look) -> bool:
    return look.announced_bytes is not None and look.announced_bytes < SMALL_BYTES


def small_by_the_client(look: Look) -> bool:
    return small(look) and look.announced_bytes == look.statistics.buffer_size_bytes


async def exchange(
    tmp_path, reader_at, rate, settled, taskmanagers=None, on_settled=None, **client
) -> tuple[Look, Exchange]:
    async with (
        mini_cluster(tmp_path, **(taskmanagers or {})) as cluster,
        api_clients(cluster, 0, reader_at, **client) as clients,
    ):
        run = Exchange(*clients)
        look = await run.run(rate, settled, lambda: on_settled and on_settled(cluster))
        assert run.read == [RECORD] * run.written
        return look, run


@READ_AT
async def test_a_slow_reader_has_little_in_flight_and_its_barrier_waits_behind_little(
    tmp_path, reader_at
):
    before, undebloated = await exchange(tmp_path / "1", reader_at, SLOW_BYTES_PER_SECOND, full)
    assert before.announced_bytes is None
    assert before.statistics.buffer_size_bytes is None

    def little_in_flight(look: Look) -> bool:
        seconds = look.statistics.in_flight_seconds
        return (
            small_by_the_client(look)
            and look.in_flight_bytes < before.in_flight_bytes / 3
            and seconds is not None
            and seconds < 5 * TARGET_SECONDS
        )

    _, debloated = await exchange(
        tmp_path / "2", reader_at, SLOW_BYTES_PER_SECOND, little_in_flight, **DEBLOATING
    )
    assert undebloated.read_before_barrier * len(RECORD) > SEGMENT_SIZE_BYTES
    assert debloated.read_before_barrier < undebloated.read_before_barrier / 2


@READ_AT
async def test_a_fast_reader_keeps_full_buffers(tmp_path, reader_at):
    settings = {**DEBLOATING, "debloat_target_seconds": 1}
    look, _ = await exchange(tmp_path, reader_at, None, lambda _: True, **settings)
    assert look.announced_bytes is None
    assert look.statistics.buffer_size_bytes == SEGMENT_SIZE_BYTES


@READ_AT
async def test_a_taskmanager_debloats_gates_that_their_clients_do_not(tmp_path, reader_at):
    def check(cluster):
        (gate,) = gates(cluster[reader_at])
        assert gate.debloater is not None
        assert gate.debloater.is_running

    look, _ = await exchange(tmp_path, reader_at, SLOW_BYTES_PER_SECOND, small, DEBLOATING, check)
    assert look.statistics.buffer_size_bytes is None


async def test_a_client_that_announces_sizes_decides_alone(tmp_path):
    def check(cluster):
        (gate,) = gates(cluster[1])
        assert gate.debloater is not None
        assert not gate.debloater.is_running

    await exchange(
        tmp_path, 1, SLOW_BYTES_PER_SECOND, small_by_the_client, DEBLOATING, check, **DEBLOATING
    )


async def test_gates_over_stored_partitions_are_not_debloated(tmp_path):
    async with (
        mini_cluster(tmp_path, **DEBLOATING) as cluster,
        api_clients(cluster, 0, **DEBLOATING) as (client,),
    ):
        locations = [await stored(client, number) for number in range(2)]
        async with client.open_gate(locations, 0, 2) as gate:
            assert gate.gate.debloater is None
            await eventually(lambda: gates(cluster[0]))
            (there,) = gates(cluster[0])
            assert there.debloater is None


async def stored(client, number):
    blocking = ResultPartitionType.BLOCKING
    async with client.open_result_partition(1, number, 2, partition_type=blocking) as partition:
        await partition.emit_buffer(RECORD, 0)
    return partition.location
