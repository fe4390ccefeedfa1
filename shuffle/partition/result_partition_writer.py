"""The contract between a partition and the task that writes it: buffers, not records.

The owner of the record loop asks for builders, fills them, and adds a consumer of each to its
subpartition *before* it fills it or while it does; the partition reads behind the writer. The
rules:

- A subpartition has at most one open builder. Adding a buffer or an event behind it **finishes
  it**, so alternating unicast, broadcast and events keeps the order of every channel without any
  help. Therefore look at ``builder.is_finished`` before appending.
- A builder releases its reference in ``finish()``: only open builders hold memory for the writer.
- Broadcast (``ALL_SUBPARTITIONS``) fills one builder; every subpartition reads that one buffer.

::

    builder = partition.request_builder(3) or await partition.wait_for_builder(3)
    partition.add_consumer(builder.create_consumer(), 3)
    builder.append_and_commit(b"...")  # as often as it fits
    partition.flush(3)  # or leave it to the output flusher, or to the buffer being full
    builder.finish()

:class:`ResultPartitionWriter` is the contract. :class:`BufferWritingPartition` is the half of it
that every partition shares; :class:`PartitionMemory` is its pool, with the waits and their times.
"""

import abc
from time import monotonic
from typing import Final, Protocol

from ...protocol.errors import SluiceError
from ...protocol.schema import BLOCKING_EVENT, EVENT, PRIORITY_EVENT
from ..errors import InvalidRequest, PartitionAlreadyFinished, PartitionReleased
from ..memory import LocalBufferPool, NetworkBuffer, NetworkBufferTimeout, PoolDestroyed
from .partition_states import NEXT_STATES, PartitionState
from .shared_buffer import BufferBuilder, BufferConsumer

ALL_SUBPARTITIONS: Final = -1
"""Stands for every subpartition, where one is named; a broadcast buffer is stored once."""


