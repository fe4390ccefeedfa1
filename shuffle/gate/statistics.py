"""Statistics of gates, summed up on request from plain integers of their channels."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from .buffer_manager import BufferManager


class GateStatistics(NamedTuple):
    """Totals of a gate, or of a union of gates, so far.

    Attributes:
        channels: Number of channels.
        ended_channels: Number of channels that have ended.
        bytes_in_local: Payload bytes of data from this TaskManager.
        buffers_in_local: Data buffers from this TaskManager.
        bytes_in_remote: Payload bytes of data from other TaskManagers.
        buffers_in_remote: Data buffers from other TaskManagers.
        idle_seconds: Time during which a reader waited for data.
    """

    channels: int
    ended_channels: int
    bytes_in_local: int
    buffers_in_local: int
    bytes_in_remote: int
    buffers_in_remote: int
    idle_seconds: float


class BufferUsage(NamedTuple):
    """The receive buffers of a gate at one moment.

    Attributes:
        exclusive_buffers: Buffers that belong to single channels.
        exclusive_used: Exclusive buffers that hold data, or receive it.
        floating_limit: Number of floating buffers that the gate may have now.
        floating_used: Floating buffers that hold data, or receive it; more than the limit for a
            while after the limit has fallen.
    """

    exclusive_buffers: int
    exclusive_used: int
    floating_limit: int
    floating_used: int


class CountingChannel(Protocol):
    """A channel as the statistics see it."""

    @property
    def is_local(self) -> bool:
        """True if its partition is on this TaskManager."""

    @property
    def bytes_in(self) -> int:
        """Payload bytes of data so far."""

    @property
    def buffers_in(self) -> int:
        """Data buffers so far."""


def buffer_usage(managers: Iterable[BufferManager]) -> BufferUsage:
    """Add up the buffers of the channels of one gate."""
    exclusive = exclusive_available = floating_available = 0
    pool = None
    for manager in managers:
        exclusive += manager.initial_credit
        exclusive_available += manager.exclusive_available
        floating_available += manager.floating_available
        pool = manager.floating_pool
    lent, limit = (0, 0) if pool is None else (pool.lent_segments, pool.size_segments)
    return BufferUsage(exclusive, exclusive - exclusive_available, limit, lent - floating_available)


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
    """Add the statistics of several gates; ``idle_seconds`` is that of their common reader."""
    return GateStatistics(
        sum(part.channels for part in parts),
        sum(part.ended_channels for part in parts),
        sum(part.bytes_in_local for part in parts),
        sum(part.buffers_in_local for part in parts),
        sum(part.bytes_in_remote for part in parts),
        sum(part.buffers_in_remote for part in parts),
        idle_seconds,
    )
