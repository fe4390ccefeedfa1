"""Prometheus metrics, made from one status snapshot when a scraper asks.

Base units, ``_total`` on counters. The number of series depends on the configuration and on the
wire protocol, never on the load: no label names an application, a shuffle, a peer or a pool.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from shuffle.daemon.status import TaskManagerStatus

STATES: Final = ("starting", "ready", "draining", "stopped")
CHANNEL_KINDS: Final = ("local", "remote")


def registry(status: Callable[[], TaskManagerStatus]) -> CollectorRegistry:
    """Return a registry with the metrics of one TaskManager and those of its process."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    made.register(TaskManagerCollector(status))
    return made


class TaskManagerCollector(Collector):
    """Turns a snapshot into metric families.

    Args:
        status: Called once per scrape, in the thread of the scrape.
    """

    def __init__(self, status: Callable[[], TaskManagerStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not ask a daemon that is still starting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family of one snapshot."""
        status = self._status()
        yield from _daemon(status)
        yield from _network_memory(status)
        yield from _storage(status)
        yield from _map_outputs(status)
        yield from _channels(status)
        yield from _connections(status)
        yield from _traffic(status)
        yield from _incidents(status)


def _gauge(
    name: str, text: str, values: dict[str, float], label: str
) -> GaugeMetricFamily:  # one label is enough for almost every family
    family = GaugeMetricFamily(f"sluice_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sluice_{name}", text, value=value)


def _total(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"sluice_{name}", text, value=value)


def _totals(
    name: str, text: str, labels: tuple[str, ...], values: dict[tuple[str, ...], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"sluice_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _daemon(status: TaskManagerStatus) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "sluice_taskmanager",
        "Identity of this TaskManager.",
        value={"taskmanager_id": status.taskmanager_id, "version": status.version},
    )
    states = {state: float(state == status.state) for state in STATES}
    yield _gauge("taskmanager_state", "1 for the state it is in.", states, "state")
    yield _single("uptime_seconds", "Time since the daemon started.", status.uptime_seconds)
    yield _total(
        "event_loop_lag_seconds",
        "Time by which timers of the event loop fired late.",
        status.counters.event_loop_lag_seconds,
    )


def _network_memory(status: TaskManagerStatus) -> Iterator[Metric]:
    pool = status.network_pool
    yield _gauge(
        "network_memory_segments",
        "Segments of the network buffer pool; the states add up to the whole pool.",
        {
            "free": pool.available_segments,
            "lent": pool.lent_segments,
            "in_flight": pool.in_flight_segments,
        },
        "state",
    )
    yield _single(
        "network_memory_segment_size_bytes", "Size of one segment.", pool.segment_size_bytes
    )
    yield _single("local_pools", "Local buffer pools.", pool.local_pools)
    yield _single(
        "local_pool_waiting_listeners",
        "Requests that wait for a segment, over all local pools.",
        sum(local.waiting_listeners for local in status.pools),
    )


def _storage(status: TaskManagerStatus) -> Iterator[Metric]:
    labels = ["tier", "directory"]
    capacity = GaugeMetricFamily(
        "sluice_storage_capacity_bytes", "Most bytes that may be used.", labels=labels
    )
    used = GaugeMetricFamily(
        "sluice_storage_used_bytes", "Bytes in extents that are in use.", labels=labels
    )
    free = GaugeMetricFamily(
        "sluice_storage_free_bytes", "Bytes that new extents can get.", labels=labels
    )
    healthy = GaugeMetricFamily(
        "sluice_storage_healthy", "1 if the directory takes data.", labels=labels
    )
    for tier in status.storage:
        key = [tier.tier, tier.directory]
        if tier.capacity_bytes is not None:
            capacity.add_metric(key, tier.capacity_bytes)
        used.add_metric(key, tier.used_bytes)
        free.add_metric(key, tier.free_bytes)
        healthy.add_metric(key, tier.healthy)
    yield from (capacity, used, free, healthy)


def _map_outputs(status: TaskManagerStatus) -> Iterator[Metric]:
    counters, shuffles = status.counters, status.partitions
    yield _single("applications", "Applications known.", len(status.applications))
    yield _single("shuffles", "Shuffles with map outputs here.", len(shuffles))
    yield _gauge(
        "map_outputs",
        "Map outputs held.",
        {
            "committed": sum(shuffle.committed_map_outputs for shuffle in shuffles),
            "open": sum(shuffle.open_map_outputs for shuffle in shuffles),
        },
        "state",
    )
    yield _single("regions", "Regions held.", sum(shuffle.regions for shuffle in shuffles))
    yield _single(
        "stored_bytes", "Bytes of regions held.", sum(shuffle.stored_bytes for shuffle in shuffles)
    )
    yield _totals(
        "map_outputs_finished",
        "Map outputs by how they ended; adopted ones were found at the start of the daemon.",
        ("outcome",),
        {
            ("committed",): counters.map_outputs_committed,
            ("aborted",): counters.map_outputs_aborted,
            ("adopted",): counters.map_outputs_adopted,
        },
    )
    yield _total("regions_written", "Regions written.", counters.regions_written)
    yield _total(
        "applications_expired",
        "Applications whose data was dropped because no client was left.",
        counters.applications_expired,
    )


def _channels(status: TaskManagerStatus) -> Iterator[Metric]:
    channels = [channel for gate in status.gates for channel in gate.channels]
    count, queued, credit, backlog = (dict.fromkeys(CHANNEL_KINDS, 0.0) for _ in range(4))
    for channel in channels:
        count[channel.kind] += 1
        queued[channel.kind] += channel.queued_buffers
        credit[channel.kind] += channel.available_credit
        backlog[channel.kind] += channel.backlog_buffers
    yield _single("gates", "Open input gates.", len(status.gates))
    yield _gauge("channels", "Input channels of open gates.", count, "kind")
    yield _gauge("channel_queued_buffers", "Received, not yet sent on.", queued, "kind")
    yield _gauge("channel_available_credit", "Credits that sources may use.", credit, "kind")
    yield _gauge("channel_backlog_buffers", "Buffers waiting at sources.", backlog, "kind")


def _connections(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    open_now = Counter((connection.leg, connection.role) for connection in status.connections)
    family = GaugeMetricFamily("sluice_connections", "Open connections.", labels=["leg", "role"])
    for key, count in open_now.items():
        family.add_metric(key, count)
    yield family
    legs = sorted({connection.leg for connection in status.connections})
    unwritable, buffered = dict.fromkeys(legs, 0.0), dict.fromkeys(legs, 0.0)
    for connection in status.connections:
        unwritable[connection.leg] += not connection.writable
        buffered[connection.leg] += connection.write_buffer_bytes
    yield _gauge("connections_unwritable", "Above the high watermark.", unwritable, "leg")
    yield _gauge("connection_write_buffer_bytes", "Written, not yet sent.", buffered, "leg")
    yield _totals(
        "connections_finished_handshake",
        "Connections by whether their handshake succeeded.",
        ("result",),
        {
            ("accepted",): counters.connections_accepted,
            ("refused",): counters.connections_refused,
        },
    )


def _traffic(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    yield _totals(
        "received_bytes",
        "Payload bytes received, by leg.",
        ("leg",),
        {("producer",): counters.producer_bytes_in, ("peer",): counters.peer_bytes_in},
    )
    yield _totals(
        "received_buffers",
        "Buffers received, by leg.",
        ("leg",),
        {("producer",): counters.producer_buffers_in, ("peer",): counters.peer_buffers_in},
    )
    yield _totals(
        "sent_bytes",
        "Payload bytes sent, by leg and by where they were stored.",
        ("leg", "source"),
        {
            ("peer", "local"): counters.peer_bytes_out,
            ("consumer", "local"): counters.consumer_bytes_out_local,
            ("consumer", "remote"): counters.consumer_bytes_out_remote,
        },
    )
    yield _totals(
        "sent_buffers",
        "Buffers sent, by leg and by where they were stored.",
        ("leg", "source"),
        {
            ("peer", "local"): counters.peer_buffers_out,
            ("consumer", "local"): counters.consumer_buffers_out_local,
            ("consumer", "remote"): counters.consumer_buffers_out_remote,
        },
    )
    yield _total("credits_sent", "Credits granted to senders.", counters.credits_sent)
    yield _total("credits_received", "Credits granted by receivers.", counters.credits_received)
    yield _total(
        "producer_credit_wait_seconds",
        "Time for which map tasks had to wait for credit.",
        counters.producer_credit_wait_seconds,
    )


def _incidents(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    yield _totals(
        "late_messages",
        "Messages for a channel or partition that was already gone.",
        ("type",),
        {(kind,): count for kind, count in counters.late_messages.items()},
    )
    yield _totals(
        "errors",
        "Errors reported to clients and peers.",
        ("code",),
        {(code,): count for code, count in counters.errors_by_code.items()},
    )
