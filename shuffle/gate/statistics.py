"""What a gate has taken in: summed up when asked for, from plain integers of its channels."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class GateStatistics(NamedTuple):
    """What a gate, or a union of gates, has done so far.

    Attributes:
        channels: How many it has.
        ended_channels: How many of them have ended.
        bytes_in_local: Payload bytes of data from this TaskManager.
        buffers_in_local: Data buffers from this TaskManager.
        bytes_in_remote: Payload bytes of data from other TaskManagers.
        buffers_in_remote: Data buffers from other TaskManagers.
        idle_seconds: Time during which a reader waited and nothing was there.
    """

    channels: int
    ended_channels: int
    bytes_in_local: int
    buffers_in_local: int
    bytes_in_remote: int
    buffers_in_remote: int
    idle_seconds: float


class CountingChannel(Protocol):
    """What is read of a channel."""

    @property
    def is_local(self) -> bool:
        """True if its partition is on this TaskManager."""

    @property
    def bytes_in(self) -> int:
        """Payload bytes of data so far."""

    @property
    def buffers_in(self) -> int:
        """Data buffers so far."""


def channel_statistics(
    channels: Sequence[CountingChannel], ended_channels: int, idle_seconds: float
) -> GateStatistics:
    """Sum up the counts of channels."""
    local = [channel for channel in channels if channel.is_local]
    remote = [channel for channel in channels if not channel.is_local]
    return GateStatistics(
        len(channels),
        ended_channels,
        sum(channel.bytes_in for channel in local),
        sum(channel.buffers_in for channel in local),
        sum(channel.bytes_in for channel in remote),
        sum(channel.buffers_in for channel in remote),
        idle_seconds,
    )


def sum_up(parts: Sequence[GateStatistics], idle_seconds: float) -> GateStatistics:
    """Add the statistics of several gates; their waiting is that of whoever reads them all."""
    return GateStatistics(
        sum(part.channels for part in parts),
        sum(part.ended_channels for part in parts),
        sum(part.bytes_in_local for part in parts),
        sum(part.buffers_in_local for part in parts),
        sum(part.bytes_in_remote for part in parts),
        sum(part.buffers_in_remote for part in parts),
        idle_seconds,
    )
