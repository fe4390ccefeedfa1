"""The picture of the network stack: two tasks of parallelism 4 on two TaskManagers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import TaskManagerChannelOpener
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluice.shuffle.partition.view import OutgoingBuffer
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.support.mini_cluster import MiniCluster

KEY = ShuffleKey("app", 1)
TASKS = 4
OVERLOADED = 3
"""B.4; B.3 runs beside it on the same TaskManager."""
BUFFERS = 60
BUFFERS_OF_OVERLOADED = 16
"""More than its channels hold on the receiving side (2 exclusive each, 8 floating)."""
PATIENCE_SECONDS = 30
SETTINGS: dict[str, Any] = {"network_segments": 512, "memory_tier_bytes": 64 << 20}


def home(task: int) -> int:
    """The TaskManager of A.n and B.n: two of each on either side."""
    return task * 2 // TASKS


def output(producer: int, consumer: int) -> list[bytes]:
    count = BUFFERS_OF_OVERLOADED if consumer == OVERLOADED else BUFFERS
    numbers = random.Random(producer * TASKS + consumer)
    return [numbers.randbytes(SEGMENT_SIZE_BYTES) for _ in range(count)]


class Consumer:
    """B.n: a gate with one channel to each A."""

    def __init__(self, cluster: MiniCluster, task: int) -> None:
        environment = cluster[home(task)]
        self.read_pool = ReadPool(environment.network_pool, f"reads of B.{task + 1}", 16)
        self.gate = InputGate(
            TaskManagerChannelOpener(
                f"B.{task + 1}",
                environment.gate_services,
                SubpartitionRange(KEY, task, task + 1),
                self.read_pool,
            )
        )
        for producer in range(TASKS):
            there = cluster[home(producer)]
            self.gate.add_channel(
                ChannelSource(there.taskmanager_id, there.address, [producer + 1])
            )
        self.content = [bytearray() for _ in range(TASKS)]

    async def take(self) -> bool:
        """Take a buffer and give it back; False at the end of all channels."""
        taken = await self.gate.next_buffer_or_event()
        if taken is None:
            return False
        if taken.buffer.data_type == DATA:
            self.content[taken.channel_index] += taken.buffer.payload
        if taken.buffer.release is not None:
            taken.buffer.release()
        return True

    async def read_all(self) -> list[bytes]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.take():
                pass
        return [bytes(part) for part in self.content]

    def release(self) -> None:
        self.gate.release()
        self.read_pool.destroy()


def expected(task: int) -> list[bytes]:
    return [b"".join(output(producer, task)) for producer in range(TASKS)]


@contextlib.asynccontextmanager
async def consumers(cluster: MiniCluster) -> AsyncIterator[list[Consumer]]:
    tasks = [Consumer(cluster, task) for task in range(TASKS)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.release()
        await asyncio.sleep(0)


def check_links(cluster: MiniCluster, tasks: list[Consumer]) -> None:
    """8 logical links on each side, half of them local, and one connection each way."""
    for side in range(2):
        links = [
            channel
            for number, task in enumerate(tasks)
            if home(number) == side
            for channel in task.gate.channels
        ]
        assert [channel.is_local for channel in links].count(True) == 4
        assert len(links) == 8
        assert len(cluster[side].peers.clients()) == 1


async def check_the_overloaded_one_stops_only_itself(
    cluster: MiniCluster, tasks: list[Consumer]
) -> None:
    """B.1 to B.3 read everything while B.4 takes a single buffer; then B.4 reads the rest."""
    overloaded = tasks[OVERLOADED]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await overloaded.take()
    others = [task for task in range(TASKS) if task != OVERLOADED]
    contents = await asyncio.gather(*(tasks[task].read_all() for task in others))
    assert contents == [expected(task) for task in others]
    assert sum(map(len, overloaded.content)) <= SEGMENT_SIZE_BYTES
    check_links(cluster, tasks)
    assert await overloaded.read_all() == expected(OVERLOADED)


async def test_an_overloaded_task_does_not_slow_its_neighbour_stored(tmp_path):
    """Over stored partitions (pull)."""
    async with mini_cluster(tmp_path, **SETTINGS) as cluster:
        for producer in range(TASKS):
            regions = [[b"".join(output(producer, consumer)) for consumer in range(TASKS)]]
            await cluster.write(home(producer), producer + 1, regions)
        async with consumers(cluster) as tasks:
            await check_the_overloaded_one_stops_only_itself(cluster, tasks)


@contextlib.asynccontextmanager
async def a_pipelined_partition(
    environment: NetworkEnvironment, map_attempt_id: int, subpartitions: int, segments: int
) -> AsyncIterator[PipelinedResultPartition]:
    """A partition of this TaskManager, known to its readers."""
    pool = environment.network_pool.create_local_pool(
        f"partition {map_attempt_id}", subpartitions + 1, segments
    )
    partition = PipelinedResultPartition(f"A.{map_attempt_id}", subpartitions, pool)
    partitions = environment.partitions
    partitions.register_pipelined(KEY, map_attempt_id, partition, partition.fail)
    try:
        yield partition
    finally:
        partitions.unregister_pipelined(KEY, map_attempt_id, partition)
        partition.release()


async def write(partition: PipelinedResultPartition, subpartition: int, content: bytes) -> None:
    builder = await partition.wait_for_builder(subpartition)
    assert builder.append_and_commit(content) == len(content)
    partition.add_consumer(builder.create_consumer_from_beginning(), subpartition)
    builder.finish()


async def produce(partition: PipelinedResultPartition, producer: int) -> None:
    """A.n: gives each B its output in turn; its own pool holds what B.4 does not take."""
    outputs = [output(producer, consumer) for consumer in range(TASKS)]
    for number in range(BUFFERS):
        for consumer, buffers in enumerate(outputs):
            if number < len(buffers):
                await write(partition, consumer, buffers[number])
    await partition.finish()


async def test_an_overloaded_task_does_not_slow_its_neighbour_pipelined(tmp_path):
    """Over pipelined partitions (push), from and to both TaskManagers at once."""
    async with mini_cluster(tmp_path, **SETTINGS) as cluster, contextlib.AsyncExitStack() as stack:
        partitions = [
            await stack.enter_async_context(
                a_pipelined_partition(
                    cluster[home(task)], task + 1, TASKS, BUFFERS_OF_OVERLOADED + 2 * TASKS
                )
            )
            for task in range(TASKS)
        ]
        tasks = await stack.enter_async_context(consumers(cluster))
        async with asyncio.TaskGroup() as group:
            for producer, partition in enumerate(partitions):
                group.create_task(produce(partition, producer))
            await check_the_overloaded_one_stops_only_itself(cluster, tasks)


async def test_a_local_consumer_holds_the_producers_own_buffers(tmp_path):
    """On one TaskManager the reader has no own buffers: the producer waits for it."""
    segments, buffers = 3, 10
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        a_pipelined_partition(cluster[0], 1, 1, segments) as partition,
    ):
        no_reads = ReadPool(cluster[0].network_pool, "never made", 1)
        wanted = SubpartitionRange(KEY, 0, 1)
        gate = InputGate(
            TaskManagerChannelOpener("gate", cluster[0].gate_services, wanted, no_reads)
        )
        gate.add_channel(ChannelSource(cluster[0].taskmanager_id, cluster[0].address, [1]))
        written = 0

        async def write_all() -> None:
            nonlocal written
            for number in range(buffers):
                await write(partition, 0, b"%d" % number)
                written += 1
            await partition.finish()

        async def take(number: int) -> OutgoingBuffer:
            taken = await gate.next_buffer_or_event()
            assert taken is not None
            assert bytes(taken.buffer.payload) == b"%d" % number
            return taken.buffer

        producing = asyncio.ensure_future(write_all())
        held = deque([await take(number) for number in range(segments)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert written == segments, "all its buffers are in the reader's hands"
        assert gate.poll() is None
        for number in range(segments, buffers):
            give_back(held.popleft())
            held.append(await take(number))
            assert written == number + 1, "one buffer back is one buffer more"
        for buffer in held:
            give_back(buffer)
        end = await gate.next_buffer_or_event()
        assert end is not None
        assert end.buffer.data_type == EVENT
        assert await gate.next_buffer_or_event() is None
        await producing
        assert gate.statistics().buffers_in_local == buffers
        gate.release()


def give_back(buffer: OutgoingBuffer) -> None:
    assert buffer.release is not None
    buffer.release()
