"""Types and consumption constraints that go together, and the memory that each type may take."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.errors import InvalidPartitionType
from sluice.shuffle.partition.partition_type import (
    ConsumptionConstraint,
    ResultPartitionType,
    checked_partition_type,
    pool_bounds,
)

VALID = {(0, 2), (1, 0), (1, 1), (2, 0), (2, 1)}


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


@pytest.mark.parametrize(("kind", "constraint"), [(3, 0), (1, 3), (-1, 0), (1, -1)])
def test_unknown_numbers_are_refused(kind, constraint):
    with pytest.raises(InvalidPartitionType, match="Unknown"):
        checked_partition_type(kind, constraint)


def test_only_a_bounded_partition_has_a_ceiling():
    assert pool_bounds(ResultPartitionType.PIPELINED, 4, 2, 8) == (5, None)
    assert pool_bounds(ResultPartitionType.PIPELINED_BOUNDED, 4, 2, 8) == (5, 16)
    assert pool_bounds(ResultPartitionType.PIPELINED_BOUNDED, 4, 1, 0) == (5, 5)
    assert [kind.is_pipelined for kind in ResultPartitionType] == [False, True, True]
