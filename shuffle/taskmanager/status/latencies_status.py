"""The status of latencies and waits, as histograms since the start."""

from typing import Annotated

import msgspec

from ...histogram_status import HistogramStatus
from ...metric import Metric, histogram
from ..store.store_status import RegionReadsStatus

_CREDIT_WAIT = histogram(
    "Waits for credit that have ended: of producers for credit of this TaskManager, of channels "
    "that it serves for credit of their consumers.",
    "credit_wait_seconds",
)


def _credit_wait(leg: str, kind: str) -> Metric:
    return _CREDIT_WAIT.at(leg=leg, kind=kind)


class LatenciesStatus(msgspec.Struct, frozen=True, gc=False):
    """Latencies and waits of a TaskManager. A wait is counted when it ends, however it ends."""

    commit: Annotated[
        HistogramStatus,
        histogram(
            "Commits of map outputs, from the producer's request to the answer; synchronous copies "
            "included.",
            "commit_seconds",
        ),
    ] = HistogramStatus()
    region_reads: tuple[RegionReadsStatus, ...] = ()
    map_output_credit_wait: Annotated[HistogramStatus, _credit_wait("producer", "map_output")] = (
        HistogramStatus()
    )
    """Waits of producers of map outputs."""
    pipelined_credit_wait: Annotated[HistogramStatus, _credit_wait("producer", "pipelined")] = (
        HistogramStatus()
    )
    """Waits of producers of pipelined partitions."""
    peer_credit_wait: Annotated[HistogramStatus, _credit_wait("peer", "channel")] = (
        HistogramStatus()
    )
    """Waits of channels that other TaskManagers read."""
    consumer_credit_wait: Annotated[HistogramStatus, _credit_wait("consumer", "channel")] = (
        HistogramStatus()
    )
    """Waits of channels that reduce tasks read."""
    partition_request_wait: Annotated[
        HistogramStatus,
        histogram(
            "Requests of channels for partitions here, until they can be read or the request ends.",
            "partition_request_wait_seconds",
        ),
    ] = HistogramStatus()
    connect: Annotated[
        HistogramStatus,
        histogram(
            "Connections made to other TaskManagers, handshakes included; failed ones are not "
            "counted.",
            "connect_seconds",
        ),
    ] = HistogramStatus()
    event_loop_lag: Annotated[
        HistogramStatus,
        histogram("Lags of the event loop, measured once a second.", "event_loop_lag_seconds"),
    ] = HistogramStatus()
