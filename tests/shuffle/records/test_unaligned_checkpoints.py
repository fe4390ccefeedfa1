"""Unaligned checkpoints by property: the snapshot and the capture are all that was emitted before.

Writers, partitions and gate are real; the test chooses who does what next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.events import CheckpointBarrier
from sluice.shuffle.errors import IncompleteRecord, InvalidRequest
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.records.record_reader import (
    ChannelEvent,
    ChannelRecord,
    RecordReader,
    captured_records,
)
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.shuffle.taskmanager.config.sections import NetworkMemoryConfig
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import (
    GateServices,
    TaskManagerChannelOpener,
)
from tests.support.gates import HERE, here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluice.shuffle.gate.capture import CapturedBuffer, OvertakenCapture

CHANNELS = 3
SEGMENT_BYTES = 24
"""Records are shorter and longer than a buffer, so that barriers come in their midst."""
SEGMENTS = 900


class Write(NamedTuple):
    channel: int
    length: int


class Barrier(NamedTuple):
    channel: int


class Flush(NamedTuple):
    channel: int


class Read(NamedTuple):
    records: int
    in_batches: bool


Step = Write | Barrier | Flush | Read

_CHANNEL = st.integers(0, CHANNELS - 1)
STEPS = st.lists(
    st.one_of(
        st.builds(Write, _CHANNEL, st.integers(0, 70)),
        st.builds(Write, _CHANNEL, st.integers(0, 70)),
        st.builds(Barrier, _CHANNEL),
        st.builds(Flush, _CHANNEL),
        st.builds(Read, st.integers(1, 6), st.booleans()),
    ),
    max_size=60,
)


class OpenPartitions(ResultPartitionManager):
    """Finds the partition of a map attempt at once."""

    def __init__(self, partitions: Sequence[PipelinedResultPartition]) -> None:
        self.partitions = partitions

    async def request_view(
        self,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        buffer_size_bytes: int,
        read_pool: Any,
        listener: Callable[[], None],
        credit_bytes: int | None = None,
    ) -> Any:
        return self.partitions[map_attempt_ids[0]].create_view(0, listener)


class Job:
    """Some writers, a reader, and a checkpoint for each barrier number that the reader has seen."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
        self.partitions = [
            PipelinedResultPartition(
                f"partition {number}",
                1,
                self.network.create_local_pool(f"partition {number}", 1, SEGMENTS // CHANNELS),
            )
            for number in range(CHANNELS)
        ]
        self.writers = [RecordWriter(partition, BytesSerializer()) for partition in self.partitions]
        services = GateServices(
            HERE,
            NetworkMemoryConfig(segment_size_bytes=1024, network_segments=8),
            self.network,
            OpenPartitions(self.partitions),
            None,  # type: ignore[arg-type]
        )
        read_pool = ReadPool(self.network, "gate", 1)
        wanted = SubpartitionRange(ShuffleKey("app", 1), 0, 1)
        self.gate = InputGate(TaskManagerChannelOpener("gate", services, wanted, read_pool))
        for number in range(CHANNELS):
            self.gate.add_channel(here(number))
        self.reader = RecordReader(self.gate, BytesSerializer(), CHANNELS)
        self.emitted: list[list[bytes]] = [[] for _ in range(CHANNELS)]
        self.read: list[list[bytes]] = [[] for _ in range(CHANNELS)]
        self.before: list[list[int]] = [[] for _ in range(CHANNELS)]
        """By channel and checkpoint: records emitted before the barrier."""
        self.snapshots: dict[int, list[list[bytes]]] = {}
        self.captures: dict[int, OvertakenCapture] = {}
        self.captured: dict[int, list[CapturedBuffer]] = defaultdict(list)

    def write(self, channel: int, length: int) -> None:
        number = len(self.emitted[channel])
        record = bytes([channel]) + number.to_bytes(2, "big") + bytes(length)
        assert self.writers[channel].emit(record) is None
        self.emitted[channel].append(record)

    def barrier(self, channel: int) -> None:
        before = self.before[channel]
        self.writers[channel].emit_unaligned_barrier(len(before), 0)
        before.append(len(self.emitted[channel]))

    async def read_one(self, in_batches: bool) -> bool:
        """Read a record, a batch or an event; False at the end."""
        element = await (self.reader.read_batch() if in_batches else self.reader.next())
        if element is None:
            return False
        if isinstance(element, ChannelEvent):
            event = element.event
            if isinstance(event, CheckpointBarrier) and event.checkpoint_id not in self.captures:
                self.snapshots[event.checkpoint_id] = [list(records) for records in self.read]
                self.captures[event.checkpoint_id] = self.reader.capture(event.checkpoint_id)
        elif isinstance(element, ChannelRecord):
            self.read[element.channel_index].append(element.value)
        else:
            self.read[element.channel_index] += element.values
        for checkpoint_id, capture in self.captures.items():
            self.captured[checkpoint_id] += capture.take()
        return True

    async def until_nothing_is_there(self, records: int, in_batches: bool) -> None:
        for _ in range(records):
            try:
                async with asyncio.timeout(0):
                    await self.read_one(in_batches)
            except TimeoutError:
                return

    async def finish(self) -> None:
        for writer in self.writers:
            await writer.finish()
        while await self.read_one(in_batches=False):
            pass

    def check(self) -> None:
        assert self.read == self.emitted
        for checkpoint_id, capture in self.captures.items():
            assert capture.is_complete
            after = captured_records(self.captured[checkpoint_id], BytesSerializer())
            for channel, before in enumerate(self.before):
                # A producer that has finished without the barrier emitted everything before it.
                end = before[checkpoint_id] if checkpoint_id < len(before) else None
                state = self.snapshots[checkpoint_id][channel] + after.get(channel, [])
                assert state == self.emitted[channel][:end]

    def close(self) -> None:
        self.reader.close()
        self.gate.release()
        for partition in self.partitions:
            partition.release()
        statistics = self.network.statistics()
        assert statistics.free_segments == statistics.total_segments


async def run(steps: Sequence[Step]) -> Job:
    job = Job()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for step in steps:
        match step:
            case Write():
                job.write(*step)
            case Barrier():
                job.barrier(*step)
            case Flush():
                job.writers[step.channel].flush(0)
            case Read():
                await job.until_nothing_is_there(*step)
    await job.finish()
    job.close()
    return job


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@given(steps=STEPS)
def test_snapshot_and_capture_are_all_that_was_emitted_before_the_barrier(runner, steps):
    job = runner(run(steps))
    job.check()
    assert len(job.captures) == max(len(before) for before in job.before)


def test_a_barrier_in_the_midst_of_a_long_record_captures_the_part_that_was_read():
    steps: list[Step] = [
        Write(0, 60),
        Read(1, in_batches=False),
        Write(0, 60),
        Flush(0),
        Read(1, in_batches=True),
        Barrier(0),
        Write(0, 5),
    ]
    job = asyncio.run(run(steps))
    job.check()
    records = captured_records(job.captured[0], BytesSerializer())
    assert records[0] == job.emitted[0][len(job.snapshots[0][0]) : 2]


@pytest.mark.parametrize("spill_bytes", [8, 1000], ids=["spilled", "in memory"])
async def test_the_part_of_a_record_that_was_gathered_is_captured(tmp_path, spill_bytes):
    job = Job()
    job.reader = RecordReader(
        job.gate,
        BytesSerializer(),
        CHANNELS,
        spill_threshold_bytes=spill_bytes,
        spill_directory=str(tmp_path),
    )
    await asyncio.sleep(0)
    job.write(0, 200)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await job.reader.next()
    job.barrier(0)
    while not job.captures:
        await job.read_one(in_batches=False)
    job.write(0, 3)
    await job.finish()
    job.check()
    assert len(job.captured[0]) > 1
    with pytest.raises(IncompleteRecord):
        captured_records(job.captured[0][:-1], BytesSerializer())
    job.close()


def test_only_gates_are_captured():
    class Source:
        def poll(self) -> None: ...

        async def next_buffer_or_event(self) -> None: ...

    with pytest.raises(InvalidRequest, match="Source"):
        RecordReader(Source(), BytesSerializer(), 1).capture(1)
