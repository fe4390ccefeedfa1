"""Prometheus metrics, made from one status snapshot when a scraper asks.

Units are base units, and counters end in ``_total``. The number of series depends on the
configuration and on the wire protocol, never on the load: no label names an application, a shuffle,
a peer or a pool. ``exchange_metrics`` has the metrics of data that moves between hosts and tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from .access_metrics import access_metrics
from .copies_metrics import copies_metrics
from .exchange_metrics import exchange_metrics, gauge, gauges, total, totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from ..status.status import PoolStatus, TaskManagerStatus

STATES: Final = ("starting", "ready", "draining", "stopped")
PROGRESS_KINDS: Final = ("region", "gate", "channel", "partition", "connection")
POOL_KINDS: Final = ("gate", "pipelined", "map_output", "read", "other")


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
        """Return nothing, so that registering does not ask a daemon that is still starting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family of one snapshot."""
        status = self._status()
        yield from _daemon(status)
        yield from _network_memory(status)
        yield from _local_pools(status)
        yield from _control_memory(status)
        yield from _storage(status)
        yield from _remote(status)
        yield from _map_outputs(status)
        yield from copies_metrics(status)
        yield from exchange_metrics(status)
        yield from _unix_socket(status)
        yield from _tls(status)
        yield from access_metrics(status)
        yield from _incidents(status)


def _daemon(status: TaskManagerStatus) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "sluice_taskmanager",
        "Identity of this TaskManager.",
        value={
            "taskmanager_id": status.taskmanager_id,
            "version": status.version,
            "data_path": status.data_path,
        },
    )
    states = {state: float(state == status.state) for state in STATES}
    yield gauges("taskmanager_state", "1 for the present state.", "state", states)
    yield gauge(
        "taskmanager_takes_work",
        "1 while /readyz says that this TaskManager should get new work.",
        status.not_ready_because is None,
    )
    yield gauge("uptime_seconds", "Time since the daemon started.", status.uptime_seconds)
    yield total(
        "event_loop_lag_seconds",
        "Time by which timers of the event loop fired late, one a second.",
        status.counters.event_loop_lag_seconds,
    )
    lag = status.event_loop
    yield gauge("event_loop_lag_last_seconds", "The last lag measured.", lag.last_lag_seconds)
    yield gauge(
        "event_loop_lag_max_seconds", "The worst lag of the last minute.", lag.max_lag_seconds
    )


def _unix_socket(status: TaskManagerStatus) -> Iterator[Metric]:
    yield total(
        "socket_file_restorations",
        "Times that another program removed the file of the Unix socket, and it was made again.",
        status.counters.socket_file_restorations,
    )


def _network_memory(status: TaskManagerStatus) -> Iterator[Metric]:
    pool = status.network_pool
    yield gauges(
        "network_memory_segments",
        "Segments of the network buffer pool; the states add up to the whole pool.",
        "state",
        {
            "free": pool.available_segments,
            "lent": pool.lent_segments,
            "in_flight": pool.in_flight_segments,
        },
    )
    yield gauge(
        "network_memory_segment_size_bytes", "Size of one segment.", pool.segment_size_bytes
    )
    yield gauge(
        "network_memory_wanted_segments",
        "Segments that all pools and requests could use; above the pool's size, work slows down.",
        pool.wanted_segments,
    )
    yield gauge(
        "network_memory_waiting_requests",
        "Channels that wait for their exclusive segments.",
        pool.waiting_requests,
    )
    yield totals(
        "network_memory_requests_denied",
        "Pools and exclusive requests that got no memory: refused at once, or at their deadline.",
        ("reason",),
        {("refused",): pool.refused_requests, ("expired",): pool.expired_requests},
    )
    yield total(
        "network_memory_demand_warnings",
        "Times that the log warned of a demand above the pool's size.",
        pool.demand_warnings,
    )


def _local_pools(status: TaskManagerStatus) -> Iterator[Metric]:
    pools: dict[str, list[PoolStatus]] = {kind: [] for kind in POOL_KINDS}
    for pool in status.pools:
        pools[pool.kind if pool.kind in pools else "other"].append(pool)

    def by_kind(name: str, text: str, value: Callable[[PoolStatus], int]) -> Metric:
        sums = {kind: float(sum(map(value, each))) for kind, each in pools.items()}
        return gauges(name, text, "kind", sums)

    yield gauges(
        "local_pools",
        "Local buffer pools, by their use.",
        "kind",
        {kind: len(each) for kind, each in pools.items()},
    )
    yield by_kind(
        "local_pool_limit_segments",
        "Segments that local pools may hold now.",
        lambda pool: pool.size_segments,
    )
    yield by_kind(
        "local_pool_lent_segments",
        "Segments in the hands of the users of local pools.",
        lambda pool: pool.lent_segments,
    )
    yield by_kind(
        "local_pool_overdraft_segments",
        "Segments that local pools hold beyond their limits.",
        lambda pool: pool.overdraft_segments,
    )
    yield gauge(
        "local_pool_full_channels",
        "Channels that have their maximum of segments.",
        sum(pool.full_channels for pool in status.pools),
    )
    yield gauge(
        "local_pool_waiting_listeners",
        "Requests that wait for a segment, over all local pools.",
        sum(pool.waiting_listeners for pool in status.pools),
    )


def _control_memory(status: TaskManagerStatus) -> Iterator[Metric]:
    memory = status.control_memory
    yield gauge(
        "control_memory_used_bytes",
        "Memory of long control parts under way and of answers that are not read.",
        memory.used_bytes,
    )
    yield gauge(
        "control_memory_capacity_bytes",
        "Most of it that all connections may have together.",
        memory.capacity_bytes,
    )
    yield total(
        "control_memory_refusals",
        "Connections closed because that memory was used up.",
        memory.refusals,
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


def _remote(status: TaskManagerStatus) -> Iterator[Metric]:
    remote = status.remote
    yield gauge(
        "remote_upload_bytes", "Memory of parts that are filled or sent.", remote.upload_bytes
    )
    yield gauge(
        "remote_waiting_uploads",
        "Uploads that wait for that memory; their producers get no credit.",
        remote.waiting_uploads,
    )
    yield gauge(
        "remote_waiting_deletes",
        "Objects of the remote tier that wait to be deleted.",
        remote.waiting_deletes,
    )
    yield total("remote_requests", "Requests to the remote tier.", remote.requests)
    yield total("remote_errors", "Requests that failed, repetitions included.", remote.errors)
    yield total("remote_read_bytes", "Bytes read from the remote tier.", remote.read_bytes)
    yield total("remote_written_bytes", "Bytes written to the remote tier.", remote.written_bytes)
    yield total(
        "remote_moved_map_outputs",
        "Map outputs that were moved to the remote tier.",
        remote.moved_map_outputs,
    )
    yield total(
        "remote_found_map_outputs",
        "Map outputs of others that were found in the remote tier.",
        remote.found_map_outputs,
    )
    yield total(
        "remote_removed_orphans", "Orphans that sweeps removed there.", remote.removed_orphans
    )


def _map_outputs(status: TaskManagerStatus) -> Iterator[Metric]:
    counters, shuffles = status.counters, status.partitions
    yield gauge("applications", "Applications known.", len(status.applications))
    yield gauge("shuffles", "Shuffles with map outputs here.", len(shuffles))
    yield gauges(
        "map_outputs",
        "Map outputs held.",
        "state",
        {
            "committed": sum(shuffle.committed_map_outputs for shuffle in shuffles),
            "open": sum(shuffle.open_map_outputs for shuffle in shuffles),
        },
    )
    yield gauge("regions", "Regions held.", sum(shuffle.regions for shuffle in shuffles))
    yield gauge(
        "stored_bytes", "Bytes of regions held.", sum(shuffle.stored_bytes for shuffle in shuffles)
    )
    yield totals(
        "map_outputs_finished",
        "Map outputs by how they ended; adopted ones were found at the start of the daemon.",
        ("outcome",),
        {
            ("committed",): counters.map_outputs_committed,
            ("aborted",): counters.map_outputs_aborted,
            ("adopted",): counters.map_outputs_adopted,
        },
    )
    yield total("regions_written", "Regions written.", counters.regions_written)
    yield total(
        "memory_tier_refusals",
        "Regions that went to the disk because their application had its share of the memory tier.",
        counters.memory_tier_refusals,
    )
    yield total(
        "applications_expired",
        "Applications whose data was dropped because no client was left.",
        counters.applications_expired,
    )


def _tls(status: TaskManagerStatus) -> Iterator[Metric]:
    if status.tls_certificate_expires_at is not None:
        yield gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "Time at which the TLS certificate in use expires, since 1970; absent without TLS.",
            status.tls_certificate_expires_at,
        )
    yield totals(
        "tls_reloads",
        "Changes of TLS files by what became of them; after a refused one the files loaded before "
        "stay in use.",
        ("result",),
        {
            ("loaded",): status.counters.tls_reloads,
            ("refused",): status.counters.tls_reload_failures,
        },
    )


def _incidents(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    yield total(
        "log_lines_dropped",
        "Log lines that were dropped because standard error was not read.",
        counters.log_lines_dropped,
    )
    yield totals(
        "late_messages",
        "Messages for a channel or partition that was already gone.",
        ("type",),
        {(kind,): count for kind, count in counters.late_messages.items()},
    )
    yield totals(
        "quota_refusals",
        "Requests of applications beyond their quota.",
        ("resource",),
        {(resource,): count for resource, count in counters.quota_refusals.items()},
    )
    yield totals(
        "progress_deadlines",
        "Things that were taken back because the other side did not move in time.",
        ("kind",),
        {(kind,): counters.progress_deadlines.get(kind, 0) for kind in PROGRESS_KINDS},
    )
    yield totals(
        "errors",
        "Errors reported to clients and peers, and those that closed a connection.",
        ("code",),
        {(code,): count for code, count in counters.errors_by_code.items()},
    )
