"""Connects a TaskManager to others, to read from them, write copies to them, or watch them."""

import os
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from ....protocol.control_memory import ControlMemory
from ....protocol.errors import ProtocolViolation
from ....protocol.limits import (
    COPIES_COMPARED,
    DAMAGE_REPORTS,
    MAGIC,
    MEMBERS,
    REMOTE_COPIES,
    TRACES,
    VERSION,
)
from ....protocol.remote_error import RemoteError
from ....protocol.schema import (
    FLOW_CREDIT,
    FLOW_WATERMARK,
    ROLE_COPIER,
    ROLE_PEER,
    Hello,
    HelloAck,
)
from ....transport.access import Access
from ....transport.address import Address
from ....transport.config import TransportConfig
from ....transport.connection import Connection, ConnectionHandler
from ....transport.connection_pool import ConnectionPool
from ....transport.connector import connect
from ....transport.errors import ConnectionLost
from ....transport.peer_networks import PeerNetworks
from ...counters import Counters
from ...errors import InvalidRequest
from ...gate.partition_request_client import (
    PartitionRequestClient,
    UncreditedPartitionRequestClient,
)
from ...histogram import Histogram
from ...legs.producer_leg import ProducerLeg
from ...names import TaskManagerPlace
from .foreign_answers import without_foreign_bytes
from .instances import Instances
from .member_reports import MemberReports
from .watch_leg import WatchLeg

Leg = TypeVar("Leg", bound=ConnectionHandler)

COPY_ANSWER_SECONDS: Final = 30.0
"""Time in which another TaskManager must answer if no reader waits for it."""


