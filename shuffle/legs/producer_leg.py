"""The client side of the producer leg: one connection, over which many partitions are written."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ...protocol.errors import MalformedMessage, SluiceError, UnexpectedMessage
from ...protocol.limits import MAX_EVENT_BYTES, MAX_U32
from ...protocol.remote_error import RemoteError
from ...protocol.schema import (
    AbortPartition,
    AddCredit,
    CloseRequest,
    ErrorResponse,
    HelloAck,
    Message,
    PartitionAborted,
    PartitionConsumed,
    PartitionFinished,
    PartitionOpened,
    RegionOpened,
    TaskEvent,
)
from ...transport.connection import Connection
from ...transport.errors import ConnectionLost, DeadlineExceeded, code_field
from ..errors import internal_error

logger = logging.getLogger(__name__)

MAX_MESSAGES_A_TURN: Final = 32
"""Maximum number of messages sent in a turn of the event loop, all partitions together."""


def wake(waiting: asyncio.Future[None] | None, error: SluiceError | None = None) -> None:
    """Complete a future, or fail it if there is an error; ignore a completed one."""
    if waiting is None or waiting.done():
        return
    if error is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(error)
        waiting.exception()  # retrieved: the task that waits may have been cancelled


class LegPartition(Protocol):
    """A partition being written, as the leg sees it."""

    def credit_granted(self, credit: int) -> None:
        """Send more, because the TaskManager can take it."""

    def send(self) -> bool:
        """Send the next message, if any; return whether another can be sent now."""

    def finished(self) -> None:
        """Record that the partition is complete at the TaskManager."""

    def consumed(self) -> None:
        """Record that the readers have reached the end (pipelined partitions)."""

    def failed(self, error: SluiceError) -> None:
        """Record that the partition will never be complete."""

    def region_opened(self, payload_bytes: int) -> None:
        """Record the largest payload of the opened region (stored partitions)."""

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Handle an event sent by a reader (pipelined partitions)."""


class SilenceWatch(Protocol):
    """Watches a connection for signs of life of its TaskManager."""

    def close(self) -> None:
        """Stop watching. Idempotent."""


