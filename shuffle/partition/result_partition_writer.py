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
"""

from typing import Final, Protocol

from protocol.errors import SluiceError
from shuffle.partition.buffer_builder import BufferBuilder
from shuffle.partition.buffer_consumer import BufferConsumer

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
