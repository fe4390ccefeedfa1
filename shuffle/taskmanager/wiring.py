"""The network environment of a TaskManager: one object that owns every network resource.

It is created at the start, wires pools, storage, partitions, connections and legs together, and
closes them all, in an order in which nothing is used after it is closed.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.identity import Credential
from ...protocol.limits import VERSION
from ...protocol.messages import (
    FLOW_CREDIT,
    ROLE_CONSUMER,
    ROLE_COPIER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    Hello,
    HelloAck,
)
from ...transport.access import Access
from ...transport.advertised_host import with_advertised_host
from ...transport.config import AuthConfig, TransportConfig
from ...transport.connection import Connection, ConnectionHandler
from ...transport.connection_pool import ConnectionPool
from ...transport.connector import Address
from ...transport.listener import Listener
from ...transport.peer_networks import PeerNetworks
from ..counters import Counters
from ..gate.task_events import TaskEventDispatcher
from ..memory import NetworkBufferPool
from .bounds.accounts import Accounts, Resource
from .bounds.connection_rules import refuse_writers, require_whole_segments
from .bounds.idle_connections import IdleConnections
from .bounds.quotas import QuotaConfig, Quotas
from .bounds.segment_pressure import SegmentPressure
from .cluster.peer_connector import PeerConnector, abort_readers_of
from .config.sections import ApplicationConfig, NetworkMemoryConfig, StorageConfig
from .drivers.applications import Applications
from .drivers.driver_handler import DriverHandler
from .drivers.drivers import Drivers
from .ingest.incoming_output import ProducerServices
from .ingest.producer_handler import ProducerHandler
from .ingest.resumable_outputs import ResumableOutputs
from .process.uncancellable import run_uncancellable
from .replicas.copies import Copies, CopiesConfig
from .serve.consumer_handler import ConsumerHandler
from .serve.peer_handler import PeerHandler
from .serve.read_pool import ReadPool
from .serve.result_partition_manager import ResultPartitionManager
from .serve.taskmanager_channel_opener import GateServices
from .store.output_index import Lost
from .store.region_area import RegionAreas
from .store.shuffle_store import ShuffleStore

if TYPE_CHECKING:
    from ..gate.partition_request_client import PartitionRequestClient
    from .embedded.client import EmbeddedClient

Handler = ConsumerHandler | DriverHandler | PeerHandler | ProducerHandler


class NetworkEnvironment:
    """Every network resource of one TaskManager.

    Args:
        transport: Addresses, deadlines, watermarks.
        memory: The network buffer pool.
        storage: Where map outputs live.
        applications: How long they live.
        auth: Who may connect; by default, whoever reaches an address.
        quotas: The most that an application may hold; by default there are no quotas.
        copies: Copies of map outputs on other TaskManagers.
    """

    def __init__(
        self,
        transport: TransportConfig,
        memory: NetworkMemoryConfig,
        storage: StorageConfig,
        applications: ApplicationConfig,
        auth: AuthConfig | None = None,
        quotas: QuotaConfig | None = None,
        copies: CopiesConfig | None = None,
    ) -> None:
        self.counters = Counters()
        self.accounts = Accounts()
        """The accounts of the applications."""
        self._transport = transport
        self._memory = memory
        self._storage_config = storage
        self._application_config = applications
        self._auth = AuthConfig() if auth is None else auth
        self._quotas = quotas
        self._copies_config = CopiesConfig() if copies is None else copies
        self._peer_networks = PeerNetworks(self._auth.peer_networks)
        self._idle = asyncio.Event()  # set when a connection may have become idle
        self.handlers: dict[Connection, Handler] = {}
        """Accepted connections that are past the handshake."""
        self.embedded: set[EmbeddedClient] = set()
        """Clients of tasks in this process."""
        self._opened = AsyncExitStack()  # closes everything that is open, newest first
        self._closing = asyncio.Lock()

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

    async def start(self, on_unlocked: Callable[[str], None] | None = None) -> None:
        """Open the storage, adopt what is there, and listen.

        Args:
            on_unlocked: Called with the finding when the lock of a directory is gone.

        Raises:
            SluiceError: The storage or an address cannot be used.
            OSError: The operating system refuses memory, a thread or a descriptor.

        If it fails, nothing is left open or locked. Cancellation: safe; it waits until the storage,
        which a thread opens, is closed again.
        """
        async with AsyncExitStack() as opened:
            self.access = Access.open(self._auth)
            self._transport = await with_advertised_host(self._transport)
            await self._open_storage(opened)
            self._wire(opened)
            if self._quotas is not None:
                self.set_quotas(self._quotas)
            # Before the first driver connects, which is told what is here.
            self.copies.start()
            await self.listener.start()
            self.store.watch(self._outputs_lost, on_unlocked)
            self._opened = opened.pop_all()

    async def _open_storage(self, opened: AsyncExitStack) -> None:
        memory, storage = self._memory, self._storage_config
        self.network_pool = NetworkBufferPool(memory.network_segments, memory.segment_size_bytes)
        opened.callback(self.network_pool.destroy)
        self.store = await run_uncancellable(
            lambda: ShuffleStore.open(storage, self.accounts),
            lambda store: opened.push_async_callback(store.close),
        )
        self.region_areas = await run_uncancellable(
            lambda: RegionAreas.open(storage, self.accounts),
            lambda areas: opened.callback(areas.close),
        )

    def set_quotas(self, config: QuotaConfig) -> None:
        """Set the most that an application may hold, from now on."""
        wholes = self._wholes | self.store.wholes()
        self.accounts.set_limits(Quotas(config, wholes).limits_of)
        self.network_pool.limits_changed()

    @property
    def _wholes(self) -> dict[Resource, int]:
        return {
            Resource.NETWORK_SEGMENTS: self._memory.network_segments,
            Resource.REGION_AREAS_BYTES: self._storage_config.region_areas_bytes,
        }

    def drain(self) -> None:
        """Take nothing new to write; finish what is begun, serve readers. Idempotent."""
        self.producer_services.draining = True

    def undrain(self) -> None:
        """Take new work again, and let what has moved be read here too. Idempotent."""
        self.producer_services.draining = False
        self.copies.undo_moves()

    async def migrate(self) -> None:
        """Move all map outputs to other TaskManagers, those that come to their end included.

        Cancellation: safe; what has moved stays moved.
        """
        while True:
            self._idle.clear()
            await self.copies.migration.run()
            if not self.is_writing:
                return
            await self._idle.wait()

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is taken any more."""
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
        """Whether anything is being written or read."""
        return any(client.is_busy for client in self.embedded) or any(
            handler.is_busy
            for handler in self.handlers.values()
            if not isinstance(handler, DriverHandler)
        )

    def client(
        self, application_id: str, credential: Credential | None, buffer_timeout_seconds: float
    ) -> "EmbeddedClient":
        """Make a client for tasks in this process.

        Raises:
            AuthenticationFailed: The application may not use this TaskManager.
        """
        from .embedded.client import EmbeddedClient  # a daemon runs no tasks itself
        from .embedded.services import EmbeddedServices

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
        """Wait until nothing is being written or read.

        Cancellation: safe.
        """
        while self.is_busy:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close everything; committed data stays for the next start. Idempotent."""
        for client in list(self.embedded):
            await client.close()
        async with self._closing:
            await self._opened.aclose()

    def _wire(self, opened: AsyncExitStack) -> None:
        """Make everything on top of the storage; it is closed in reverse order."""
        memory = self._memory
        self.resumable = ResumableOutputs(self.store, memory.map_output_resume_timeout_seconds)
        opened.callback(self.resumable.close)
        self.partitions = ResultPartitionManager(
            self.store, memory.segment_size_bytes, memory.partition_request_timeout_seconds
        )
        self.task_events = TaskEventDispatcher()
        self.applications = Applications(
            self._application_config.application_expiry_seconds,
            self._release_application,
            lambda application_id: self.copies.let_go(application_id),
        )
        opened.callback(self.applications.close)
        self.access.knows_application = self.applications.knows
        for application_id in self.store.applications():
            self.applications.adopt(application_id)
        self.counters.map_outputs_adopted = self.store.statistics().adopted_map_outputs
        self._connector = PeerConnector(
            self._transport,
            self.access,
            self._peer_networks,
            memory.segment_size_bytes,
            self.counters,
            self._transport.features,
            self.store.taskmanager_id,
        )
        self._connector.count_in = lambda connection: connection.count_in(
            self.listener.control_memory
        )
        self.peers: ConnectionPool[PartitionRequestClient] = ConnectionPool(
            self._connector.reader,
            self._transport.connections_per_peer,
            self._transport.peer_idle_timeout_seconds,
        )
        opened.callback(self.peers.close)
        self.listener = Listener(
            self._transport, memory.segment_size_bytes, self._accepted, self._offer, self.access
        )
        opened.push_async_callback(self.listener.close)
        self.drivers = Drivers(self.handlers.values)
        self.copies = Copies(
            self.partitions,
            self.store,
            self._connector,
            self.drivers,
            self.applications.lives,
            self.counters,
            self._copies_config,
        )
        opened.push_async_callback(self.copies.close)
        self.partitions.on_replicated = self.copies.replication.committed
        self.partitions.on_shuffle_released = self.copies.shuffle_released
        self.copies.on_lost = lambda lost: abort_readers_of(lost, self.peers.clients())
        self.gate_services = GateServices(
            self.store.taskmanager_id,
            memory,
            self.network_pool,
            self.partitions,
            self.peers,
            self.task_events,
            self.accounts,
            self._transport,
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
            verify_checksums=self._storage_config.verify_checksums,
            copies_of=self.copies.replication.wait,
        )
        self.segment_pressure = SegmentPressure(
            self.network_pool,
            self._segment_holders,
            self.counters,
            memory.gate_progress_timeout_seconds,
        )
        opened.callback(self.segment_pressure.close)
        self.idle_connections = IdleConnections(
            self.handlers,
            self.accounts,
            self.counters,
            self._transport.idle_connection_timeout_seconds,
        )
        opened.callback(self.idle_connections.close)

    def _segment_holders(self) -> list[ConsumerHandler | PeerHandler | ProducerHandler]:
        return [each for each in self.handlers.values() if not isinstance(each, DriverHandler)]

    def _outputs_lost(self, lost: Lost) -> None:
        """Let requests for lost map outputs fail, and tell the drivers."""
        for key in lost:
            self.partitions.wake(key)
        self.drivers.tell_lost(lost)
        self.copies.lost(lost)
        for connection in list(self.handlers):
            if connection.role == ROLE_COPIER and not connection.application_id:
                connection.close()  # it watches this TaskManager, and asks anew what is here

    def _release_application(self, application_id: str) -> int:
        freed = self.partitions.release_application(application_id)
        self.copies.application_released(application_id)
        return freed

    def _offer(self) -> HelloAck:
        return HelloAck(
            VERSION,
            self.store.taskmanager_id,
            self._memory.segment_size_bytes,
            FLOW_CREDIT,
            self._transport.features(),
            *self.address,
            self._connector.instances.own_instance_id,
        )

    def _accepted(self, connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
        """Make the handler for a connection whose Hello is good.

        Raises:
            SegmentSizeMismatch: A consumer cannot take a whole segment.
            QuotaExceeded: Its application has as many connections as it may.
            ShuttingDown: The TaskManager drains, and this connection is for new work.
        """
        require_whole_segments(connection, self._memory.segment_size_bytes)
        if self.is_draining:
            refuse_writers(connection, parked=self.resumable.parked > 0)
        application_id = connection.application_id
        is_copier = connection.role == ROLE_COPIER
        account = self.accounts.of(application_id, connection.subject)
        if application_id:
            # One is kept for a driver, so that an application at its quota can be released.
            spare = 0 if connection.role == ROLE_DRIVER else 1
            account.require_room(Resource.CONNECTIONS, 1 + spare)
            account.hold(Resource.CONNECTIONS)
            self.applications.connected(application_id, copier=is_copier)

        def lost() -> None:
            self.segment_pressure.gone(self.handlers.pop(connection, None))
            self.idle_connections.gone(connection)
            self._idle.set()
            if application_id:
                account.give_back(Resource.CONNECTIONS)
                self.applications.disconnected(application_id, copier=is_copier)

        handler: Handler
        if connection.role in (ROLE_PRODUCER, ROLE_COPIER):
            handler = ProducerHandler(connection, self.producer_services, lost)
        elif connection.role == ROLE_CONSUMER:
            handler = ConsumerHandler(
                connection, self.gate_services, self._read_pool(connection), self.counters, lost
            )
        elif connection.role == ROLE_PEER:
            handler = PeerHandler(
                connection,
                self.partitions,
                self.task_events,
                self._read_pool(connection),
                self.counters,
                lost,
                self._memory.max_channels_per_connection,
            )
        else:
            handler = DriverHandler(
                connection, self.partitions, self.applications, self.copies, lost
            )
        if isinstance(handler, ConsumerHandler | PeerHandler):
            handler.on_idle = self._idle.set
        self.handlers[connection] = handler
        self.idle_connections.accepted()
        return handler

    def _read_pool(self, connection: Connection) -> ReadPool:
        application_id = connection.application_id  # a peer reads for many
        return ReadPool(
            self.network_pool,
            f"reads for {connection.remote}",
            self._memory.read_segments_per_connection,
            self.accounts.of(application_id) if application_id else None,
        )
