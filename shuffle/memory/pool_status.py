"""The status of the network buffer pool and of its local pools."""

from typing import Annotated, Final

import msgspec

from ..metric import Metric, gauge, total

POOL_KINDS: Final = ("gate", "pipelined", "map_output", "read", "other")

_SEGMENTS = gauge(
    "network_memory_segments",
    "Segments of the network buffer pool; the states add up to the whole pool.",
)
_DENIED = total(
    "network_memory_requests_denied",
    "Pools and exclusive requests that got no memory: refused at once, or at their deadline.",
)


def _by_kind(name: str, text: str) -> Metric:
    return gauge(name, text, "kind", zeros=POOL_KINDS)


class PoolStatus(msgspec.Struct, frozen=True, gc=False):
    """A local buffer pool at one moment.

    Until lent segments are recycled, more may be lent than ``size_segments``.
    """

    name: str = ""
    size_segments: Annotated[
        int,
        _by_kind("local_pool_limit_segments", "Segments that local pools may hold now."),
    ] = 0
    """Its present limit, the share of the network pool."""
    required_segments: int = 0
    maximum_segments: int | None = None
    """Most segments that the pool may ever hold; None means no limit."""
    lent_segments: Annotated[
        int,
        _by_kind("local_pool_lent_segments", "Segments in the hands of the users of local pools."),
    ] = 0
    waiting_listeners: Annotated[
        int,
        gauge(
            "local_pool_waiting_listeners",
            "Requests that wait for a segment, over all local pools.",
        ),
    ] = 0
    kind: Annotated[str, _by_kind("local_pools", "Local buffer pools, by their use.")] = ""
    """Use of the pool: ``"gate"``, ``"pipelined"``, ``"map_output"`` or ``"read"``."""
    overdraft_segments: Annotated[
        int,
        _by_kind(
            "local_pool_overdraft_segments", "Segments that local pools hold beyond their limits."
        ),
    ] = 0
    overdrafts: int = 0
    """Segments lent beyond the limit on purpose since the pool was made."""
    full_channels: Annotated[
        int,
        gauge("local_pool_full_channels", "Channels that have their maximum of segments."),
    ] = 0


class NetworkPoolStatus(msgspec.Struct, frozen=True, gc=False):
    """The network buffer pool: available + lent + in flight = total."""

    total_segments: int = 0
    segment_size_bytes: Annotated[
        int, gauge("network_memory_segment_size_bytes", "Size of one segment.")
    ] = 0
    available_segments: Annotated[int, _SEGMENTS.at(state="free")] = 0
    lent_segments: Annotated[int, _SEGMENTS.at(state="lent")] = 0
    in_flight_segments: Annotated[int, _SEGMENTS.at(state="in_flight")] = 0
    """Segments that a transport is still sending."""
    local_pools: int = 0
    wanted_segments: Annotated[
        int,
        gauge(
            "network_memory_wanted_segments",
            "Segments that all pools and requests could use; above the pool's size, "
            "work slows down.",
        ),
    ] = 0
    waiting_requests: Annotated[
        int,
        gauge(
            "network_memory_waiting_requests", "Channels that wait for their exclusive segments."
        ),
    ] = 0
    refused_requests: Annotated[int, _DENIED.at(reason="refused")] = 0
    """Pools and exclusive requests refused since the start."""
    expired_requests: Annotated[int, _DENIED.at(reason="expired")] = 0
    """Exclusive requests that ended by their deadline since the start."""
    demand_warnings: Annotated[
        int,
        total(
            "network_memory_demand_warnings",
            "Times that the log warned of a demand above the pool's size.",
        ),
    ] = 0
