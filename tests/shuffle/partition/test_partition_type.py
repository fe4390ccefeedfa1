"""Types and consumption constraints that go together, and the memory that each type may take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.errors import InvalidPartitionType
from sluice.shuffle.partition.partition_type import (
    ConsumptionConstraint,
    ResultPartitionType,
    ceiling_segments,
    checked_partition_type,
    pool_bounds,
)

VALID = {(0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)}


@pytest.mark.parametrize("constraint", ConsumptionConstraint)
@pytest.mark.parametrize("kind", ResultPartitionType)
def test_only_valid_combinations_are_accepted(kind, constraint):
    if (kind, constraint) in VALID:
        assert checked_partition_type(int(kind), int(constraint)) == (kind, constraint)
        return
    with pytest.raises(InvalidPartitionType, match=f"{kind.name}.*value {constraint.name}") as told:
        checked_partition_type(kind, constraint)
    assert isinstance(told.value, SluiceError)
    assert told.value.code is ErrorCode.MALFORMED_MESSAGE


@pytest.mark.parametrize(("kind", "constraint"), [(5, 0), (1, 3), (-1, 0), (1, -1)])
def test_unknown_numbers_are_refused(kind, constraint):
    with pytest.raises(InvalidPartitionType, match="Unknown"):
        checked_partition_type(kind, constraint)


def test_only_a_bounded_partition_has_a_ceiling():
    assert pool_bounds(ResultPartitionType.PIPELINED, 4, 2, 8) == (5, None)
    assert pool_bounds(ResultPartitionType.PIPELINED_BOUNDED, 4, 2, 8) == (5, 16)
    assert pool_bounds(ResultPartitionType.PIPELINED_BOUNDED, 4, 1, 0) == (5, 5)
    assert pool_bounds(ResultPartitionType.HYBRID_SELECTIVE, 4, 2, 8) == (5, 16)
    assert pool_bounds(ResultPartitionType.BLOCKING, 4, 2, 8) == (1, None)
    assert pool_bounds(ResultPartitionType.HYBRID_FULL, 4, 2, 8) == (5, 16)


def test_properties_of_each_partition_type():
    kinds = list(ResultPartitionType)
    assert [kind.is_pipelined for kind in kinds] == [False, True, True, True, True]
    assert [kind.is_hybrid for kind in kinds] == [False, False, False, True, True]
    assert [kind.is_reconsumable for kind in kinds] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("kind", "allowed", "bounds"),
    [
        (ResultPartitionType.PIPELINED, 100, (5, 100)),
        (ResultPartitionType.PIPELINED, 3, (3, 3)),
        (ResultPartitionType.PIPELINED_BOUNDED, 100, (5, 16)),
        (ResultPartitionType.PIPELINED_BOUNDED, 7, (5, 7)),
        (ResultPartitionType.PIPELINED_BOUNDED, 1, (1, 1)),
        (ResultPartitionType.BLOCKING, 9, (1, 9)),
        (ResultPartitionType.BLOCKING, 1, (1, 1)),
    ],
)
def test_a_task_can_allow_its_partition_less(kind, allowed, bounds):
    assert pool_bounds(kind, 4, 2, 8, max_segments=allowed) == bounds


@settings(max_examples=50)
@given(
    kind=st.sampled_from(ResultPartitionType),
    subpartitions=st.integers(1, 1000),
    exclusive=st.integers(0, 10),
    floating=st.integers(0, 100),
    allowed=st.none() | st.integers(1, 5000),
)
def test_bounds_are_possible_and_grow_with_the_channels(
    kind, subpartitions, exclusive, floating, allowed
):
    required, most = pool_bounds(kind, subpartitions, exclusive, floating, allowed)
    assert 1 <= required <= subpartitions + 1
    assert most is None or required <= most
    assert allowed is None or (most is not None and most <= allowed)
    if kind.is_bounded and allowed is None:
        assert most == max(required, ceiling_segments(subpartitions, exclusive, floating))
