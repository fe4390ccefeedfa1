"""The target of debloating, from the writer's ``emit`` to the reader's ``next``.

The reader's speed is a count: each record read is worth so much time on a clock of the test's, and
a period of the debloater ends when the test says so. So nothing here depends on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.gate.buffer_debloater import DebloatSettings
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import TASKS, api_clients
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.client.client import ShuffleClient
    from sluice.shuffle.client.client_gate import ClientGate
    from sluice.shuffle.client.result_partition import ResultPartition
    from sluice.shuffle.records.record_reader import RecordReader

RECORD = bytes(60)
FRAME_BYTES = 4 + len(RECORD)
BYTES_PER_SECOND = 1_000_000
PERIOD_SECONDS = 0.0001
"""Of no effect, for the test ends the periods, but that a busy time is at least 1 % of it."""
RECORDS_A_PERIOD = 200
RECORDS_A_LOOK = 20
"""Records after which all that the reader has made room for is written."""
PERIODS = 36
STEADY_FROM = 26
WITHIN = 1.25
"""The bytes in flight are at most this many times those of the target."""
QUIET_TURNS = 20
"""Turns of the event loop without a movement, after which everything is where it can go."""
SETTLE_LOOKS = 4000


def buffers_out(partition: ResultPartition) -> int:
    """Return the buffers that have left the task; those of an embedded task stay where they are."""
    writer = partition.writer
    return writer.buffers_out if isinstance(writer, PipelinedWriter) else 0


class PacedExchange:
    """A writer that writes as much as it may, and a reader that the test paces.

    Args:
        producer: Writes.
        consumer: Reads.
        target_seconds: The target of debloating.
        channels: Number of partitions, each a channel of the gate.
    """

    def __init__(
        self,
        producer: ShuffleClient,
        consumer: ShuffleClient,
        target_seconds: float,
        channels: int = 1,
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._settings = DebloatSettings(target_seconds, PERIOD_SECONDS, 64, SEGMENT_SIZE_BYTES)
        self._channels = channels
        self._stopped = False
        self.emitted = 0
        self.read = 0

    async def run(self) -> list[float]:
        """Read period by period; return the bytes in flight over the target's, after each."""
        async with contextlib.AsyncExitStack() as stack:
            partitions = [
                await stack.enter_async_context(
                    self._producer.open_result_partition(1, number, 1, max_segments=12)
                )
                for number in range(self._channels)
            ]
            writing = [asyncio.create_task(self._write(each)) for each in partitions]
            locations = [each.location for each in partitions]
            gate = await stack.enter_async_context(self._consumer.open_gate(locations, 0))
            gate.gate.debloat(self._settings, lambda: self.read * FRAME_BYTES / BYTES_PER_SECOND)
            assert gate.gate.debloater is not None
            gate.gate.debloater.stop()  # its timer
            reader = gate.reader(BytesSerializer())
            overs = [await self._period(partitions, gate, reader) for _ in range(PERIODS)]
            self._stopped = True
            while await reader.next() is not None:
                pass
            await asyncio.gather(*writing)
            return overs

    async def _period(
        self, partitions: list[ResultPartition], gate: ClientGate, reader: RecordReader[bytes]
    ) -> float:
        for number in range(RECORDS_A_PERIOD):
            element = await reader.next()
            assert isinstance(element, ChannelRecord)
            self.read += 1
            if number % RECORDS_A_LOOK == 0:
                await self._settled(partitions)
        await self._settled(partitions)
        assert gate.gate.debloater is not None
        gate.gate.debloater.recalculate()
        await self._settled(partitions)
        in_flight = (self.emitted - self.read) * FRAME_BYTES
        return in_flight / (self._settings.target_seconds * BYTES_PER_SECOND)

    async def _settled(self, partitions: list[ResultPartition]) -> None:
        quiet = 0
        before = (-1, 0)
        for _ in range(SETTLE_LOOKS):
            await asyncio.sleep(0)
            now = (self.emitted, sum(map(buffers_out, partitions)))
            quiet = quiet + 1 if now == before else 0
            before = now
            if quiet >= QUIET_TURNS:
                return
        raise AssertionError("the writer is never held back")

    async def _write(self, partition: ResultPartition) -> None:
        writer = partition.record_writer(BytesSerializer())
        while not self._stopped:
            pending = writer.emit(RECORD)
            if pending is not None:
                await pending
            self.emitted += 1
        await partition.finish()


@TASKS
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
@pytest.mark.parametrize(("target_seconds", "channels"), [(0.01, 1), (0.04, 1), (0.04, 2)])
async def test_the_target_holds_from_emit_to_read(
    tmp_path, reader_at, target_seconds, channels, clients_at
):
    async with (
        mini_cluster(tmp_path) as cluster,
        clients_at(cluster, 0, reader_at) as (producer, consumer),
    ):
        overs = await PacedExchange(producer, consumer, target_seconds, channels).run()
    steady = overs[STEADY_FROM:]
    assert max(steady) <= WITHIN
    assert overs[0] > max(steady)  # full segments at first
    if clients_at is api_clients:  # an embedded writer holds nothing that no queue reports
        assert overs[0] > WITHIN
        assert min(steady) >= 1 / WITHIN
