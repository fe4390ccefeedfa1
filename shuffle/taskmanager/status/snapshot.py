"""Assembles the status of a TaskManager from the parts that their owners return."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from ....protocol.schema import (
    FLOW_WATERMARK,
    ROLE_CONSUMER,
    ROLE_COPIER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
)
from ....transport.connection import Connection
from ...counters import BoundedCounts, Counters
from ...histogram_status import HistogramStatus
from ...memory import LocalBufferPool
from ...names import ShuffleKey, utf8_text
from ...partition.pipelined_result_partition import PipelinedResultPartition
from ...partition_status import PipelinedPartitionStatus
from ..bounds.accounts import Account, ApplicationStatus
from ..ingest.incoming_output import IncomingOutput
from ..ingest.pipelined_output import PipelinedOutput
from ..ingest.producer_handler import ProducerHandler
from ..ingest.producing_status import ProducersStatus
from ..serve.channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA
from ..serve.consumer_handler import ConsumerHandler
from ..serve.serving_handler import ServingHandler
from ..serve.serving_status import GateStatus, ServedChannelsStatus
from ..store.store_status import ShuffleStatus
from ..tracing.traces_status import TracesStatus
from ..wiring import NetworkEnvironment
from .event_loop_lag import EventLoopLag
from .latencies_status import LatenciesStatus
from .pool_status import NetworkPoolStatus, PoolStatus
from .recent import RecentHistory
from .room import StorageRoom
from .status import (
    ConnectionStatus,
    ControlMemoryStatus,
    EventLoopStatus,
    Served,
    TaskManagerState,
    TaskManagerStatus,
    TrafficStatus,
    data_path,
)

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
        recent: Has the samples of the last minutes.
        log_lines_dropped: Lines of the log that were dropped.
        audit_lines_dropped: Lines of the audit log that were dropped.
    """

    state: TaskManagerState
    version: str
    uptime_seconds: float
    event_loop_lag: EventLoopLag
    room: StorageRoom
    recent: RecentHistory | None
    log_lines_dropped: int = 0
    audit_lines_dropped: int = 0


def take_snapshot(environment: NetworkEnvironment, vitals: Vitals) -> TaskManagerStatus:
    """Take a snapshot of a TaskManager."""
    from .waits import waits_of  # only a status needs it

    waits, omitted = waits_of(environment)
    counters = _counters(environment, vitals)
    legs = _Legs(environment, counters)
    shuffles = environment.store.shuffles()
    tiers = environment.store.tiers()
    full = vitals.room.none_because(tiers)
    socket_path = environment.socket_path
    lag = vitals.event_loop_lag
    tls = environment.listener.tls
    certificate = None if tls is None else tls.in_use.certificate
    services, tracing = environment.producer_services, environment.tracing
    now = time.monotonic()
    return TaskManagerStatus(
        taskmanager_id=environment.taskmanager_id,
        version=vitals.version,
        data_path=data_path(),
        address=str(environment.address),
        socket_path=None if socket_path is None else utf8_text(socket_path),
        state=vitals.state,
        uptime_seconds=vitals.uptime_seconds,
        pools=tuple(map(_local_pool, environment.network_pool.local_pools)),
        network_pool=_network_pool(environment, legs.in_flight_segments),
        storage=tuple(tiers),
        partitions=_shuffles(shuffles, legs.open_map_outputs),
        pipelined_partitions=_pipelined(environment, legs.pipelined_outputs),
        gates=tuple(legs.gates),
        served_channels=(
            _served("peer", legs.served[ROLE_PEER], legs.credit_waits[ROLE_PEER]),
            _served("consumer", legs.served[ROLE_CONSUMER], legs.credit_waits[ROLE_CONSUMER]),
        ),
        producers=(
            ProducersStatus(
                "map_output",
                legs.map_output_credit,
                services.map_output_credit_wait.count,
                _longest(legs.map_outputs, now),
            ),
            ProducersStatus(
                "pipelined",
                sum(output.available_credit for output in legs.pipelined_outputs),
                services.pipelined_credit_wait.count,
                _longest(legs.pipelined_outputs, now),
            ),
        ),
        region_areas=environment.region_areas.status(),
        remote=environment.store.remote_status(),
        copies=environment.copies.status(),
        cluster=environment.copies.members_status(),
        scrub=environment.scrub.status(),
        traces=TracesStatus() if tracing is None else tracing.status(),
        control_memory=_control_memory(environment),
        connections=_connections(environment, legs.channels),
        traffic=tuple(
            TrafficStatus(
                _ROLES[role], each.messages_in, each.messages_out, each.bytes_in, each.bytes_out
            )
            for role, each in environment.listener.traffic().items()
        ),
        applications=_applications(environment, shuffles),
        event_loop=EventLoopStatus(lag.last_seconds, lag.max_seconds),
        latencies=_latencies(environment, vitals),
        tls_certificate_expires_at=None if certificate is None else certificate.expires_at,
        counters=counters,
        serves=_serves(environment),
        no_room_because=None if full is None else utf8_text(full),
        cpu_seconds=time.process_time(),
        waits=waits,
        waits_omitted=omitted,
        recent=() if vitals.recent is None else vitals.recent.samples(),
    )


