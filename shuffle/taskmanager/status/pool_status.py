"""The status of the network buffer pool and of its local pools."""

from typing import Annotated, ClassVar, Final

import msgspec

from ...metric import Metric, gauge, total

POOL_KINDS: Final = ("gate", "pipelined", "map_output", "read", "other")

_SEGMENTS = gauge(
    "Segments of the network buffer pool.",
    "network_memory_segments",
)
_DENIED = total(
    "Pools and exclusive requests that got no memory.",
    "network_memory_requests_denied",
)


def _by_kind(text: str, name: str = "") -> Metric:
    return gauge(text, name, by="kind", zeros=POOL_KINDS)


class PoolStatus(msgspec.Struct, frozen=True, gc=False):
    """A local buffer pool at one moment.

    Until lent segments are recycled, more may be lent than ``size_segments``.
    """

    metric_prefix: ClassVar[str] = "local_pool_"

    name: str = ""
    size_segments: Annotated[
        int, _by_kind("Segments that local pools may hold now.", "local_pool_limit_segments")
    ] = 0
    """Its present limit, the share of the network pool."""
    required_segments: int = 0
    maximum_segments: int | None = None
    """Most segments that the pool may ever hold; None means no limit."""
    lent_segments: Annotated[int, _by_kind("Segments that users of local pools hold.")] = 0
    waiting_listeners: Annotated[
        int, gauge("Requests that wait for a segment in all local pools.")
    ] = 0
    kind: Annotated[str, _by_kind("Local buffer pools.", "local_pools")] = ""
    """Use of the pool: ``"gate"``, ``"pipelined"``, ``"map_output"`` or ``"read"``."""
    overdraft_segments: Annotated[
        int, _by_kind("Segments that local pools hold beyond their limits.")
    ] = 0
    overdrafts: int = 0
    """Segments lent beyond the limit on purpose since the pool was made."""
    full_channels: Annotated[int, gauge("Channels that have their maximum of segments.")] = 0
    application_id: str = ""
    """The application whose quota its segments count for; empty: none."""


class NetworkPoolStatus(msgspec.Struct, frozen=True, gc=False):
    """The network buffer pool: available + lent + in flight = total."""

    metric_prefix: ClassVar[str] = "network_memory_"

    total_segments: int = 0
    segment_size_bytes: Annotated[int, gauge("Size of one segment.", combine="max")] = 0
    available_segments: Annotated[int, _SEGMENTS.at(state="free")] = 0
    lent_segments: Annotated[int, _SEGMENTS.at(state="lent")] = 0
    in_flight_segments: Annotated[int, _SEGMENTS.at(state="in_flight")] = 0
    """Segments that a transport is still sending."""
    local_pools: int = 0
    wanted_segments: Annotated[
        int,
        gauge("Segments that all pools and requests could use."),
    ] = 0
    waiting_requests: Annotated[int, gauge("Channels that wait for their exclusive segments.")] = 0
    refused_requests: Annotated[int, _DENIED.at(reason="refused")] = 0
    """Pools and exclusive requests refused since the start."""
    expired_requests: Annotated[int, _DENIED.at(reason="expired")] = 0
    """Exclusive requests that ended by their deadline since the start."""
    demand_warnings: Annotated[int, total("Logged warnings of a demand above the pool's size.")] = 0
