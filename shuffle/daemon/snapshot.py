"""Builds a status snapshot from live state; the only place that walks over all parts."""

from typing import TYPE_CHECKING

from protocol.messages import ROLE_CONSUMER, ROLE_DRIVER, ROLE_PEER, ROLE_PRODUCER
from shuffle.daemon.status import (
    ApplicationStatus,
    ChannelStatus,
    ConnectionStatus,
    GateStatus,
    NetworkPoolStatus,
    PoolStatus,
    ShuffleStatus,
    TaskManagerStatus,
    TierStatus,
)
from shuffle.environment import NetworkEnvironment
from shuffle.gate.input_gate import InputGate
from shuffle.gate.remote_channel import RemoteInputChannel
from shuffle.network.consumer_server import ConsumerHandler
from shuffle.network.producer_server import ProducerHandler
from shuffle.network.serving import ServingHandler
from shuffle.network.view_reader import CreditBasedViewReader
from transport.connection import Connection

if TYPE_CHECKING:
    from shuffle.daemon.taskmanager import TaskManager
    from shuffle.storage.outputs import ShuffleKey

_ROLES = {
    0: "handshake",
    ROLE_PEER: "peer",
    ROLE_PRODUCER: "producer",
    ROLE_CONSUMER: "consumer",
    ROLE_DRIVER: "driver",
}


def take_snapshot(taskmanager: "TaskManager") -> TaskManagerStatus:
    """Take a snapshot of a TaskManager."""
    environment = taskmanager.environment
    transport = taskmanager.config.transport
    listener = environment.listener
    counters = environment.counters
    counters.connections_accepted = listener.accepted_total
    counters.connections_refused = listener.refused_total
    counters.applications_expired = environment.applications.expired_total
    return TaskManagerStatus(
        taskmanager_id=environment.taskmanager_id,
        version=taskmanager.version,
        address=str(environment.address),
        socket_path=None if transport.socket_path is None else str(transport.socket_path),
        state=taskmanager.state,
        uptime_seconds=taskmanager.uptime_seconds,
        pools=_pools(environment),
        network_pool=_network_pool(environment),
        storage=_storage(environment),
        partitions=_partitions(environment),
        gates=tuple(_gates(environment)),
        connections=_connections(environment),
        applications=_applications(environment),
        counters=counters,
    )


def _pools(environment: NetworkEnvironment) -> tuple[PoolStatus, ...]:
    return tuple(
        PoolStatus(
            pool.name,
            pool.size_segments,
            pool.required_segments,
            pool.maximum_segments,
            pool.lent_segments,
            pool.waiting_listeners,
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
    )


def _storage(environment: NetworkEnvironment) -> tuple[TierStatus, ...]:
    return tuple(
        TierStatus(
            tier.kind,
            str(tier.directory),
            tier.capacity_bytes,
            tier.used_bytes,
            tier.healthy,
            tier.largest_free_bytes
            if tier.capacity_bytes is None
            else tier.capacity_bytes - tier.used_bytes,
        )
        for tier in environment.store.tiers()
    )


def _partitions(environment: NetworkEnvironment) -> tuple[ShuffleStatus, ...]:
    being_written: dict[ShuffleKey, int] = {}
    for handler in environment.handlers.values():
        if isinstance(handler, ProducerHandler):
            for writer in handler.open_writers:
                being_written[writer.key] = being_written.get(writer.key, 0) + 1
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


def _gates(environment: NetworkEnvironment) -> list[GateStatus]:
    return [
        GateStatus(number, gate.key.application_id, gate.key.shuffle_id, _channels(gate, channels))
        for handler in environment.handlers.values()
        if isinstance(handler, ConsumerHandler)
        for number, (gate, channels) in handler.gates.items()
    ]


def _channels(gate: InputGate, readers: list[CreditBasedViewReader]) -> tuple[ChannelStatus, ...]:
    return tuple(
        ChannelStatus(
            reader.channel,
            "local" if channel.is_local else "remote",
            str(source.address),
            channel.queued_buffers if isinstance(channel, RemoteInputChannel) else 0,
            channel.credit.granted if isinstance(channel, RemoteInputChannel) else 0,
            channel.backlog,
            channel.bytes_in,
            channel.buffers_in,
        )
        for reader, channel, source in zip(readers, gate.channels, gate.sources, strict=True)
    )


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
        channels = len(handler.open_writers)
    return ConnectionStatus(
        connection.remote,
        role,
        "peer in" if role == "peer" else role,
        channels,
        connection.bytes_in,
        connection.bytes_out,
        connection.write_buffer_bytes,
        connection.writable,
    )


def _applications(environment: NetworkEnvironment) -> tuple[ApplicationStatus, ...]:
    stored: dict[str, int] = {}
    for shuffle in environment.store.shuffles():
        name = shuffle.key.application_id
        stored[name] = stored.get(name, 0) + shuffle.stored_bytes
    return tuple(
        ApplicationStatus(name, connections, expires_in, stored.get(name, 0))
        for name, connections, expires_in in environment.applications.snapshot()
    )
