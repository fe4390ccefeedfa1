# Longer than 450 lines, because it wires all parts of a TaskManager in one order.
"""The network environment of a TaskManager: one object that owns every network resource.

It wires pools, storage, partitions, connections and legs together, and closes them all, in an order
in which nothing is used after it is closed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.identity import Credential
from ...protocol.limits import (
    COPIER_IDLE,
    COPIES_COMPARED,
    DAMAGE_REPORTS,
    HYBRID_FULL_PARTITIONS,
    HYBRID_PARTITIONS,
    MEMBERS,
    REMOTE_COPIES,
    TRACES,
    VERSION,
)
from ...protocol.schema import (
    FLOW_CREDIT,
    MEMBER_ACTIVE,
    MEMBER_DRAINING,
    ROLE_CONSUMER,
    ROLE_COPIER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    Hello,
    HelloAck,
    MemberReport,
)
from ...transport.access import Access
from ...transport.address import Address
from ...transport.advertised_host import with_advertised_host
from ...transport.config import TransportConfig
from ...transport.connection import Connection, ConnectionHandler
from ...transport.listener import Listener
from ...transport.peer_networks import PeerNetworks
from ..counters import Counters
from ..gate.local_input_channel import TaskEventDispatcher
from ..histogram import Histogram
from ..memory import NetworkBufferPool
from .bounds.accounts import Accounts, Resource
from .bounds.connection_rules import refuse_writers, require_whole_segments
from .bounds.idle_connections import IdleConnections
from .bounds.quotas import QuotaConfig, Quotas
from .bounds.segment_pressure import SegmentPressure
from .cluster.member_reports import MemberReports
from .cluster.peer_connector import PeerConnector
from .cluster.watchers import Watchers
from .config.taskmanager_config import TaskManagerConfig
from .config.traces_config import TracesConfig
from .drivers.applications import Applications
from .drivers.driver_handler import DriverHandler
from .drivers.drivers import Drivers
from .ingest.incoming_output import ProducerServices
from .ingest.producer_handler import ProducerHandler
from .ingest.resumable_outputs import ResumableOutputs
from .integrity.scrub import Scrub
from .process.uncancellable import run_uncancellable
from .replicas.copies import Copies
from .serve.consumer_handler import ConsumerHandler
from .serve.peer_handler import PeerHandler
from .serve.read_pool import ReadPool
from .serve.result_partition_manager import ResultPartitionManager
from .serve.serving_handler import ServingEvents
from .serve.taskmanager_channel_opener import GateServices
from .store.output_index import Lost
from .store.region_area import RegionAreas
from .store.shuffle_store import ShuffleStore
from .store.stored_outputs import MapOutput

if TYPE_CHECKING:
    from .embedded.client import EmbeddedClient
    from .tracing.tracing import Tracing

Handler = ConsumerHandler | DriverHandler | PeerHandler | ProducerHandler


class _Opened(NamedTuple):
    """The parts that need threads, files or the resolver, opened before the wiring."""

    transport: TransportConfig
    network_pool: NetworkBufferPool
    accounts: Accounts
    store: ShuffleStore
    region_areas: RegionAreas
    tracing: "Tracing | None"


class NetworkEnvironment:
    """Every network resource of one TaskManager; :meth:`build` makes it.

    Everything is wired here, on top of the opened storage, and is closed in reverse order. Parts
    that know each other get a callback that looks the other one up when it is called.

    Args:
        config: All settings.
        opened: The storage and the network buffer pool.
        stack: Closes everything, newest first.
    """

    def __init__(self, config: TaskManagerConfig, opened: _Opened, stack: AsyncExitStack) -> None:
        memory = config.memory
        self.config = config
        self._transport = transport = opened.transport
        self._stack = stack
        self._closing = asyncio.Lock()
        self.drain_began: float | None = None
        """Time of the last drain, as of ``time.monotonic()``."""
        self._idle = asyncio.Event()  # set when a connection may have become idle
        self.counters = Counters()
        self.accounts = opened.accounts
        """The accounts of the applications."""
        self.network_pool = opened.network_pool
        self.store = opened.store
        self.region_areas = opened.region_areas
        self.tracing = opened.tracing
        """Makes spans; None if traces are off."""
        self.peer_credit_waits = Histogram()
        """Waits for credit of the channels that other TaskManagers read."""
        self.http_port = config.http.http_port
        """The port of its HTTP server: the configured one until the server listens."""
        self.handlers: dict[Connection, Handler] = {}
        """Accepted connections that are past the handshake."""
        self.embedded: set[EmbeddedClient] = set()
        """Clients of tasks in this process."""
        self.task_events = TaskEventDispatcher()
        self.resumable = ResumableOutputs(self.store, memory.map_output_resume_timeout_seconds)
        stack.callback(self.resumable.close)
        self.partitions = ResultPartitionManager(
            self.store,
            memory.segment_size_bytes,
            memory.partition_request_timeout_seconds,
            on_replicated=lambda output: self.copies.replication.committed(output),
            on_replaced=lambda lost: self.copies.lost(lost),
            on_pipelined_gone=self._idle.set,
            on_shuffle_released=lambda key, end: self.copies.shuffle_released(key, end),
        )
        stack.push_async_callback(self.partitions.damage.close)
        self.scrub = Scrub(
            self.store, self.partitions.damage, config.storage.scrub_bytes_per_second
        )
        stack.push_async_callback(self.scrub.close)
        self.applications = Applications(
            config.applications.application_expiry_seconds,
            self._release_application,
            lambda application_id: self.copies.services.connections.end_application(application_id),
        )
        stack.callback(self.applications.close)
        for application_id in self.store.applications():
            self.applications.adopt(application_id)
        self.counters.map_outputs_adopted = self.store.statistics().adopted_map_outputs
        self.access = Access.open(config.auth, self.applications.knows)
        self.listener = Listener(
            transport, memory.segment_size_bytes, self._accepted, self._offer, self.access
        )
        self.reports = MemberReports(
            self._report, lambda place: self.copies.services.watches.reported(place)
        )
        """The reports that this TaskManager and the members of its cluster exchange."""
        stack.callback(self.reports.close)
        self.connector = PeerConnector(
            transport,
            self.access,
            PeerNetworks(config.auth.peer_networks),
            memory.segment_size_bytes,
            self.counters,
            self.store.taskmanager_id,
            self.listener.control_memory,
            self.reports,
        )
        """Connects to other TaskManagers."""
        self.peers = self.connector.readers
        self.connects = self.connector.connects
        """How long it took to connect to other TaskManagers."""
        stack.callback(self.peers.close)
        stack.push_async_callback(self.listener.close)
        self.drivers = Drivers(self.handlers.values)
        self.watchers = Watchers(self.handlers.keys)
        stack.callback(self.watchers.close)
        self.copies = Copies(
            self.store,
            self.partitions,
            self.connector,
            self.reports,
            self.drivers,
            self.applications,
            self.counters,
            config,
            self.tracing,
        )
        stack.push_async_callback(self.copies.close)
        self.gate_services = GateServices(
            self.store.taskmanager_id,
            memory,
            self.network_pool,
            self.partitions,
            self.peers,
            self.task_events,
            self.accounts,
            transport,
            tracing=self.tracing,
        )
        self.producer_services = ProducerServices(
            store=self.store,
            partitions=self.partitions,
            network_pool=self.network_pool,
            task_events=self.task_events,
            resumable=self.resumable,
            region_areas=self.region_areas,
            on_idle=self._idle.set,
            counters=self.counters,
            config=memory,
            verify_checksums=config.storage.verify_checksums,
            copies_of=self.copies.replication.wait,
            tracing=self.tracing,
            on_member_report=lambda report: self.reports.received(report, None),
        )
        self.segment_pressure = SegmentPressure(
            self.network_pool,
            self._segment_holders,
            self.counters,
            memory.gate_progress_timeout_seconds,
        )
        stack.callback(self.segment_pressure.close)
        self.idle_connections = IdleConnections(
            self.handlers,
            self.accounts,
            self.counters,
            transport.idle_connection_timeout_seconds,
        )
        stack.callback(self.idle_connections.close)
        stack.push_async_callback(self._close_embedded)
        stack.push_async_callback(
            self.partitions.end_pipelined
        )  # while their readers are connected
        self.set_quotas(config.quotas)

    @classmethod
    async def build(
        cls, config: TaskManagerConfig, on_unlocked: Callable[[str], None] | None = None
    ) -> "NetworkEnvironment":
        """Open the storage, adopt what is there, and listen.

        Args:
            config: All settings.
            on_unlocked: Called with the finding when the lock of a directory is gone.

        Raises:
            SluiceError: The storage or an address cannot be used.
            OSError: The operating system refuses memory, a thread or a descriptor.

        If it fails, nothing is left open or locked. Cancellation: safe; it waits until the storage,
        which a thread opens, is closed again.
        """
        stack = AsyncExitStack()
        try:
            environment = cls(config, await _open(config, stack), stack)
            # Before the first driver connects, because it is told what is here.
            environment.copies.replication.adopt()
            await environment.listener.start()
            environment.copies.watch_members()
            environment.set_quotas(environment.config.quotas)  # open files may limit connections
            environment.store.watch(
                environment._outputs_lost, on_unlocked, environment._outputs_adopted
            )
            environment.scrub.start()
        except BaseException:
            await stack.aclose()
            raise
        return environment

    @property
    def taskmanager_id(self) -> str:
        """Stable id of this TaskManager."""
        return self.store.taskmanager_id

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket that it listens on, if any."""
        return self._transport.socket_path

    @property
    def address(self) -> Address:
        """The address at which others reach the data port."""
        transport = self._transport
        return Address(transport.reachable_host(), transport.advertised_port or self.listener.port)

    def set_quotas(self, config: QuotaConfig) -> None:
        """Set the most that a tenant may hold, from now on."""
        self.accounts.set_limits(Quotas(config, self._wholes | self.store.wholes()).limits_of)
        self.network_pool.limits_changed()

    @property
    def _wholes(self) -> dict[Resource, int]:
        return {
            Resource.NETWORK_SEGMENTS: self.config.memory.network_segments,
            Resource.CONNECTIONS: self.listener.max_connections,
            Resource.REGION_AREAS_BYTES: self.config.storage.region_areas_bytes,
        }

    def drain(self) -> None:
        """Take nothing new to write; finish what is begun, serve readers. Idempotent."""
        if not self.producer_services.draining:
            self.drain_began = time.monotonic()
        self.producer_services.draining = True
        self.reports.own_changed()

    def undrain(self) -> None:
        """Take new work again, and let what has moved be read here too. Idempotent."""
        self.producer_services.draining = False
        self.reports.own_changed()
        self.copies.migration.undo()

    async def migrate(self) -> None:
        """Move all map outputs to other TaskManagers, those that come to their end included.

        Cancellation: safe; what has moved stays moved.
        """
        while True:
            self._idle.clear()
            committed = self.counters.map_outputs_committed
            await self.copies.migration.run()
            if self.is_writing:
                await self._idle.wait()
            elif self.counters.map_outputs_committed == committed:
                return

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused."""
        return self.producer_services.draining

    @property
    def is_writing(self) -> bool:
        """Whether anything is being written."""
        return any(client.is_busy for client in self.embedded) or any(
            handler.is_busy
            for handler in self.handlers.values()
            if isinstance(handler, ProducerHandler)
        )

    @property
    def is_busy(self) -> bool:
        """Whether anything is being written or read, or a pipelined partition is unread."""
        handlers = (each for each in self.handlers.values() if not isinstance(each, DriverHandler))
        workers = (*self.embedded, *handlers)
        return self.partitions.has_unread_pipelined or any(each.is_busy for each in workers)

    def client(
        self, application_id: str, credential: Credential | None, buffer_timeout_seconds: float
    ) -> "EmbeddedClient":
        """Make a client for tasks in this process.

        Raises:
            AuthenticationFailed: The application may not use this TaskManager.
        """
        from .embedded.client import EmbeddedClient, EmbeddedServices  # a daemon has no tasks

        services = EmbeddedServices(
            self.address, self.access, self.applications, self.producer_services, self.gate_services
        )
        client = EmbeddedClient(
            services, application_id, credential, buffer_timeout_seconds, self._client_closed
        )
        self.embedded.add(client)
        return client

    def _client_closed(self, client: "EmbeddedClient") -> None:
        self.embedded.discard(client)
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until all is written and read, pipelined partitions included. Cancellation: safe."""
        while self.is_busy:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close everything, also after an error; committed data stays for the next start.

        Idempotent. Raises the last error.
        """
        async with self._closing:
            await self._stack.aclose()

    async def _close_embedded(self) -> None:
        for client in list(self.embedded):
            await client.close()

    def _segment_holders(self) -> list[ConsumerHandler | PeerHandler | ProducerHandler]:
        return [each for each in self.handlers.values() if not isinstance(each, DriverHandler)]

    def _outputs_lost(self, lost: Lost) -> None:
        """Let requests for lost map outputs fail, and notify the drivers and TaskManagers."""
        for key in lost:
            self.partitions.wake(key)
        self.drivers.tell_lost(lost)
        self.copies.lost(lost)
        self.watchers.outputs_lost()

    def _outputs_adopted(self, outputs: Sequence[MapOutput]) -> None:
        """Serve and copy the map outputs of a directory that did not answer at the start."""
        for application_id in {output.key.application_id for output in outputs}:
            self.applications.adopt(application_id)
        for output in outputs:
            if output.has_copies:
                self.copies.replication.committed(output)
        for key in {output.key for output in outputs}:
            self.partitions.wake(key)
        self.copies.migration.adopted()

    def _release_application(self, application_id: str) -> int:
        freed = self.partitions.release_application(application_id)
        self.copies.application_released(application_id)
        return freed

    def _offer(self) -> HelloAck:
        return HelloAck(
            VERSION,
            self.store.taskmanager_id,
            self.config.memory.segment_size_bytes,
            FLOW_CREDIT,
            self._transport.features()
            | COPIES_COMPARED
            | DAMAGE_REPORTS
            | HYBRID_PARTITIONS
            | HYBRID_FULL_PARTITIONS
            | MEMBERS
            | (0 if self.store.remote is None else REMOTE_COPIES)
            | (0 if self.tracing is None else TRACES),
            *self.address,
            self.connector.instances.own_instance_id,
            *self.config.place,
        )

    def _accepted(self, connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
        """Make the handler for a connection whose Hello is good.

        Raises:
            SEGMENT_SIZE_MISMATCH: A consumer cannot take a whole segment.
            QuotaExceeded: Its application has as many connections as it may.
            PARTITION_RELEASED: A copier comes after the end of its application.
            ShuttingDown: The TaskManager drains, and this connection is for new work.
        """
        require_whole_segments(connection, self.config.memory.segment_size_bytes)
        if self.is_draining:
            refuse_writers(connection, parked=self.resumable.parked > 0)
        application_id = connection.application_id
        is_copier = connection.role == ROLE_COPIER
        is_idle = is_copier and bool(greeting.features & COPIER_IDLE)
        if is_copier:
            self.applications.require_unended(application_id, greeting.features)
        account = self.accounts.of(application_id, connection.subject)
        if application_id:
            # One is kept for a driver, so that an application at its quota can be released.
            spare = 0 if connection.role == ROLE_DRIVER else 1
            account.require_room(Resource.CONNECTIONS, 1 + spare)
            account.hold(Resource.CONNECTIONS)
            self.applications.connected(application_id, copier=is_copier)

        # A TaskManager that watches this one has no application.
        takes_reports = greeting.features & MEMBERS and (
            connection.role == ROLE_DRIVER or (is_copier and not application_id)
        )

        def lost() -> None:
            self.reports.unsubscribe(connection)
            self.segment_pressure.gone(self.handlers.pop(connection, None))
            self.idle_connections.gone(connection)
            self._idle.set()
            if application_id:
                account.give_back(Resource.CONNECTIONS)
                self.applications.disconnected(application_id, copier=is_copier, idle=is_idle)

        handler: Handler
        if connection.role in (ROLE_PRODUCER, ROLE_COPIER):
            handler = ProducerHandler(connection, self.producer_services, lost)
        elif connection.role == ROLE_CONSUMER:
            handler = ConsumerHandler(
                connection,
                self.gate_services,
                self._read_pool(connection),
                self.counters,
                ServingEvents(self._idle.set, lost),
            )
        elif connection.role == ROLE_PEER:
            handler = PeerHandler(
                connection,
                self.partitions,
                self.task_events,
                self._read_pool(connection),
                self.counters,
                ServingEvents(self._idle.set, lost),
                self.config.memory.max_channels_per_connection,
                self.peer_credit_waits,
                self.tracing,
            )
        else:
            handler = DriverHandler(
                connection,
                self.partitions,
                self.applications,
                self.copies,
                lost,
                is_told_of_remote=bool(greeting.features & REMOTE_COPIES),
            )
        self.handlers[connection] = handler
        if takes_reports:
            # After the HelloAck, which is sent when this handler is made.
            asyncio.get_running_loop().call_soon(self._subscribe, connection)
        self.idle_connections.accepted()
        return handler

    def _subscribe(self, connection: Connection) -> None:
        if not connection.closing:
            self.reports.subscribe(connection)

    def _report(self) -> MemberReport:
        """Return what this TaskManager reports about itself."""
        producers = [each for each in self.handlers.values() if isinstance(each, ProducerHandler)]
        tiers = () if self.is_draining else self.store.tiers()
        return MemberReport(
            self.store.taskmanager_id,
            *self.address,
            self.http_port,
            *self.config.place,
            self.config.cluster.node,
            self.config.cluster.zone,
            MEMBER_DRAINING if self.is_draining else MEMBER_ACTIVE,
            sum(each.free_bytes for each in tiers if each.healthy),
            sum(len(each.outputs) for each in producers),
        )

    def _read_pool(self, connection: Connection) -> ReadPool:
        application_id = connection.application_id  # a peer reads for many
        return ReadPool(
            self.network_pool,
            f"reads for {connection.label}",
            self.config.memory.read_segments_per_connection,
            self.accounts.of(application_id) if application_id else None,
        )


async def _open(config: TaskManagerConfig, stack: AsyncExitStack) -> _Opened:
    memory, storage = config.memory, config.storage
    accounts = Accounts()
    transport = await with_advertised_host(config.transport)
    network_pool = NetworkBufferPool(memory.network_segments, memory.segment_size_bytes)
    stack.callback(network_pool.destroy)
    store = await run_uncancellable(
        lambda: ShuffleStore.open(storage, accounts),
        lambda store: stack.push_async_callback(store.close),
    )
    region_areas = await run_uncancellable(
        lambda: RegionAreas.open(storage, accounts),
        lambda areas: stack.callback(areas.close),
    )
    tracing = _open_tracing(config.traces, store.taskmanager_id)
    if tracing is not None:
        stack.push_async_callback(tracing.close)
    return _Opened(transport, network_pool, accounts, store, region_areas, tracing)


def _open_tracing(config: TracesConfig, taskmanager_id: str) -> "Tracing | None":
    """Begin to send spans, if there is a collector.

    Raises:
        SluiceError: The packages for traces are not installed.
    """
    if config.traces_endpoint is None:
        return None
    try:
        from .tracing.tracing import Tracing  # large, and seldom used
    except ImportError as error:
        raise SluiceError(
            "traces_endpoint is set, and the packages for traces are not installed",
            code=ErrorCode.CONFIGURATION,
            value=error.name or str(error),
            remedy="pip install sluice-shuffle[traces], or unset traces_endpoint",
        ) from error
    return Tracing.open(config, taskmanager_id)
