"""The table of a partition's states."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.partition_states import NEXT_STATES, PartitionState
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition


@pytest.mark.parametrize("finished", [False, True])
async def test_a_partition_keeps_to_the_table(finished):
    pool = NetworkBufferPool(1, 64).create_local_pool("partition", 1, 1)
    partition = PipelinedResultPartition("partition", 1, pool)
    if finished:
        await partition.finish()
    before = partition.state
    partition.fail(SluiceError("too late or not"))
    allowed = PartitionState.FAILED in NEXT_STATES[before]
    assert partition.state is (PartitionState.FAILED if allowed else before)
    partition.release()
    partition.fail(SluiceError("too late"))
    assert partition.state is PartitionState.RELEASED