class ResultPartitionWriter(Protocol):
    """One task's output, by subpartition."""

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions, at least 1."""

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder for a buffer of a subpartition; None: no memory now.

        Raises:
            InvalidRequest: The partition has no such subpartition.
            SluiceError: Why the partition takes nothing more: it failed, is released or finished.
        """

    async def wait_for_builder(self, subpartition: int) -> BufferBuilder:
        """Take a builder, waiting for memory as long as it takes: this is back pressure.

        Raises:
            SluiceError: As above, also while waiting.

        Cancellation: safe, no memory is taken.
        """

    def add_consumer(self, consumer: BufferConsumer, subpartition: int) -> None:
        """Queue a buffer, complete or still being filled; the partition owns the consumer then.

        Args:
            consumer: Reads the buffer.
            subpartition: Number of the subpartition, or ``ALL_SUBPARTITIONS``.

        Raises:
            SluiceError: As above; the consumer is closed.
        """

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event; the open buffer before it is finished.

        An event takes a buffer while there is one: await :meth:`wait_available` between events, so
        that unread ones hold the task back. An event of type ``PRIORITY_EVENT`` overtakes
        everything that waits to be read, and finishes no buffer. In a reconsumable partition it
        keeps its place.

        Args:
            payload: The event, encoded.
            data_type: ``EVENT``, ``PRIORITY_EVENT`` or ``BLOCKING_EVENT``.
            subpartition: Number of the subpartition, or ``ALL_SUBPARTITIONS``.

        Raises:
            InvalidRequest: The partition has no such subpartition, or events no such type.
            TooManyEvents: More events wait than are kept.
            SluiceError: As above.
        """

    def flush(self, subpartition: int) -> None:
        """Send the committed bytes of a subpartition's open buffer.

        A pipelined partition only notifies its reader: that is cheap, and harmless under back
        pressure. A stored one writes all that it has gathered to storage.
        """

    def flush_all(self) -> None:
        """Flush every subpartition."""

    @property
    def is_available(self) -> bool:
        """Whether ``request_builder`` would give a builder now."""

    async def wait_available(self) -> None:
        """Wait until :attr:`is_available`, or until the partition takes nothing more.

        Cancellation: safe.
        """

    async def finish(self) -> None:
        """End the output of every subpartition; nothing can be added afterwards.

        Raises:
            SluiceError: The output could not be completed.

        Cancellation: release the partition then.
        """

    def fail(self, error: SluiceError) -> None:
        """End the output with an error, which readers and waiting writers get. Idempotent."""

    def release(self) -> None:
        """Release everything, memory included. Idempotent."""


PLACE_IN_QUEUE_SECONDS: Final = 3600.0
"""After this time a waiting writer queues again, so that no wait is without a deadline."""


class PartitionMemory:
    """A partition's pool, as its writer uses it.

    Args:
        pool: The partition owns it.

    Attributes:
        soft_back_pressured_seconds: Time spent in :meth:`wait_available`, between records.
        hard_back_pressured_seconds: Time spent in :meth:`wait`, within a record.
    """

    __slots__ = ("hard_back_pressured_seconds", "pool", "soft_back_pressured_seconds")

    def __init__(self, pool: LocalBufferPool) -> None:
        self.pool: Final = pool
        self.soft_back_pressured_seconds = 0.0
        self.hard_back_pressured_seconds = 0.0

    async def wait(self, channel: int) -> NetworkBuffer:
        """Take a buffer, waiting as long as it takes.

        Args:
            channel: Subpartition to charge for the buffer; negative: it is charged to none.

        Raises:
            PoolDestroyed: The pool is destroyed, before the wait or during it.

        Cancellation: safe, nothing is taken.
        """
        began = monotonic()
        try:
            while True:
                try:
                    segment = await self.pool.request_segment(PLACE_IN_QUEUE_SECONDS, channel)
                except NetworkBufferTimeout:
                    continue  # back pressure may last
                return self.pool.buffer_of(segment, 0)
        finally:
            self.hard_back_pressured_seconds += monotonic() - began

    async def wait_available(self) -> None:
        """Wait until the pool is available, as long as it takes.

        Raises:
            PoolDestroyed: The pool is destroyed, before the wait or during it.

        Cancellation: safe.
        """
        began = monotonic()
        try:
            await self.pool.wait_available()
        finally:
            self.soft_back_pressured_seconds += monotonic() - began


class BufferWritingPartition:
    """The half of a :class:`ResultPartitionWriter` that every partition shares.

    It checks subpartitions and types of events, refuses all that comes too late, and takes memory.
    A subclass knows how buffers get free before a wait, and where buffers and events go.

    Args:
        name: For errors and status pages.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: The memory; the partition owns it and destroys it when it requests nothing more.

    Attributes:
        state: The state, a row of the table in :mod:`sluice.shuffle.partition.partition_states`.
        memory: The pool.

    Raises:
        InvalidRequest: The number of subpartitions is less than 1.
    """

    def __init__(self, name: str, num_subpartitions: int, pool: LocalBufferPool) -> None:
        if num_subpartitions < 1:
            raise InvalidRequest("Number of subpartitions", value=num_subpartitions, limit=1)
        self.name: Final = name
        self.num_subpartitions: Final = num_subpartitions
        self.state = PartitionState.OPEN
        self.memory: Final = PartitionMemory(pool)
        self._failure: SluiceError | None = None

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder for a buffer of a subpartition; None: no memory now.

        Raises:
            InvalidRequest: The partition has no such subpartition.
            PartitionAlreadyFinished: The partition is finished.
            PartitionReleased: The partition is released.
            SluiceError: Why the partition failed.
        """
        self._check_writable(subpartition)
        buffer = self.memory.pool.request_buffer_nowait(subpartition)
        return None if buffer is None else BufferBuilder(buffer)

    async def wait_for_builder(self, subpartition: int) -> BufferBuilder:
        """Take a builder, waiting for memory as long as it takes: this is back pressure.

        Raises:
            SluiceError: As :meth:`request_builder`, also while waiting.

        Cancellation: safe, no memory is taken.
        """
        builder = self.request_builder(subpartition)
        if builder is not None:
            return builder
        self._make_room()
        try:
            buffer = await self.memory.wait(subpartition)
        except PoolDestroyed:
            raise self._refusal() from None
        if not self._is_writable:
            buffer.recycle()  # the partition ended after the handover, before this task could run
            raise self._refusal()
        return BufferBuilder(buffer)

    @property
    def is_available(self) -> bool:
        """Whether ``request_builder`` would give a builder now."""
        return self._is_writable and self.memory.pool.is_available

    async def wait_available(self) -> None:
        """Wait until there is memory, or until the partition takes nothing more.

        Cancellation: safe.
        """
        if not self._is_writable or self.memory.pool.is_available:
            return
        self._make_room()
        try:
            await self.memory.wait_available()
        except PoolDestroyed:
            if self._is_writable:
                raise self._refusal() from None

    def add_consumer(self, consumer: BufferConsumer, subpartition: int) -> None:
        """Queue a buffer, complete or still being filled; a broadcast one is stored once.

        Raises:
            SluiceError: As :meth:`request_builder`. In all cases the consumer is closed.
        """
        try:
            self._check_writable(subpartition)
        except SluiceError:
            consumer.close()
            raise
        self._add(consumer, subpartition)

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event; see :meth:`ResultPartitionWriter.emit_event`.

        Raises:
            InvalidRequest: The partition has no such subpartition, or events no such type.
            TooManyEvents: More events wait than are kept.
            SluiceError: As :meth:`request_builder`.
        """
        self._check_writable(subpartition)
        if data_type not in (EVENT, PRIORITY_EVENT, BLOCKING_EVENT):
            raise InvalidRequest(
                "Data type of an event",
                value=data_type,
                limit=f"{EVENT}, {PRIORITY_EVENT} or {BLOCKING_EVENT}",
            )
        self._add_event(payload, data_type, subpartition)

    @abc.abstractmethod
    def flush(self, subpartition: int) -> None:
        """Send the committed bytes of a subpartition's open buffer."""

    @abc.abstractmethod
    def flush_all(self) -> None:
        """Flush every subpartition."""

    @abc.abstractmethod
    async def finish(self) -> None:
        """End the output of every subpartition; see :meth:`ResultPartitionWriter.finish`."""

    @abc.abstractmethod
    def fail(self, error: SluiceError) -> None:
        """End the output with an error, which readers and waiting writers get. Idempotent."""

    @abc.abstractmethod
    def release(self) -> None:
        """Release everything, memory included. Idempotent."""

    async def wait_consumed(self, timeout_seconds: float) -> None:
        """Wait for the readers of a finished pipelined partition.

        Raises:
            InvalidRequest: The partition is stored.
            DeadlineExceeded: They have not reached the end in time.
            SluiceError: Why they will not.

        Cancellation: safe.
        """
        raise InvalidRequest(
            "A stored partition is read any number of times, so nobody knows when it is consumed",
            value=self.name,
            remedy="Write a pipelined one, or do not wait",
        )

    async def wait_closed(self) -> None:
        """Wait until nothing is written any longer after the release.

        Cancellation: safe.
        """

    def close(self) -> None:
        """End the task's use of the partition; one that is not finished is released. Idempotent.

        A finished one may stay with its readers.
        """
        self.release()

    # ---- for subclasses ----------------------------------------------------------------------

    @abc.abstractmethod
    def _add(self, consumer: BufferConsumer, subpartition: int) -> None:
        """Queue a buffer, of a subpartition that exists, or of all of them."""

    @abc.abstractmethod
    def _add_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event of a valid type, of a subpartition that exists, or of all of them."""

    @abc.abstractmethod
    def _make_room(self) -> None:
        """Prepare a wait: written buffers must not hold all the memory, or nothing ever moves."""

    @property
    def _is_writable(self) -> bool:
        """Whether the partition takes buffers."""
        return self.state is PartitionState.OPEN

    def _check_writable(self, subpartition: int = ALL_SUBPARTITIONS) -> None:
        """Refuse a subpartition that does not exist, and every one if the partition is not open.

        Raises:
            SluiceError: As :meth:`request_builder`.
        """
        if self.state is not PartitionState.OPEN:
            raise self._refusal()
        if not ALL_SUBPARTITIONS <= subpartition < self.num_subpartitions:
            raise self._unknown(subpartition)

    def _unknown(self, subpartition: int) -> InvalidRequest:
        return InvalidRequest(
            "Partition has no such subpartition",
            value=subpartition,
            limit=self.num_subpartitions - 1,
        )

    def _refusal(self) -> SluiceError:
        """Return the reason why the partition takes nothing more."""
        if self._failure is not None:
            return self._failure.with_traceback(None)  # its frames would pile up
        if self.state is PartitionState.OPEN:
            return PartitionReleased("The memory of the partition is given back", value=self.name)
        return PartitionAlreadyFinished(
            "Nothing can be added to a finished partition", value=self.name
        )

    def _become(self, state: PartitionState) -> bool:
        """Change to a state if the present one leads there; return whether it does."""
        if state not in NEXT_STATES[self.state]:
            return False
        self.state = state
        return True

    def _end(self, state: PartitionState, error: SluiceError | None = None) -> bool:
        """Become FAILED or RELEASED if the present state leads there; return whether it does.

        Args:
            state: The new state.
            error: Why; by default, the release. Of several reasons the first one counts.
        """
        if not self._become(state):
            return False
        if self._failure is None:
            self._failure = error or PartitionReleased("Partition is released", value=self.name)
        return True
