"""The two connections of a client, and their return after the TaskManager closed an idle one."""

import asyncio
import os
from collections.abc import Sequence
from typing import Final, TypeVar

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.identity import Credential
from ...protocol.limits import (
    DAMAGE_REPORTS,
    HYBRID_FULL_PARTITIONS,
    HYBRID_PARTITIONS,
    MAGIC,
    REMOTE_COPIES,
    SEGMENTS_OF_CLIENTS_BYTES,
    TRACES,
    VERSION,
)
from ...protocol.remote_error import RemoteError
from ...protocol.schema import FLOW_CREDIT, ROLE_CONSUMER, ROLE_PRODUCER, Hello, HelloAck
from ...transport.address import Address
from ...transport.connection import Connection, ConnectionHandler, HandlerFactory
from ...transport.connector import connect
from ...transport.errors import ConnectFailed
from ..counters import Counters
from ..legs.producer_leg import ProducerLeg
from .config import ClientConfig
from .consumer_leg import ConsumerLeg
from .leg_watch import LegWatch, TaskManagerSilent

Leg = TypeVar("Leg", ProducerLeg, ConsumerLeg)


class LegConnector:
    """Makes the connections of one client.

    Args:
        addresses: The TaskManager's, then those of others that are used if it does not answer.
        application_id: The application.
        config: Memory and deadlines.
        credential: What the client proves; None: nothing.
        counters: The client's counters.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        application_id: str,
        config: ClientConfig,
        credential: Credential | None,
        counters: Counters,
    ) -> None:
        self._addresses = list(addresses)  # the one in use is the first
        self._last = self._addresses[0]
        self._application_id = application_id
        self._config = config
        self._credential = credential
        self.counters: Final = counters

    async def producer(self) -> tuple[ProducerLeg, HelloAck]:
        """Connect as a producer.

        Raises:
            SluiceError: As of :meth:`~sluice.shuffle.client.client.ShuffleClient.connect`.

        Cancellation: safe.
        """
        legs: list[ProducerLeg] = []

        def handler(connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
            timeout_seconds = self._config.answer_timeout_seconds
            legs.append(ProducerLeg(connection, _ack(greeting), timeout_seconds))
            return legs[-1]

        features = HYBRID_PARTITIONS | HYBRID_FULL_PARTITIONS | REMOTE_COPIES | TRACES
        ack = await self._connect(self._hello(ROLE_PRODUCER, 0, features), handler, legs)
        return legs[-1], ack

    async def consumer(self) -> tuple[ConsumerLeg, HelloAck]:
        """Connect as a consumer.

        Raises:
            SluiceError: As of :meth:`~sluice.shuffle.client.client.ShuffleClient.connect`.

        Cancellation: safe.
        """
        legs: list[ConsumerLeg] = []

        def handler(connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
            timeout_seconds = self._config.answer_timeout_seconds
            legs.append(ConsumerLeg(connection, _ack(greeting), self.counters, timeout_seconds))
            return legs[-1]

        ack = await self._connect(
            self._hello(ROLE_CONSUMER, SEGMENTS_OF_CLIENTS_BYTES, DAMAGE_REPORTS | TRACES),
            handler,
            legs,
        )
        return legs[-1], ack

    @property
    def has_others(self) -> bool:
        """Whether there is another TaskManager than the one in use."""
        return len(self._addresses) > 1

    def stay(self) -> None:
        """Try the address of the last connection first from now on."""
        self._addresses.remove(self._last)
        self._addresses.insert(0, self._last)

    def avoid(self, address: Address) -> None:
        """Try an address last from now on."""
        self._addresses.remove(address)
        self._addresses.append(address)

    async def _connect(
        self, hello: Hello, handler: HandlerFactory, legs: Sequence[ProducerLeg | ConsumerLeg]
    ) -> HelloAck:
        """Connect to the first address that answers, and watch the connection.

        Raises:
            ConnectFailed: None answers; it is the error of the last one.
        """
        failure = ConnectFailed("There is no endpoint to connect to")
        for address in tuple(self._addresses):
            try:
                transport = self._config.transport
                _, ack = await connect(address, hello, handler, transport, 0, self._credential)
            except ConnectFailed as error:
                failure = error
                continue
            self._last = address
            self._watch(legs[-1], ack, address)
            return ack
        raise failure.with_traceback(None)

    def _watch(self, leg: ProducerLeg | ConsumerLeg, ack: HelloAck, address: Address) -> None:
        leg.watch = LegWatch(
            leg.connection,
            ack.taskmanager_id,
            self._config.silence_timeout_seconds,
            lambda: leg.is_waiting,
            lambda: self.avoid(address),
        )

    def _hello(self, role: int, segment_size_bytes: int, features: int) -> Hello:
        return Hello(
            MAGIC,
            VERSION,
            VERSION,
            role,
            self._application_id,
            b"",
            segment_size_bytes,
            FLOW_CREDIT,
            features,
            f"python client {os.getpid()}",
        )


class ClientLegs:
    """The connections of a client. Made by :meth:`connect`.

    Args:
        connector: Makes connections.
        producer: The connection for writing.
        consumer: The connection for reading.
        acks: What the TaskManagers of both say of themselves in the handshake.

    Attributes:
        ack: Of the TaskManager that is written to.
    """

    def __init__(
        self,
        connector: LegConnector,
        producer: ProducerLeg,
        consumer: ConsumerLeg,
        acks: tuple[HelloAck, HelloAck],
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.ack, self._consumer_ack = acks
        self.counters: Final = connector.counters
        self._connector = connector
        self._connecting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def connect(cls, connector: LegConnector) -> "ClientLegs":
        """Connect in both roles.

        Raises:
            SluiceError: As of :meth:`~sluice.shuffle.client.client.ShuffleClient.connect`.

        Cancellation: safe.
        """
        producer, ack = await connector.producer()
        connector.stay()
        try:
            consumer, consumer_ack = await connector.consumer()
            if consumer_ack.segment_size_bytes != ack.segment_size_bytes:
                consumer.close()
                raise _mismatch(consumer_ack, ack)
        except BaseException:
            producer.close()
            await producer.closed.wait()  # the transport's close deadline bounds it
            raise
        return cls(connector, producer, consumer, (ack, consumer_ack))

    async def live_producer(self) -> ProducerLeg:
        """Return the connection for writing, a new one if it was closed while it was idle.

        If its TaskManager was silent and there are other endpoints, it leads to another one.

        Raises:
            SluiceError: No TaskManager can be reached, or it is another one now.

        Cancellation: safe.
        """
        if self.producer.connection.closing:
            async with self._connecting:
                if await self._is_replaced(self.producer):
                    leg, ack = await self._connector.producer()
                    self.producer = self._checked(leg, ack, self.ack, self.producer.lost)
                    self.ack = ack
        return self.producer

    async def live_consumer(self) -> ConsumerLeg:
        """Return the connection for reading, like :meth:`live_producer`.

        Raises:
            SluiceError: No TaskManager can be reached, or it is another one now.

        Cancellation: safe.
        """
        if self.consumer.connection.closing:
            async with self._connecting:
                if await self._is_replaced(self.consumer):
                    leg, ack = await self._connector.consumer()
                    known, lost = self._consumer_ack, self.consumer.lost
                    self.consumer = self._checked(leg, ack, known, lost)
                    self._consumer_ack = ack
        return self.consumer

    async def close(self) -> None:
        """Close both, and wait until they are gone. Idempotent.

        Cancellation: safe; the connections continue to close.
        """
        self._closed = True
        self.producer.close()
        self.consumer.close()
        await asyncio.gather(self.producer.closed.wait(), self.consumer.closed.wait())

    async def _is_replaced(self, leg: ProducerLeg | ConsumerLeg) -> bool:
        """Return whether another connection may take the place of one that is closed."""
        if self._closed or not leg.connection.closing:
            return False
        await leg.closed.wait()  # the transport's close deadline bounds it
        is_silent = isinstance(leg.lost, TaskManagerSilent)
        return is_idle_end(leg.lost) or (is_silent and self._connector.has_others)

    def _checked(self, leg: Leg, ack: HelloAck, known: HelloAck, lost: SluiceError | None) -> Leg:
        """Return a new connection if it leads to the TaskManager that the client knows.

        It may lead to another one with segments of the same size if the known one was silent.

        Raises:
            TASKMANAGER_MISMATCH: It leads to another one.
        """
        is_known = ack.taskmanager_id == known.taskmanager_id
        if self._closed:
            leg.close()
        elif ack.segment_size_bytes != known.segment_size_bytes or not (
            is_known or isinstance(lost, TaskManagerSilent)
        ):
            leg.close()
            raise _mismatch(ack, known)
        self._connector.stay()
        return leg


def _mismatch(ack: HelloAck, known: HelloAck) -> SluiceError:
    """Return the error for a connection that leads to another TaskManager."""
    return SluiceError(
        "Another TaskManager answers now",
        code=ErrorCode.TASKMANAGER_MISMATCH,
        value=ack.taskmanager_id,
        limit=known.taskmanager_id,
        remedy="Make a new client",
    )


def is_idle_end(error: SluiceError | None) -> bool:
    """Return whether a connection ended because its TaskManager found it idle."""
    return isinstance(error, RemoteError) and error.code is ErrorCode.DEADLINE_EXCEEDED


def _ack(greeting: Hello | HelloAck) -> HelloAck:
    if not isinstance(greeting, HelloAck):
        raise TypeError("the side that connects is greeted with a HelloAck")
    return greeting