def _served(leg: str, sums: list[int], credit_wait_seconds: float) -> ServedChannelsStatus:
    sending, for_data, for_credit, credit = sums
    return ServedChannelsStatus(leg, sending, for_data, for_credit, credit, credit_wait_seconds)


def _longest(outputs: Sequence[IncomingOutput], now: float) -> float:
    """Return the longest time since when the producer of one of them has waited for credit."""
    began = [at for each in outputs if (at := each.credit_wait.began_at) is not None]
    return max(0.0, now - min(began)) if began else 0.0


def _serves(environment: NetworkEnvironment) -> Served:
    if environment.access.allows_anonymous:
        return "anonymous"
    return "this host" if environment.access.secrets is None else "authenticated"


def _local_pool(pool: LocalBufferPool) -> PoolStatus:
    owner = pool.share.owner
    return PoolStatus(
        pool.name,
        pool.size_segments,
        pool.bounds.required_segments,
        pool.bounds.maximum_segments,
        pool.lent_segments,
        pool.waiting_listeners,
        pool.kind,
        pool.overdraft_segments,
        pool.overdrafts,
        pool.channels.full_channels,
        owner.application_id if isinstance(owner, Account) else "",
    )


def _network_pool(environment: NetworkEnvironment, in_flight_segments: int) -> NetworkPoolStatus:
    pool = environment.network_pool
    return NetworkPoolStatus(
        pool.total_segments,
        pool.segment_size_bytes,
        pool.available_segments + sum(local.idle_segments for local in pool.local_pools),
        pool.lent_segments,
        in_flight_segments,
        len(pool.local_pools),
        pool.demand.wanted_segments,
        pool.waiting_requests,
        pool.refused_requests,
        pool.expired_requests,
        pool.demand.warnings,
    )


def _control_memory(environment: NetworkEnvironment) -> ControlMemoryStatus:
    memory = environment.listener.control_memory
    return ControlMemoryStatus(memory.used_bytes, memory.capacity_bytes, memory.refused_total)


class _Legs:
    """Reports of the handlers of all accepted connections, collected in one pass.

    Args:
        environment: Has the handlers.
        counters: Gets the times of channels that are still served.
    """

    def __init__(self, environment: NetworkEnvironment, counters: Counters) -> None:
        self.in_flight_segments = 0
        self.channels: dict[Connection, int] = {}
        """Channels that are served, or map outputs that are received, by connection."""
        self.gates: list[GateStatus] = []
        self.open_map_outputs: dict[ShuffleKey, int] = {}
        self.map_outputs: list[IncomingOutput] = []
        self.map_output_credit = 0
        self.pipelined_outputs: list[PipelinedOutput] = []
        self.served = {ROLE_PEER: [0, 0, 0, 0], ROLE_CONSUMER: [0, 0, 0, 0]}
        """Channels that send, wait for data and wait for credit, and their credit, by role."""
        self.credit_waits = {ROLE_PEER: 0.0, ROLE_CONSUMER: 0.0}
        """The longest waits for credit, in seconds, by role."""
        for connection, handler in environment.handlers.items():
            self.in_flight_segments += connection.leased_buffers
            if isinstance(handler, ProducerHandler):
                outputs = handler.stored_outputs
                self.channels[connection] = len(outputs)
                self.map_outputs += outputs
                for output in outputs:
                    self.open_map_outputs[output.key] = self.open_map_outputs.get(output.key, 0) + 1
                self.map_output_credit += handler.stored_credit
                self.pipelined_outputs += handler.pipelined_outputs
            elif isinstance(handler, ServingHandler):
                self.channels[connection] = len(handler.readers)
                is_peer = connection.role == ROLE_PEER
                role = ROLE_PEER if is_peer else ROLE_CONSUMER
                sums = self.served[role]
                wait_seconds = handler.credit_wait_seconds
                self.credit_waits[role] = max(self.credit_waits[role], wait_seconds)
                total = counters.peer_serving if is_peer else counters.consumer_serving
                for times in handler.times:
                    total.add(times.seconds())
                    sums[0] += times.counts[SENDING]
                    sums[1] += times.counts[WAITING_FOR_DATA]
                    sums[2] += times.counts[WAITING_FOR_CREDIT]
                sums[3] += sum(reader.credit.available for reader in handler.readers.values())
                if isinstance(handler, ConsumerHandler):
                    self.gates += handler.gate_statuses()


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
    damage = environment.partitions.damage
    counters.damaged_map_outputs_dropped = damage.dropped
    counters.damage_reports = BoundedCounts(damage.results)
    counters.damaged_map_outputs_repaired = environment.store.statistics().repaired_map_outputs
    counters.memory_tier_refusals = environment.store.memory_refusals
    counters.applications_expired = environment.applications.expired_total
    counters.log_lines_dropped = vitals.log_lines_dropped
    counters.audit_lines_dropped = vitals.audit_lines_dropped
    services = environment.producer_services
    counters.producer_credit_wait_seconds = services.map_output_credit_wait.seconds
    counters.pipelined_credit_wait_seconds = services.pipelined_credit_wait.seconds
    return counters


