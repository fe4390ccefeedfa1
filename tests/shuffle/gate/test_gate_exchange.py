"""Gates over pipelined partitions of both kinds of channels: events there and back."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.schema import BLOCKING_EVENT, PRIORITY_EVENT
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import TaskManagerChannelOpener
from tests.support.gates import shown
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

KEY = ShuffleKey("app", 1)
ATTEMPT = 5
PATIENCE_SECONDS = 20
EVENT_PAYLOAD = encode_event(CustomEvent("barrier", b""))

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("producer", [0, 1], ids=["local", "remote"]),
]


class Rig:
    """A pipelined partition on one TaskManager and a gate with an unknown channel on the first."""

    def __init__(self, cluster, producer: int) -> None:
        self.there = there = cluster[producer]
        pool = there.network_pool.create_local_pool("partition", 2, 16)
        self.partition = PipelinedResultPartition("A.1", 1, pool)
        there.partitions.register_pipelined(KEY, ATTEMPT, self.partition, self.partition.fail)
        self.heard: list[tuple[int, bytes]] = []
        there.task_events.register(KEY, ATTEMPT, self._hear)
        self.read_pool = ReadPool(cluster[0].network_pool, "reads", 1)
        wanted = SubpartitionRange(KEY, 0, 1)
        self.gate = InputGate(
            TaskManagerChannelOpener("gate", cluster[0].gate_services, wanted, self.read_pool)
        )
        self.gate.add_unknown_channel()

    def _hear(self, event_type: int, payload: bytes) -> None:
        self.heard.append((event_type, payload))

    def connect(self) -> None:
        self.gate.update_channel(
            0, ChannelSource(self.there.taskmanager_id, self.there.address, [ATTEMPT])
        )

    async def write(self, content: bytes) -> None:
        builder = await self.partition.wait_for_builder(0)
        builder.append_and_commit(content)
        self.partition.add_consumer(builder.create_consumer_from_beginning(), 0)
        builder.finish()

    def emit(self, data_type: int) -> None:
        self.partition.emit_event(EVENT_PAYLOAD, data_type, 0)

    async def take(self):
        async with asyncio.timeout(PATIENCE_SECONDS):
            taken = await self.gate.next_buffer_or_event()
        seen = shown(taken)
        if taken is not None and taken.buffer.release is not None:
            taken.buffer.release()
        return seen

    def close(self) -> None:
        self.gate.release()
        self.read_pool.destroy()
        self.there.task_events.unregister(KEY, ATTEMPT, self._hear)
        self.there.partitions.unregister_pipelined(KEY, ATTEMPT, self.partition)
        self.partition.release()


@contextlib.asynccontextmanager
async def a_rig(tmp_path, producer):
    async with mini_cluster(tmp_path) as cluster:
        rig = Rig(cluster, producer)
        try:
            yield rig
        finally:
            rig.close()
            await asyncio.sleep(0)  # cancelled tasks end in the next turn


async def test_messages_sent_to_an_unknown_channel_reach_the_producer(tmp_path, producer):
    async with a_rig(tmp_path, producer) as rig:
        rig.gate.send_task_event(1, b"first")
        rig.gate.send_task_event(2)
        rig.connect()
        rig.gate.send_task_event(3, b"third")
        await eventually(lambda: len(rig.heard) == 3, "events at the producer")
        assert rig.heard == [(1, b"first"), (2, b""), (3, b"third")]


async def test_a_priority_event_is_read_before_the_data_that_waits(tmp_path, producer):
    async with a_rig(tmp_path, producer) as rig:
        rig.connect()
        full = bytes(SEGMENT_SIZE_BYTES)
        await rig.write(full)
        await rig.gate.wait_available()
        await rig.write(b"2")
        rig.emit(PRIORITY_EVENT)
        await eventually(lambda: rig.gate.has_priority_event, "the priority event at the gate")
        seen = [await rig.take() for _ in range(3)]
        assert seen == [(0, "priority event"), (0, full), (0, b"2")]


async def test_a_blocking_event_stops_the_channel_until_the_gate_resumes_it(tmp_path, producer):
    async with a_rig(tmp_path, producer) as rig:
        rig.connect()
        await rig.write(b"before")
        rig.emit(BLOCKING_EVENT)
        await rig.write(b"behind")
        await rig.partition.finish()
        assert [await rig.take() for _ in range(2)] == [(0, b"before"), (0, "blocking event")]
        assert rig.gate.poll() is None
        rig.gate.resume_consumption(0)
        assert [await rig.take() for _ in range(3)] == [(0, b"behind"), (0, "event"), None]
