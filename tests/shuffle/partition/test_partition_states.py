"""The table of a partition's states."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.partition_states import NEXT_STATES, UNFINISHED, PartitionState
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition


def test_every_state_has_a_row_and_can_be_reached():
    assert set(NEXT_STATES) == set(PartitionState)
    reached = {PartitionState.OPEN}.union(*NEXT_STATES.values())
    assert reached == set(PartitionState)


def test_every_state_leads_to_released_and_none_out_of_it():
    for state, following in NEXT_STATES.items():
        assert (PartitionState.RELEASED in following) is (state is not PartitionState.RELEASED)
    assert not NEXT_STATES[PartitionState.RELEASED]


def test_only_unfinished_partitions_can_become_complete_or_fail():
    for state, following in NEXT_STATES.items():
        assert (PartitionState.FINISHED in following) is (state in UNFINISHED)
        assert (PartitionState.FAILED in following) is (state in UNFINISHED)


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