class PeerConnector:
    """Makes the connections of a TaskManager to others.

    Args:
        transport: Deadlines and watermarks.
        access: Credentials of this TaskManager.
        networks: Networks in which other TaskManagers may be.
        segment_size_bytes: Size of its segments.
        counters: Its counters.
        taskmanager_id: Its id.
        control_memory: Bounds the control parts and unread messages of all connections together.
        reports: The reports that this TaskManager and its members exchange.

    Attributes:
        readers: The connections for reading, one pool for all gates.
        connects: How long it took to make each connection.
    """

    def __init__(  # noqa: PLR0913 - they are the parts of one TaskManager
        self,
        transport: TransportConfig,
        access: Access,
        networks: PeerNetworks,
        segment_size_bytes: int,
        counters: Counters,
        taskmanager_id: str,
        control_memory: ControlMemory,
        reports: MemberReports,
    ) -> None:
        self._transport = transport
        # Another TaskManager may have the data or accept the copy; callers retry if necessary.
        self._once = transport.model_copy(update={"connect_retries": 0})
        self._access = access
        self._networks = networks
        self._segment_size_bytes = segment_size_bytes
        self._counters = counters
        self._control_memory = control_memory
        self._reports = reports
        self._taskmanager_id = taskmanager_id
        self.instances: Final = Instances(taskmanager_id)
        self.connects: Final = Histogram()
        self.readers: Final[ConnectionPool[PartitionRequestClient]] = ConnectionPool(
            self.reader, transport.connections_per_peer, transport.peer_idle_timeout_seconds
        )

    def own_host(self) -> str:
        """Return the host at which others reach this TaskManager."""
        return self._transport.reachable_host()

    async def reader(self, address: Address) -> PartitionRequestClient:
        """Connect in order to read partitions, without retries.

        Raises:
            SluiceError: The other TaskManager does not answer, or refuses.

        Cancellation: safe.
        """

        def make(connection: Connection, ack: HelloAck) -> PartitionRequestClient:
            without_credit = connection.flow_control == FLOW_WATERMARK
            kind = UncreditedPartitionRequestClient if without_credit else PartitionRequestClient
            return kind(connection, ack, self._counters)

        flow = FLOW_WATERMARK if self._transport.flow_control == "watermark" else FLOW_CREDIT
        hello = _hello(ROLE_PEER, "", self._segment_size_bytes, flow, DAMAGE_REPORTS | TRACES)
        try:
            return await self._connect(address, hello, make)
        except (ProtocolViolation, RemoteError) as error:
            raise without_foreign_bytes(address, error) from error  # a client gets this error

    def abort_readers_of(self, place: TaskManagerPlace) -> None:
        """Close the connections to a lost TaskManager, whose host may have vanished.

        Connections to its other addresses stay: a driver may have named a wrong place.
        """
        for client in self.readers.clients(place.address):
            if client.taskmanager_id == place.taskmanager_id:
                client.connection.abort(
                    ConnectionLost(
                        f"TaskManager {place.taskmanager_id} counts as lost: it does not answer",
                        value=client.connection.remote,
                        limit="lost_after_seconds",
                    )
                )

    async def copier(self, address: Address, application_id: str, features: int = 0) -> ProducerLeg:
        """Connect in order to write copies of an application's map outputs.

        Args:
            address: The other TaskManager.
            application_id: The application.
            features: Whether the application has clients here: COPIER_IDLE, COPIER_ADOPTED.

        Raises:
            SluiceError: It does not answer, or refuses.

        Cancellation: safe.
        """

        def make(connection: Connection, ack: HelloAck) -> ProducerLeg:
            return ProducerLeg(connection, ack, COPY_ANSWER_SECONDS)

        features |= COPIES_COMPARED | REMOTE_COPIES | TRACES
        return await self._connect(
            address, _hello(ROLE_COPIER, application_id, features=features), make
        )

    async def watch(self, address: Address, member_name: str | None) -> WatchLeg:
        """Connect in order to watch whether the other TaskManager is alive.

        Args:
            address: The other TaskManager.
            member_name: For a member, with which reports are exchanged, the host that its
                certificate must name; None: it is not a member.

        Raises:
            SluiceError: It does not answer, or refuses.

        Cancellation: safe.
        """

        def make(connection: Connection, ack: HelloAck) -> WatchLeg:
            # It reports itself; what it reports to itself would soon be outdated.
            is_own = ack.taskmanager_id == self._taskmanager_id
            is_member = ack.features & MEMBERS and not is_own
            return WatchLeg(connection, ack, self._reports if is_member else None)

        features = 0 if member_name is None else MEMBERS
        hello = _hello(ROLE_COPIER, "", features=features)
        return await self._connect(address, hello, make, member_name or "")

    async def _connect(
        self,
        address: Address,
        hello: Hello,
        make: Callable[[Connection, HelloAck], Leg],
        tls_name: str = "",
    ) -> Leg:
        if not address.port:
            # It would mean the path of a Unix socket, and clients and drivers choose it.
            raise InvalidRequest(
                "A TaskManager on another host has no TCP port",
                value=address.host,
                limit="1 to 65535",
            )
        legs: list[Leg] = []

        def handler(connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
            if not isinstance(greeting, HelloAck):
                raise TypeError("the side that connects is greeted with a HelloAck")
            self.instances.admit(connection, greeting)
            legs.append(make(connection, greeting))
            connection.count_in(self._control_memory)
            return legs[0]

        began = monotonic()
        await connect(
            address,
            hello,
            handler,
            self._once,
            hello.segment_size_bytes,
            self._access.peer_credential(*address),
            self._networks,
            self.instances.lost,
            tls_name,
        )
        self.connects.record(monotonic() - began)
        return legs[0]


def _hello(
    role: int,
    application_id: str,
    segment_size_bytes: int = 0,
    flow_control: int = FLOW_CREDIT,
    features: int = 0,
) -> Hello:
    return Hello(
        MAGIC,
        VERSION,
        VERSION,
        role,
        application_id,
        b"",
        segment_size_bytes,
        flow_control,
        features,
        f"{socket.gethostname()} {os.getpid()}",
    )