class ProducerLeg:
    """Writes partitions to one TaskManager.

    Args:
        connection: The open connection.
        ack: The TaskManager's answer to the handshake.
        answer_timeout_seconds: Deadline of answers that do not wait for a reader.
    """

    def __init__(
        self, connection: Connection, ack: HelloAck, answer_timeout_seconds: float
    ) -> None:
        self.connection = connection
        self.taskmanager_id = ack.taskmanager_id
        self.features = ack.features
        self._answer_timeout_seconds = answer_timeout_seconds
        self._partitions: dict[int, LegPartition] = {}
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._aborting: dict[int, asyncio.Future[None]] = {}
        self._last_number = -1
        self._queue: deque[LegPartition] = deque()
        self._queued: set[LegPartition] = set()
        self._turn_due = False
        self._event = bytearray()
        self.lost: SluiceError | None = None
        self.closed = asyncio.Event()
        """Set when the connection is lost."""
        self.watch: SilenceWatch | None = None
        """Ends the connection if the TaskManager is silent; set by its owner."""

    @property
    def is_waiting(self) -> bool:
        """Whether the TaskManager has something to answer, now or later."""
        return bool(self._partitions or self._opening or self._aborting)

    @property
    def closing(self) -> bool:
        """Whether no further partition can be opened."""
        return self.lost is not None or self.connection.closing

    @property
    def partitions(self) -> int:
        """Number of partitions that are being written, or read to their end."""
        return len(self._partitions)

    def new_number(self) -> int:
        """Return a free partition number.

        Raises:
            SluiceError: The connection is lost.
        """
        if self.lost is not None:
            raise self.lost
        if self.connection.closing:
            raise ConnectionLost(f"Connection to {self.connection.remote} is closed")
        number = self._last_number
        while True:
            number = (number + 1) & MAX_U32
            if number not in self._partitions:
                self._last_number = number
                return number

    async def open(self, number: int, message: Message, partition: LegPartition) -> None:
        """Open a partition.

        Args:
            number: A new partition number.
            message: The message that opens the partition.
            partition: Receives the TaskManager's messages about the partition.

        Raises:
            SluiceError: The TaskManager refused the partition, or the connection is lost.
            DeadlineExceeded: The TaskManager did not answer.

        Cancellation: safe; the partition is aborted.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening[number] = opened
        self._partitions[number] = partition
        try:
            self.send(message)
            await self.answer(opened, "OpenPartition")
        except BaseException:
            # A refused partition is forgotten already. Any other may still open, and hold memory.
            if self._partitions.pop(number, None) is not None:
                self.send(AbortPartition(number))
            raise
        finally:
            del self._opening[number]

    def attach(self, number: int, partition: LegPartition) -> None:
        """Pass messages to a partition that is opened without waiting for the answer."""
        self._partitions[number] = partition

    async def abort(self, number: int) -> None:
        """Abort a partition, and wait until the TaskManager confirms it.

        No message about the partition follows the confirmation.

        Raises:
            SluiceError: The connection is lost, or the TaskManager does not answer.

        Cancellation: safe; the partition is aborted anyway.
        """
        aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._aborting[number] = aborted
        try:
            self.send(AbortPartition(number))
            await self.answer(aborted, "AbortPartition")
        finally:
            del self._aborting[number]
            self.forget(number)

    def forget(self, number: int) -> None:
        """Ignore further messages about a partition. Idempotent."""
        self._partitions.pop(number, None)

    def send(
        self,
        message: Message,
        payload: memoryview | bytes = b"",
        release: Callable[[], None] | None = None,
    ) -> None:
        """Send a message; a lost connection ignores it, because all partitions have failed."""
        self.connection.send(message, payload, release)

    def queue(self, partition: LegPartition) -> None:
        """Queue a partition that has something to send."""
        if partition in self._queued:
            return
        self._queued.add(partition)
        self._queue.append(partition)
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._run)

    async def answer(self, waiting: asyncio.Future[None], to: str) -> None:
        """Wait for an answer, up to the deadline.

        Raises:
            DeadlineExceeded: No answer came.
            SluiceError: The answer is an error, or the connection was lost.

        Cancellation: safe.
        """
        if self.lost is not None:
            waiting.cancel()
            raise self.lost
        try:
            async with asyncio.timeout(self._answer_timeout_seconds):
                await waiting
        except TimeoutError:
            raise DeadlineExceeded(
                f"TaskManager does not answer {to}",
                value=self.connection.remote,
                limit=f"{self._answer_timeout_seconds} s",
                remedy="Check its log and load, or raise answer_timeout_seconds",
            ) from None

    def close(self) -> None:
        """Close the connection; unfinished partitions fail. Idempotent."""
        if not self.connection.closing:
            self.connection.send(CloseRequest())
            self.connection.close()

    # ---- sluice.transport.connection.ConnectionHandler ------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Supply memory for the bytes of a task event."""
        if type(message) is not TaskEvent:
            raise UnexpectedMessage("Payload on a producer leg", value=type(message).__name__)
        if length > MAX_EVENT_BYTES:
            raise MalformedMessage("Event is too large", value=length, limit=MAX_EVENT_BYTES)
        self._event = bytearray(length)
        return memoryview(self._event)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Pass a message to the partition that it is about."""
        if type(message) is AddCredit:
            partition = self._partitions.get(message.channel)
            if partition is not None:
                partition.credit_granted(message.credit)
        elif type(message) is PartitionOpened:
            wake(self._opening.get(message.partition))
        elif type(message) is PartitionFinished:
            partition = self._partitions.get(message.partition)
            if partition is not None:
                partition.finished()
        elif type(message) is PartitionConsumed:
            partition = self._partitions.pop(message.partition, None)
            if partition is not None:
                partition.consumed()
        elif type(message) is RegionOpened:
            partition = self._partitions.get(message.partition)
            if partition is not None:
                partition.region_opened(message.payload_bytes)
        elif type(message) is TaskEvent:
            partition = self._partitions.get(message.channel)
            if partition is not None:
                payload = bytes(self._event) if payload_length else b""
                partition.task_event_received(message.event_type, payload)
        elif type(message) is ErrorResponse and message.channel is not None:
            self._failed(message.channel, RemoteError(message))
        elif type(message) is CloseRequest:
            self.connection.close()
        elif type(message) is PartitionAborted:
            wake(self._aborting.get(message.partition))
        else:
            raise UnexpectedMessage("Message on a producer leg", value=type(message).__name__)

    def writable(self) -> None:
        """Continue to send, because the connection can take more."""
        self._run()

    def connection_lost(self, error: SluiceError) -> None:
        """Fail all unfinished partitions."""
        self.lost = error
        self.closed.set()
        if self.watch is not None:
            self.watch.close()
            self.watch = None  # it refers to this leg
        self._queue.clear()
        self._queued.clear()
        for waiting in (*self._opening.values(), *self._aborting.values()):
            wake(waiting, error)
        partitions, self._partitions = self._partitions, {}
        for partition in partitions.values():
            partition.failed(error)

    # ---- inside ---------------------------------------------------------------------------------

    def _failed(self, number: int, error: SluiceError) -> None:
        wake(self._opening.get(number), error)
        partition = self._partitions.pop(number, None)
        if partition is not None:
            partition.failed(error)

    def _run(self) -> None:
        self._turn_due = False
        queue = self._queue
        left = MAX_MESSAGES_A_TURN
        self.connection.cork()
        try:
            while queue and self.connection.writable:
                if not left:
                    self._turn_due = True
                    asyncio.get_running_loop().call_soon(self._run)
                    return
                left -= 1
                partition = queue.popleft()
                if partition.send():
                    queue.append(partition)
                else:
                    self._queued.discard(partition)
        except Exception as error:
            # A bug must end the connection, and be logged.
            remote, failure = self.connection.remote, internal_error(error)
            extra = {"application": self.connection.application_id, "peer": remote}
            extra |= code_field(failure)
            logger.exception("internal error while sending to %s", remote, extra=extra)
            self.connection.abort(failure)
        finally:
            self.connection.uncork()