def _latencies(environment: NetworkEnvironment, vitals: Vitals) -> LatenciesStatus:
    services = environment.producer_services
    taken = HistogramStatus.taken
    return LatenciesStatus(
        commit=taken(services.commits),
        region_reads=tuple(environment.store.region_reads()),
        map_output_credit_wait=taken(services.map_output_credit_wait.waits),
        pipelined_credit_wait=taken(services.pipelined_credit_wait.waits),
        peer_credit_wait=taken(environment.peer_credit_waits),
        consumer_credit_wait=taken(environment.gate_services.credit_waits),
        partition_request_wait=taken(environment.partitions.request_waits),
        connect=taken(environment.connects),
        event_loop_lag=taken(vitals.event_loop_lag.lags),
    )


def _shuffles(
    stored: list[ShuffleStatus], being_written: dict[ShuffleKey, int]
) -> tuple[ShuffleStatus, ...]:
    """Return shuffles with committed map outputs, then those that have only open ones."""
    if not being_written:
        return tuple(stored)
    found = {shuffle.key: shuffle for shuffle in stored}
    for key, count in being_written.items():
        shuffle = found.get(key, ShuffleStatus(*key))
        found[key] = structs.replace(shuffle, open_map_outputs=count)
    return tuple(found.values())


def _pipelined(
    environment: NetworkEnvironment, outputs: list[PipelinedOutput]
) -> tuple[PipelinedPartitionStatus, ...]:
    """Collect every pipelined partition, written or only read."""
    written = {(output.key, output.map_attempt_id): output for output in outputs}
    found = []
    for key, map_attempt_id, partition in environment.partitions.pipelined:
        if isinstance(partition, PipelinedResultPartition):
            status = partition.status()
            output = written.get((key, map_attempt_id))
            seen: dict[str, object] = {}
            if output is not None:
                seen["used_segments"] = status.used_segments - output.ready_segments
                seen["available_credit"] = output.available_credit
                seen["back_pressured"] = output.credit_wait.is_waiting
                if output.is_open:
                    seen["back_pressured_seconds"] = output.credit_wait.seconds
            found.append(
                structs.replace(
                    status,
                    application_id=key.application_id,
                    shuffle_id=key.shuffle_id,
                    map_attempt_id=map_attempt_id,
                    **seen,
                )
            )
    return tuple(found)


def _connections(
    environment: NetworkEnvironment, channels: dict[Connection, int]
) -> tuple[ConnectionStatus, ...]:
    """Return the accepted connections, then those that were made."""
    accepted = (
        _connection(each, "", channels.get(each, 0)) for each in environment.listener.connections
    )
    made = (
        _connection(client.connection, "peer out", client.channels)
        for client in environment.peers.clients()
    )
    return (*accepted, *made)


def _connection(connection: Connection, leg: str, channels: int) -> ConnectionStatus:
    role = "peer" if leg else _ROLES[connection.role]
    return ConnectionStatus(
        connection.label,
        role,
        leg or ("peer in" if role == "peer" else role),
        channels,
        connection.bytes_in,
        connection.bytes_out,
        connection.write_buffer_bytes,
        connection.writable,
        "watermark" if connection.flow_control == FLOW_WATERMARK else "credit",
    )


def _applications(
    environment: NetworkEnvironment, shuffles: list[ShuffleStatus]
) -> tuple[ApplicationStatus, ...]:
    stored: dict[str, int] = {}
    for shuffle in shuffles:
        name = shuffle.application_id
        stored[name] = stored.get(name, 0) + shuffle.stored_bytes
    return tuple(
        ApplicationStatus(
            name,
            connections,
            expires_in,
            stored.get(name, 0),
            environment.accounts.of(name).status(),
        )
        for name, connections, expires_in in environment.applications.snapshot()
    )
