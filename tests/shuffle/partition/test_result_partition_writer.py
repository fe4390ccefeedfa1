"""The half of a partition's writing side that pipelined and stored partitions share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import InvalidRequest, PartitionReleased
from sluice.shuffle.memory import NetworkBufferPool, PoolDestroyed
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS, PartitionMemory
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.partition.stored_result_partition import StoredResultPartition
from tests.shuffle.partition.rig import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS = 2
SIZE = 64

KINDS = pytest.mark.parametrize("kind", ["pipelined", "stored"])


class Rig:
    """A partition of two subpartitions, and its memory."""

    def __init__(self, kind: str, subpartitions: int = 2) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        self.pool = self.network.create_local_pool("partition", 1, SEGMENTS)
        self.partition: PipelinedResultPartition | StoredResultPartition
        if kind == "stored":
            self.partition = StoredResultPartition("p", subpartitions, self.pool, MemorySink())
        else:
            self.partition = PipelinedResultPartition("p", subpartitions, self.pool)

    def all_calls(self, subpartition: int) -> list[Callable[[], object]]:
        """Return everything that adds to a subpartition, each to be called once."""
        partition, pool = self.partition, self.pool

        def finished() -> None:
            buffer = pool.request_buffer_nowait()
            assert buffer is not None
            partition.add_consumer(finished_consumer(buffer), subpartition)

        return [
            lambda: partition.request_builder(subpartition),
            lambda: partition.emit_event(b"x", EVENT, subpartition),
            finished,
        ]


@KINDS
def test_a_partition_has_a_subpartition_at_least(kind):
    with pytest.raises(InvalidRequest, match="value 0"):
        Rig(kind, 0)


@KINDS
@pytest.mark.parametrize("subpartition", [-2, 2])
async def test_a_subpartition_that_does_not_exist_is_refused_and_its_buffer_recycled(
    kind, subpartition
):
    rig = Rig(kind)
    for call in rig.all_calls(subpartition):
        with pytest.raises(InvalidRequest, match="no such subpartition") as caught:
            call()
        assert (caught.value.value, caught.value.limit) == (subpartition, 1)
    with pytest.raises(InvalidRequest):
        await rig.partition.wait_for_builder(subpartition)
    assert rig.pool.lent_segments == 0


@KINDS
async def test_only_events_may_have_a_type_of_events(kind):
    rig = Rig(kind)
    for data_type in (DATA, 4, -1):
        with pytest.raises(InvalidRequest, match="Data type of an event"):
            rig.partition.emit_event(b"x", data_type, 0)
    for data_type in (EVENT, PRIORITY_EVENT, BLOCKING_EVENT):
        rig.partition.emit_event(b"x", data_type, ALL_SUBPARTITIONS)


@KINDS
async def test_a_released_partition_refuses_everything_with_the_reason(kind):
    rig = Rig(kind)
    calls = rig.all_calls(0)[:2]
    builder = rig.partition.request_builder(0)
    assert builder is not None
    consumer = builder.create_consumer()
    rig.partition.release()
    for call in calls:
        with pytest.raises(PartitionReleased):
            call()
    with pytest.raises(PartitionReleased):
        rig.partition.add_consumer(consumer, 0)
    builder.finish()
    assert rig.pool.lent_segments == 0  # the refused consumer was closed
    assert rig.partition.state is PartitionState.RELEASED
    assert not rig.partition.is_available
    await rig.partition.wait_available()  # there is nothing to wait for


@KINDS
async def test_the_first_failure_counts(kind):
    rig = Rig(kind)
    first = SluiceError("first")
    rig.partition.fail(first)
    rig.partition.fail(SluiceError("second"))
    with pytest.raises(SluiceError) as caught:
        rig.partition.request_builder(0)
    assert caught.value is first
    rig.partition.release()
    with pytest.raises(SluiceError) as again:
        rig.partition.emit_event(b"x", EVENT, 0)
    assert again.value is first


async def test_waits_for_memory_are_told_apart():
    network = NetworkBufferPool(1, SIZE)
    pool = network.create_local_pool("partition", 1, 1)
    memory = PartitionMemory(pool)
    first = await memory.wait(0)
    hard_before = memory.hard_back_pressured_seconds
    soft = asyncio.ensure_future(memory.wait_available())
    await asyncio.sleep(0)
    first.recycle()
    await soft
    assert memory.soft_back_pressured_seconds > 0
    assert memory.hard_back_pressured_seconds == hard_before
    second = await memory.wait(-1)
    pool.destroy()
    with pytest.raises(PoolDestroyed):
        await memory.wait(0)
    second.recycle()
    assert network.available_segments == 1
