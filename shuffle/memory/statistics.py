"""Frozen snapshots of the memory pools."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalBufferPoolStatistics:
    """A local pool at one moment, in segments.

    ``size_segments`` is the current limit; ``idle + lent`` may be above it until lent segments
    are recycled, which is what ``overdraft_segments`` counts; ``overdrafts`` is how many were ever
    lent beyond the limit. ``full_channels`` have their maximum of segments. ``maximum_segments`` is
    ``None`` for an unbounded pool.
    """

    name: str
    kind: str
    required_segments: int
    maximum_segments: int | None
    size_segments: int
    idle_segments: int
    lent_segments: int
    waiting_listeners: int
    overdraft_segments: int
    overdrafts: int
    full_channels: int
    is_destroyed: bool


@dataclass(frozen=True, slots=True)
class NetworkBufferPoolStatistics:
    """The network memory of a TaskManager at one moment, in segments.

    Always ``free_segments + idle_segments + out_segments == total_segments``, each counted where
    it is: ``out_segments`` are those lent by local pools (destroyed ones too) and
    ``exclusive_segments``. ``reserved_exclusive_segments`` adds what waiting requests were
    promised. ``draining_pools`` are destroyed pools whose segments are still out.
    """

    total_segments: int
    segment_size_bytes: int
    free_segments: int
    idle_segments: int
    out_segments: int
    exclusive_segments: int
    reserved_exclusive_segments: int
    required_segments: int
    waiting_requests: int
    local_pools: tuple[LocalBufferPoolStatistics, ...]
    draining_pools: tuple[LocalBufferPoolStatistics, ...]
