"""How the writer of a partition gets its buffers, and waits for them: the same for every partition.

What differs is left to the subclass: whether it takes buffers at all, how memory is made free
before a wait, and what a buffer becomes.
"""

import abc

from protocol.errors import SluiceError
from shuffle.memory import NetworkBuffer, PoolDestroyed
from shuffle.partition.buffer_builder import BufferBuilder
from shuffle.partition.partition_memory import PartitionMemory


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
