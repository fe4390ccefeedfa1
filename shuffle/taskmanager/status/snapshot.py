"""Builds a status snapshot from live state; no other module walks over all parts of a daemon."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.messages import (
    FLOW_WATERMARK,
    ROLE_CONSUMER,
    ROLE_COPIER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
)
from ....transport.connection import Connection
from ...counters import BoundedCounts, Counters
from ..bounds.accounts import Account, Resource
from ..ingest.producer_handler import ProducerHandler
from ..serve.serving_handler import ServingHandler
from ..store.tiers.tier import TierStatistics
from ..wiring import NetworkEnvironment
from .event_loop_lag import EventLoopLag
from .room import StorageRoom
from .snapshot_exchange import gate_statuses, pipelined_statuses, producer_statuses, served_channels
from .status import (
    ApplicationStatus,
    ConnectionStatus,
    ControlMemoryStatus,
    CopiesStatus,
    EventLoopStatus,
    FlowControl,
    HoldingStatus,
    NetworkPoolStatus,
    PoolStatus,
    RegionAreasStatus,
    RemoteStatus,
    Served,
    ShuffleStatus,
    TaskManagerState,
    TaskManagerStatus,
    TierStatus,
    TrafficStatus,
    data_path,
    utf8_text,
)

if TYPE_CHECKING:
    from ...names import ShuffleKey

_ROLES = {
    0: "handshake",
    ROLE_PEER: "peer",
    ROLE_PRODUCER: "producer",
    ROLE_CONSUMER: "consumer",
    ROLE_DRIVER: "driver",
    ROLE_COPIER: "copier",
}


class Vitals(NamedTuple):
    """The state of the daemon around its network environment.

    Attributes:
        state: Its place between start and end.
        version: Version of the package.
        uptime_seconds: Time since the daemon was made.
        event_loop_lag: Measures the lag of the event loop.
        room: Tells whether the storage is full.
        log_lines_dropped: Lines of the log that were dropped.
    """

    state: TaskManagerState
    version: str
    uptime_seconds: float
    event_loop_lag: EventLoopLag
    room: StorageRoom
    log_lines_dropped: int = 0


def take_snapshot(environment: NetworkEnvironment, vitals: Vitals) -> TaskManagerStatus:
    """Take a snapshot of a TaskManager."""
    socket_path = environment.socket_path
    lag = vitals.event_loop_lag
    tiers = environment.store.tiers()
    full = vitals.room.none_because(tiers)
    return TaskManagerStatus(
        taskmanager_id=environment.taskmanager_id,
        version=vitals.version,
        data_path=data_path(),
        address=str(environment.address),
        socket_path=None if socket_path is None else utf8_text(socket_path),
        state=vitals.state,
        uptime_seconds=vitals.uptime_seconds,
        pools=_pools(environment),
        network_pool=_network_pool(environment),
        storage=_storage(tiers),
        partitions=_partitions(environment),
        pipelined_partitions=pipelined_statuses(environment),
        gates=gate_statuses(environment),
        served_channels=served_channels(environment),
        producers=producer_statuses(environment),
        region_areas=RegionAreasStatus(
            environment.region_areas.count, environment.region_areas.used_bytes
        ),
        remote=_remote(environment),
        copies=_copies(environment),
        control_memory=_control_memory(environment),
        connections=_connections(environment),
        traffic=_traffic(environment),
        applications=_applications(environment),
        event_loop=EventLoopStatus(lag.last_seconds, lag.max_seconds),
        tls_certificate_expires_at=_certificate_end(environment),
        counters=_counters(environment, vitals),
        serves=_serves(environment),
        no_room_because=None if full is None else utf8_text(full),
    )


def _copies(environment: NetworkEnvironment) -> CopiesStatus:
    copies = environment.copies
    progress = copies.migration.progress
    return CopiesStatus(
        waiting=copies.replication.waiting,
        short=len(copies.replication.holdings.short),
        watched=len(copies.watches),
        migrating=progress.active,
        moved=progress.moved,
        staying=progress.staying,
        reason=utf8_text(progress.reason),
    )


def _control_memory(environment: NetworkEnvironment) -> ControlMemoryStatus:
    memory = environment.listener.control_memory
    return ControlMemoryStatus(memory.used_bytes, memory.capacity_bytes, memory.refused_total)


def _certificate_end(environment: NetworkEnvironment) -> float | None:
    tls = environment.listener.tls
    shown = None if tls is None else tls.in_use.certificate
    return None if shown is None else shown.expires_at


def _serves(environment: NetworkEnvironment) -> Served:
    if environment.access.allows_anonymous:
        return "anonymous"
    return "this host" if environment.access.secrets is None else "authenticated"


def _counters(environment: NetworkEnvironment, vitals: Vitals) -> Counters:
    """Return a copy of the counters, with those kept elsewhere and waits that still last."""
    counters = environment.counters.snapshot()
    outcomes = environment.listener.outcomes
    counters.connections_accepted = outcomes.greeted
    counters.connections_refused = outcomes.failed_handshakes
    for code, count in outcomes.errors.items():
        counters.errors_by_code.bump(code, count)
    unix_socket = environment.listener.unix_socket
    if unix_socket is not None:
        counters.socket_file_restorations = unix_socket.restorations
    tls = environment.listener.tls
    if tls is not None:
        counters.tls_reloads = tls.reloads
        counters.tls_reload_failures = tls.failures
    counters.refused_connections = BoundedCounts(outcomes.refused)
    counters.quota_refusals = BoundedCounts(environment.accounts.refused)
    counters.memory_tier_refusals = environment.store.memory_refusals
    counters.applications_expired = environment.applications.expired_total
    counters.event_loop_lag_seconds = vitals.event_loop_lag.total_seconds
    counters.log_lines_dropped = vitals.log_lines_dropped
    services = environment.producer_services
    counters.producer_credit_wait_seconds = services.map_output_credit_wait.seconds
    counters.pipelined_credit_wait_seconds = services.pipelined_credit_wait.seconds
    for handler in environment.handlers.values():
        if isinstance(handler, ServingHandler):
            peer = handler.connection.role == ROLE_PEER
            total = counters.peer_serving if peer else counters.consumer_serving
            for times in handler.times:
                total.add(times.seconds())
    return counters


def _pools(environment: NetworkEnvironment) -> tuple[PoolStatus, ...]:
    return tuple(
        PoolStatus(
            pool.name,
            pool.size_segments,
            pool.required_segments,
            pool.maximum_segments,
            pool.lent_segments,
            pool.waiting_listeners,
            pool.kind,
            pool.overdraft_segments,
            pool.overdrafts,
            pool.full_channels,
        )
        for pool in environment.network_pool.statistics().local_pools
    )


def _network_pool(environment: NetworkEnvironment) -> NetworkPoolStatus:
    pool = environment.network_pool.statistics()
    in_flight = sum(connection.leased_buffers for connection in environment.handlers)
    return NetworkPoolStatus(
        pool.total_segments,
        pool.segment_size_bytes,
        pool.free_segments + pool.idle_segments,
        pool.out_segments,
        in_flight,
        len(pool.local_pools),
        environment.network_pool.demand.wanted_segments,
        pool.waiting_requests,
        environment.network_pool.refused_requests,
        environment.network_pool.expired_requests,
        environment.network_pool.demand.warnings,
    )


def _storage(tiers: Sequence[TierStatistics]) -> tuple[TierStatus, ...]:
    return tuple(
        TierStatus(
            tier.kind,
            utf8_text(tier.directory),
            tier.capacity_bytes,
            tier.used_bytes,
            tier.healthy,
            tier.free_bytes,
            utf8_text(tier.reason),
        )
        for tier in tiers
    )


def _remote(environment: NetworkEnvironment) -> RemoteStatus:
    outputs = environment.store.remote
    if outputs is None:
        return RemoteStatus()
    tier, objects = outputs.tier, outputs.tier.objects
    return RemoteStatus(
        tier.budget.used_bytes,
        tier.budget.waiting,
        tier.waiting_deletes,
        objects.requests,
        objects.errors,
        objects.read_bytes,
        objects.written_bytes,
        outputs.moves,
        outputs.found,
        tier.removed_orphans,
    )


def _partitions(environment: NetworkEnvironment) -> tuple[ShuffleStatus, ...]:
    being_written: dict[ShuffleKey, int] = {}
    for handler in environment.handlers.values():
        if isinstance(handler, ProducerHandler):
            for output in handler.stored_outputs:
                being_written[output.key] = being_written.get(output.key, 0) + 1
    statuses = [
        ShuffleStatus(
            shuffle.key.application_id,
            shuffle.key.shuffle_id,
            shuffle.map_outputs,
            being_written.pop(shuffle.key, 0),
            shuffle.stored_bytes,
            shuffle.regions,
        )
        for shuffle in environment.store.shuffles()
    ]
    statuses.extend(
        ShuffleStatus(key.application_id, key.shuffle_id, 0, count, 0, 0)
        for key, count in being_written.items()
    )
    return tuple(statuses)


def _connections(environment: NetworkEnvironment) -> tuple[ConnectionStatus, ...]:
    accepted = [
        _connection(environment, connection) for connection in environment.listener.connections
    ]
    made = [
        ConnectionStatus(
            client.connection.remote,
            "peer",
            "peer out",
            client.channels,
            client.connection.bytes_in,
            client.connection.bytes_out,
            client.connection.write_buffer_bytes,
            client.connection.writable,
            _flow_control(client.connection),
        )
        for client in environment.peers.clients()
    ]
    return (*accepted, *made)


def _connection(environment: NetworkEnvironment, connection: Connection) -> ConnectionStatus:
    handler = environment.handlers.get(connection)
    role = _ROLES[connection.role]
    channels = 0
    if isinstance(handler, ServingHandler):
        channels = len(handler.readers)
    elif isinstance(handler, ProducerHandler):
        channels = len(handler.stored_outputs)
    return ConnectionStatus(
        connection.remote,
        role,
        "peer in" if role == "peer" else role,
        channels,
        connection.bytes_in,
        connection.bytes_out,
        connection.write_buffer_bytes,
        connection.writable,
        _flow_control(connection),
    )


def _traffic(environment: NetworkEnvironment) -> tuple[TrafficStatus, ...]:
    return tuple(
        TrafficStatus(
            _ROLES[role],
            traffic.messages_in,
            traffic.messages_out,
            traffic.bytes_in,
            traffic.bytes_out,
        )
        for role, traffic in environment.listener.traffic().items()
    )


def _flow_control(connection: Connection) -> FlowControl:
    return "watermark" if connection.flow_control == FLOW_WATERMARK else "credit"


def _applications(environment: NetworkEnvironment) -> tuple[ApplicationStatus, ...]:
    stored: dict[str, int] = {}
    for shuffle in environment.store.shuffles():
        name = shuffle.key.application_id
        stored[name] = stored.get(name, 0) + shuffle.stored_bytes
    return tuple(
        ApplicationStatus(
            name,
            connections,
            expires_in,
            stored.get(name, 0),
            _holdings(environment.accounts.of(name)),
        )
        for name, connections, expires_in in environment.applications.snapshot()
    )


def _holdings(account: Account) -> tuple[HoldingStatus, ...]:
    return tuple(
        HoldingStatus(resource.name.lower(), account.held[resource], account.limits[resource])
        for resource in Resource
    )
