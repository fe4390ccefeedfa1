"""The types of result partitions, and when a consumer of each may begin.

::

    type                when registered   at first output   when finished
    BLOCKING            ✗                 ✗                 ✓
    PIPELINED           ✓                 ✓                 ✗
    PIPELINED_BOUNDED   ✓                 ✓                 ✗

✗ is an :class:`InvalidPartitionType`. A ``BLOCKING`` partition is stored, and complete only when it
is finished, so no consumer may read it sooner. A pipelined one that no consumer may read before its
end would fill its pool and never come to its end. The numbers are those of the wire.
"""

import enum
from typing import Final, NamedTuple

from ...protocol.messages import (
    CONSUME_AT_FIRST_OUTPUT,
    CONSUME_WHEN_FINISHED,
    CONSUME_WHEN_REGISTERED,
    PARTITION_BLOCKING,
    PARTITION_PIPELINED,
    PARTITION_PIPELINED_BOUNDED,
)
from ..errors import InvalidPartitionType


class ResultPartitionType(enum.IntEnum):
    """How a partition hands its output over."""

    BLOCKING = PARTITION_BLOCKING
    """Stored as a whole, then read, any number of times."""
    PIPELINED = PARTITION_PIPELINED
    """Read once, while it is written; its pool may take all free network memory."""
    PIPELINED_BOUNDED = PARTITION_PIPELINED_BOUNDED
    """Read once, while it is written; its pool has a ceiling."""

    @property
    def is_pipelined(self) -> bool:
        """Whether it is read while it is written."""
        return self is not ResultPartitionType.BLOCKING


class ConsumptionConstraint(enum.IntEnum):
    """When a consumer of a partition may begin."""

    WHEN_REGISTERED = CONSUME_WHEN_REGISTERED
    AT_FIRST_OUTPUT = CONSUME_AT_FIRST_OUTPUT
    WHEN_FINISHED = CONSUME_WHEN_FINISHED


_VALID: Final = {
    ResultPartitionType.BLOCKING: (ConsumptionConstraint.WHEN_FINISHED,),
    ResultPartitionType.PIPELINED: (
        ConsumptionConstraint.WHEN_REGISTERED,
        ConsumptionConstraint.AT_FIRST_OUTPUT,
    ),
    ResultPartitionType.PIPELINED_BOUNDED: (
        ConsumptionConstraint.WHEN_REGISTERED,
        ConsumptionConstraint.AT_FIRST_OUTPUT,
    ),
}


def checked_partition_type(
    partition_type: int, consumption: int
) -> tuple[ResultPartitionType, ConsumptionConstraint]:
    """Turn two numbers, perhaps from the wire, into a valid combination.

    Raises:
        InvalidPartitionType: One of them is unknown, or they do not go together.
    """
    try:
        kind = ResultPartitionType(partition_type)
    except ValueError as error:
        raise InvalidPartitionType(
            "Unknown partition type", value=partition_type, limit=_names(ResultPartitionType)
        ) from error
    try:
        constraint = ConsumptionConstraint(consumption)
    except ValueError as error:
        raise InvalidPartitionType(
            "Unknown consumption constraint", value=consumption, limit=_names(ConsumptionConstraint)
        ) from error
    valid = _VALID[kind]
    if constraint not in valid:
        raise InvalidPartitionType(
            f"A {kind.name} partition cannot be consumed {constraint.name}",
            value=constraint.name,
            limit=" or ".join(allowed.name for allowed in valid),
        )
    return kind, constraint


class PoolBounds(NamedTuple):
    """Limits of the local pool of a pipelined partition, in segments; None: without a maximum."""

    required_segments: int
    maximum_segments: int | None


def pool_bounds(
    partition_type: ResultPartitionType,
    num_subpartitions: int,
    buffers_per_channel: int,
    floating_buffers_per_gate: int,
) -> PoolBounds:
    """Compute how many segments a partition's pool needs, and how many it may take.

    One buffer of each subpartition can be open, and another lets the writer go on meanwhile. The
    ceiling is ``num_subpartitions × buffers_per_channel + floating_buffers_per_gate``.
    """
    required = num_subpartitions + 1
    if partition_type is not ResultPartitionType.PIPELINED_BOUNDED:
        return PoolBounds(required, None)
    ceiling = num_subpartitions * buffers_per_channel + floating_buffers_per_gate
    return PoolBounds(required, max(required, ceiling))


def _names(kind: type[enum.IntEnum]) -> str:
    return ", ".join(f"{member.value} {member.name}" for member in kind)
