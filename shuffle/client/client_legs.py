"""The two connections of a client, and their return after the TaskManager closed an idle one."""

import asyncio
import os
from typing import Final, TypeVar

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.identity import Credential
from ...protocol.limits import (
    MAGIC,
    SEGMENTS_OF_CLIENTS_BYTES,
    VERSION,
)
from ...protocol.remote_error import RemoteError
from ...protocol.schema import FLOW_CREDIT, ROLE_CONSUMER, ROLE_PRODUCER, Hello, HelloAck
from ...transport.address import Address
from ...transport.connection import Connection, ConnectionHandler
from ...transport.connector import connect
from ..counters import Counters
from ..legs.producer_leg import ProducerLeg
from .config import ClientConfig
from .consumer_leg import ConsumerLeg

Leg = TypeVar("Leg", ProducerLeg, ConsumerLeg)


class LegConnector:
    """Makes the connections of one client.

    Args:
        address: The TaskManager's.
        application_id: The application.
        config: Memory and deadlines.
        credential: What the client proves; None: nothing.
        counters: The client's counters.
    """

    def __init__(
        self,
        address: Address,
        application_id: str,
        config: ClientConfig,
        credential: Credential | None,
        counters: Counters,
    ) -> None:
        self._address = address
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
            return legs[0]

        hello = self._hello(ROLE_PRODUCER, 0)
        transport = self._config.transport
        _, ack = await connect(self._address, hello, handler, transport, 0, self._credential)
        return legs[0], ack

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
            return legs[0]

        hello = self._hello(ROLE_CONSUMER, SEGMENTS_OF_CLIENTS_BYTES)
        transport = self._config.transport
        _, ack = await connect(self._address, hello, handler, transport, 0, self._credential)
        return legs[0], ack

    def _hello(self, role: int, segment_size_bytes: int) -> Hello:
        return Hello(
            MAGIC,
            VERSION,
            VERSION,
            role,
            self._application_id,
            b"",
            segment_size_bytes,
            FLOW_CREDIT,
            0,
            f"python client {os.getpid()}",
        )


class ClientLegs:
    """The connections of a client. Made by :meth:`connect`.

    Args:
        connector: Makes connections.
        producer: The connection for writing.
        consumer: The connection for reading.
        ack: The description of the TaskManager in the handshake.
    """

    def __init__(
        self, connector: LegConnector, producer: ProducerLeg, consumer: ConsumerLeg, ack: HelloAck
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.ack: Final = ack
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
        producer, _ = await connector.producer()
        try:
            consumer, ack = await connector.consumer()
        except BaseException:
            producer.close()
            await producer.closed.wait()  # the transport's close deadline bounds it
            raise
        return cls(connector, producer, consumer, ack)

    async def live_producer(self) -> ProducerLeg:
        """Return the connection for writing, a new one if it was closed while it was idle.

        Raises:
            SluiceError: The TaskManager can no longer be reached, or is another one now.

        Cancellation: safe.
        """
        if self.producer.connection.closing:
            async with self._connecting:
                if await self._was_idle(self.producer):
                    leg, ack = await self._connector.producer()
                    self.producer = self._checked(leg, ack)
        return self.producer

    async def live_consumer(self) -> ConsumerLeg:
        """Return the connection for reading, a new one if it was closed while it was idle.

        Raises:
            SluiceError: The TaskManager can no longer be reached, or is another one now.

        Cancellation: safe.
        """
        if self.consumer.connection.closing:
            async with self._connecting:
                if await self._was_idle(self.consumer):
                    leg, ack = await self._connector.consumer()
                    self.consumer = self._checked(leg, ack)
        return self.consumer

    async def close(self) -> None:
        """Close both, and wait until they are gone. Idempotent.

        Cancellation: safe; the connections continue to close.
        """
        self._closed = True
        self.producer.close()
        self.consumer.close()
        await asyncio.gather(self.producer.closed.wait(), self.consumer.closed.wait())

    async def _was_idle(self, leg: ProducerLeg | ConsumerLeg) -> bool:
        """Return whether a connection was closed because it was idle."""
        if self._closed or not leg.connection.closing:
            return False
        await leg.closed.wait()  # the transport's close deadline bounds it
        return is_idle_end(leg.lost)

    def _checked(self, leg: Leg, ack: HelloAck) -> Leg:
        """Return a new connection if it leads to the TaskManager that the client knows.

        Raises:
            TASKMANAGER_MISMATCH: It leads to another one.
        """
        known = self.ack
        if self._closed:
            leg.close()
        elif (ack.taskmanager_id, ack.segment_size_bytes) != (
            known.taskmanager_id,
            known.segment_size_bytes,
        ):
            leg.close()
            raise SluiceError(
                "Another TaskManager answers now",
                code=ErrorCode.TASKMANAGER_MISMATCH,
                value=ack.taskmanager_id,
                limit=known.taskmanager_id,
                remedy="Make a new client",
            )
        return leg


def is_idle_end(error: SluiceError | None) -> bool:
    """Return whether a connection ended because its TaskManager found it idle."""
    return isinstance(error, RemoteError) and error.code is ErrorCode.DEADLINE_EXCEEDED


def _ack(greeting: Hello | HelloAck) -> HelloAck:
    if not isinstance(greeting, HelloAck):
        raise TypeError("the side that connects is greeted with a HelloAck")
    return greeting
