"""What the peer leg and the consumer leg have in common on the serving side: channels by number."""

import abc
import logging
from collections.abc import Callable

from protocol.errors import ChannelInUse, SluiceError, UnexpectedMessage
from protocol.messages import (
    AddCredit,
    CancelPartitionRequest,
    Message,
    ResumeConsumption,
    TaskEvent,
)
from shuffle.counters import Counters
from shuffle.memory import LocalBufferPool, NetworkBufferPool
from shuffle.network.request_queue import PartitionRequestQueue
from shuffle.network.view_reader import CreditBasedViewReader
from transport.connection import Connection

_log = logging.getLogger(__name__)

READ_POOL_MINIMUM = 1
"""Segments a connection is sure of for reads of the disk tier."""


class ReadPool:
    """The pool of one connection for reads of the disk tier; made when first needed.

    A pool for each connection: a consumer that does not read holds its own share, not all.
    """

    def __init__(self, network_pool: NetworkBufferPool, name: str, maximum: int) -> None:
        self._network_pool = network_pool
        self._name = name
        self._maximum = maximum
        self._pool: LocalBufferPool | None = None

    def __call__(self) -> LocalBufferPool:
        """Return the pool.

        Raises:
            InsufficientNetworkBuffers: Not even one segment is left for it.
        """
        if self._pool is None:
            self._pool = self._network_pool.create_local_pool(
                self._name, READ_POOL_MINIMUM, self._maximum
            )
        return self._pool

    def destroy(self) -> None:
        """Give the pool up; segments that are out follow. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.destroy()


class ServingHandler(abc.ABC):
    """Serves channels on one connection.

    Args:
        connection: The connection.
        read_pool: Memory for reads of the disk tier.
        counters: The TaskManager's counters.
        on_lost: Called when the connection is gone, after everything was given back.
        credit_bytes: What one credit of a channel pays for.
    """

    def __init__(
        self,
        connection: Connection,
        read_pool: ReadPool,
        counters: Counters,
        on_lost: Callable[[], None],
        credit_bytes: int,
    ) -> None:
        self.connection = connection
        self.credit_bytes = credit_bytes
        self.readers: dict[int, CreditBasedViewReader] = {}
        self.read_pool = read_pool
        self.counters = counters
        self.queue = PartitionRequestQueue(connection, self.sent, self.ended)
        self._on_lost = on_lost

    def new_reader(self, channel: int, initial_credit: int) -> CreditBasedViewReader:
        """Open a channel.

        Raises:
            ChannelInUse: Its number is taken.
        """
        if channel in self.readers:
            raise ChannelInUse("Channel number is in use on this connection", value=channel)
        reader = CreditBasedViewReader(
            channel, initial_credit, self.queue.notify, self.credit_bytes
        )
        self.readers[channel] = reader
        self.counters.credits_received += initial_credit
        return reader

    def close_channel(self, channel: int) -> bool:
        """Close a channel for its consumer; False if there is none of that number."""
        reader = self.readers.pop(channel, None)
        if reader is None:
            return False
        self.queue.remove(reader)
        self._without_readers()
        return True

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Supply memory for a task event; nothing listens to them on this leg."""
        if type(message) is not TaskEvent:
            raise UnexpectedMessage("Payload on a serving leg", value=type(message).__name__)
        return memoryview(bytearray(length))

    def message_received(self, message: Message, payload_length: int) -> None:
        """Take credit and cancels; the rest is for the subclass."""
        if type(message) is AddCredit:
            reader = self.readers.get(message.channel)
            if reader is None:
                self.counters.late_messages.bump("AddCredit")
            else:
                self.counters.credits_received += message.credit
                reader.add_credit(message.credit)
        elif type(message) is CancelPartitionRequest:
            if not self.close_channel(message.channel):
                self.counters.late_messages.bump("CancelPartitionRequest")
        elif type(message) in (ResumeConsumption, TaskEvent):
            # Blocking partitions have no barriers and take no events.
            self.counters.late_messages.bump(type(message).__name__)
        else:
            self.request_received(message)

    @abc.abstractmethod
    def request_received(self, message: Message) -> None:
        """Take what only the leg of the subclass knows."""

    @abc.abstractmethod
    def sent(self, reader: CreditBasedViewReader, length: int) -> None:
        """Count a data buffer that was sent."""

    def ended(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        """A channel has sent its end or its error: its number is free again."""
        self.readers.pop(reader.channel, None)
        self._without_readers()
        if error is not None:
            self.counters.errors_by_code.bump(error.code.name)
            _log.warning(
                "channel %d of %s failed: %s: %s",
                reader.channel,
                self.connection.remote,
                error.code.name,
                str(error),  # a record must not keep the frames the error came through
            )

    def _without_readers(self) -> None:
        if not self.readers:
            # An idle connection may be kept for long; its share of the segments is for others.
            self.read_pool.destroy()

    def writable(self) -> None:
        """Send on."""
        self.queue.run()

    def connection_lost(self, error: SluiceError) -> None:
        """Give everything back."""
        readers, self.readers = self.readers, {}
        for reader in readers.values():
            self.queue.remove(reader)
        self.read_pool.destroy()
        self._on_lost()
