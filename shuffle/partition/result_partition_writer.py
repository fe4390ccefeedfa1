"""What a producer writes to: buffers, not records (R1).

The owner of the record loop asks for builders, fills them, and adds a consumer of each to its
subpartition *before* or while it fills it; the partition reads behind it. The rules:

- A subpartition has at most one open builder. Adding a buffer or an event behind it **finishes
  it**, so alternating unicast, broadcast and events keeps the order of every channel without any
  help. Therefore look at ``builder.is_finished`` before appending.
- A builder gives its reference up in ``finish()``: only open builders hold memory for the writer.
- Broadcast (``ALL_SUBPARTITIONS``) fills one builder; every subpartition reads that one buffer.

::

    builder = partition.request_builder(3) or await partition.wait_for_builder(3)
    partition.add_consumer(builder.create_consumer(), 3)
    builder.append_and_commit(b"...")  # as often as it fits
    partition.flush(3)  # or leave it to the output flusher, or to the buffer being full
    builder.finish()

The memory of one result partition: taking it, waiting for it, and how long that took.

How the writer of a partition gets its buffers, and waits for them: the same for every partition.

What differs is left to the subclass: whether it takes buffers at all, how memory is made free
before a wait, and what a buffer becomes.
"""

import abc
from time import monotonic
from typing import Final, Protocol

from sluice.protocol.errors import SluiceError
from sluice.shuffle.memory import (
    LocalBufferPool,
    NetworkBuffer,
    NetworkBufferTimeout,
    PoolDestroyed,
)
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer

ALL_SUBPARTITIONS: Final = -1
"""In place of a subpartition's number: every one of them, stored once."""


class ResultPartitionWriter(Protocol):
    """One task's output, by subpartition."""

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions, at least 1."""

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder for a buffer of a subpartition; None: no memory now.

        Raises:
            SluiceError: Why the partition takes nothing more: it failed, is released or finished.
        """

    async def wait_for_builder(self, subpartition: int) -> BufferBuilder:
        """Take a builder, waiting for memory as long as it takes: this is back pressure.

        Raises:
            SluiceError: As above, also while waiting.

        Cancellation: safe, it has no effect.
        """

    def add_consumer(
        self, consumer: BufferConsumer, subpartition: int, partial_record_bytes: int = 0
    ) -> None:
        """Queue a buffer, complete or still being filled; the partition owns the consumer then.

        Args:
            consumer: Where to read.
            subpartition: Whose it is, or ``ALL_SUBPARTITIONS``.
            partial_record_bytes: Bytes at its start that end a record of an earlier buffer.

        Raises:
            SluiceError: As above; the consumer is closed.
        """

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event behind what there is; one of type ``PRIORITY_EVENT`` overtakes it.

        Args:
            payload: The event, encoded.
            data_type: ``EVENT``, ``PRIORITY_EVENT`` or ``BLOCKING_EVENT``.
            subpartition: Whose it is, or ``ALL_SUBPARTITIONS``.

        Raises:
            SluiceError: As above.
        """

    def flush(self, subpartition: int) -> None:
        """Let what is committed in a subpartition's open buffer go on its way.

        A pipelined partition only notifies its reader: that is cheap, and harmless under back
        pressure. A blocking one writes what it has gathered to storage.
        """

    def flush_all(self) -> None:
        """Flush every subpartition."""

    @property
    def is_available(self) -> bool:
        """Whether ``request_builder`` would give one now."""

    async def wait_available(self) -> None:
        """Wait until :attr:`is_available`, or until the partition takes nothing more.

        Cancellation: safe.
        """

    async def finish(self) -> None:
        """End the output of every subpartition; nothing can be added afterwards.

        Raises:
            SluiceError: The output could not be completed.

        Cancellation: the partition is to be released then.
        """

    def fail(self, error: SluiceError) -> None:
        """End the output with an error, which readers and waiting writers get. Idempotent."""

    def release(self) -> None:
        """Give everything up, memory included. Idempotent."""


PLACE_IN_QUEUE_SECONDS: Final = 3600.0
"""After this a waiting writer queues again, so that no wait is without a deadline."""


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
            channel: Subpartition to charge; negative: nobody.

        Raises:
            PoolDestroyed: The pool is gone, or went while waiting.

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
            PoolDestroyed: The pool is gone, or went while waiting.

        Cancellation: safe.
        """
        began = monotonic()
        try:
            await self.pool.wait_available()
        finally:
            self.soft_back_pressured_seconds += monotonic() - began


class BuilderSource:
    """The part of a ``ResultPartitionWriter`` that waits for memory.

    Attributes:
        memory: The partition's pool.
    """

    memory: PartitionMemory

    @abc.abstractmethod
    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder; None: no memory now.

        Raises:
            SluiceError: Why the partition takes nothing more.
        """

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
            buffer.recycle()  # it ended after this was handed over, before this task could run
            raise self._refusal()
        return self._builder(buffer, subpartition)

    @property
    def is_available(self) -> bool:
        """Whether ``request_builder`` would give one now."""
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

    @property
    @abc.abstractmethod
    def _is_writable(self) -> bool:
        """Whether it takes buffers."""

    @abc.abstractmethod
    def _refusal(self) -> SluiceError:
        """Say why it takes nothing more."""

    @abc.abstractmethod
    def _make_room(self) -> None:
        """Before waiting: what was written must not hold all memory, or nothing ever moves."""

    @abc.abstractmethod
    def _builder(self, buffer: NetworkBuffer, subpartition: int) -> BufferBuilder:
        """Make the builder of a buffer."""
