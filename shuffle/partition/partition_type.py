"""Kinds of result partitions, and when a consumer of one may begin (P12, P14).

::

    type                when registered   at first output   when finished
    BLOCKING            ✗                 ✗                 ✓
    PIPELINED           ✓                 ✓                 ✗
    PIPELINED_BOUNDED   ✓                 ✓                 ✗

✗ is an :class:`InvalidPartitionType`. A blocking partition is not complete before it is finished,
so nobody may read it sooner; a pipelined one that nobody may read before its end would fill its
pool and never get there. The numbers are those of the wire.
"""

import enum
from typing import Final, NamedTuple

from sluice.protocol.messages import (
    CONSUME_AT_FIRST_OUTPUT,
    CONSUME_WHEN_FINISHED,
    CONSUME_WHEN_REGISTERED,
    PARTITION_BLOCKING,
    PARTITION_PIPELINED,
    PARTITION_PIPELINED_BOUNDED,
)
from sluice.shuffle.errors import InvalidPartitionType


class ResultPartitionType(enum.IntEnum):
    """How a partition hands its output over."""

    BLOCKING = PARTITION_BLOCKING
    """Stored as a whole, read afterwards, as often as wanted."""
    PIPELINED = PARTITION_PIPELINED
    """Read once, while it is written; its pool may take what the network memory has to spare."""
    PIPELINED_BOUNDED = PARTITION_PIPELINED_BOUNDED
    """Read once, while it is written; its pool has a ceiling."""

    @property
    def is_pipelined(self) -> bool:
        """Whether it is read while it is written."""
        return self is not ResultPartitionType.BLOCKING


class ConsumptionConstraint(enum.IntEnum):
    """When a consumer may begin."""

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
        InvalidPartitionType: One is unknown, or they do not go together.
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
    """Limits for the local pool of a pipelined partition, in segments; None is no maximum."""

    required_segments: int
    maximum_segments: int | None


def pool_bounds(
    partition_type: ResultPartitionType,
    num_subpartitions: int,
    buffers_per_channel: int,
    floating_buffers_per_gate: int,
) -> PoolBounds:
    """Compute what a partition's pool needs and may take (M6, M13).

    One buffer for each subpartition can be open, and one more lets the writer go on while they are.
    The ceiling is ``channels × buffers_per_channel + floating_buffers_per_gate``.
    """
    required = num_subpartitions + 1
    if partition_type is not ResultPartitionType.PIPELINED_BOUNDED:
        return PoolBounds(required, None)
    ceiling = num_subpartitions * buffers_per_channel + floating_buffers_per_gate
    return PoolBounds(required, max(required, ceiling))


def _names(kind: type[enum.IntEnum]) -> str:
    return ", ".join(f"{member.value} {member.name}" for member in kind)
