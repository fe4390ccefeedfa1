"""The types of result partitions, and when a consumer of each may begin.

::

    type                when registered   at first output   when finished
    BLOCKING            ✗                 ✗                 ✓
    PIPELINED           ✓                 ✓                 ✗
    PIPELINED_BOUNDED   ✓                 ✓                 ✗
    HYBRID_SELECTIVE    ✓                 ✓                 ✗
    HYBRID_FULL         ✓                 ✓                 ✗

✗ is an :class:`InvalidPartitionType`. A ``BLOCKING`` partition is stored, and complete only when it
is finished, so no consumer may read it sooner. A pipelined one that no consumer may read before its
end would fill its pool and never come to its end. The numbers are those of the wire.
"""

import enum
from typing import Final

from ...protocol.schema import (
    CONSUME_AT_FIRST_OUTPUT,
    CONSUME_WHEN_FINISHED,
    CONSUME_WHEN_REGISTERED,
    PARTITION_BLOCKING,
    PARTITION_HYBRID_FULL,
    PARTITION_HYBRID_SELECTIVE,
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
    HYBRID_SELECTIVE = PARTITION_HYBRID_SELECTIVE
    """As PIPELINED_BOUNDED, but a slow or absent reader does not stop the writer: when the pool is
    used up, the TaskManager moves unread buffers to its storage tiers."""
    HYBRID_FULL = PARTITION_HYBRID_FULL
    """As HYBRID_SELECTIVE, but kept until its shuffle is released: each of its readers begins at
    its first buffer, also after one has failed."""

    @property
    def is_pipelined(self) -> bool:
        """Whether it is read while it is written."""
        return self is not ResultPartitionType.BLOCKING

    @property
    def is_hybrid(self) -> bool:
        """Whether buffers move to the storage tiers when its pool is used up."""
        return self in (ResultPartitionType.HYBRID_SELECTIVE, ResultPartitionType.HYBRID_FULL)

    @property
    def is_reconsumable(self) -> bool:
        """Whether it can be read again, from its first buffer."""
        return self in (ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL)

    @property
    def is_bounded(self) -> bool:
        """Whether its pool has a ceiling that follows the number of subpartitions."""
        return self is ResultPartitionType.PIPELINED_BOUNDED or self.is_hybrid


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
    ResultPartitionType.HYBRID_SELECTIVE: (
        ConsumptionConstraint.WHEN_REGISTERED,
        ConsumptionConstraint.AT_FIRST_OUTPUT,
    ),
    ResultPartitionType.HYBRID_FULL: (
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


def ceiling_segments(
    channels: int, buffers_per_channel: int, floating_buffers_per_gate: int
) -> int:
    """Compute the most segments that a gate, or a bounded partition, with that many channels uses.

    It is ``channels × buffers_per_channel + floating_buffers_per_gate``.
    """
    return channels * buffers_per_channel + floating_buffers_per_gate


def pool_bounds(
    partition_type: ResultPartitionType,
    num_subpartitions: int,
    buffers_per_channel: int,
    floating_buffers_per_gate: int,
    max_segments: int | None = None,
) -> tuple[int, int | None]:
    """Compute how many segments a partition's pool needs, and how many it may take.

    One buffer of each subpartition of a pipelined partition can be open, and another lets the
    writer continue meanwhile. A stored partition that finds no free buffer writes its open buffers
    as a region, so it needs only one.

    Args:
        partition_type: A pipelined bounded or a hybrid partition has a ceiling by its channels.
        num_subpartitions: Number of subpartitions.
        buffers_per_channel: Segments for each of them.
        floating_buffers_per_gate: Segments beside these.
        max_segments: Most segments that its task allows it. If these are fewer than it needs it
            uses these, and is slower.

    Returns:
        The segments that the pool requires, and the maximum that it may take; None: no maximum.
    """
    required = num_subpartitions + 1 if partition_type.is_pipelined else 1
    most: int | None = None
    if partition_type.is_bounded:
        ceiling = ceiling_segments(
            num_subpartitions, buffers_per_channel, floating_buffers_per_gate
        )
        most = max(required, ceiling)
    if max_segments is not None:
        most = max_segments if most is None else min(most, max_segments)
        required = min(required, most)
    return required, most


def _names(kind: type[enum.IntEnum]) -> str:
    return ", ".join(f"{member.value} {member.name}" for member in kind)
