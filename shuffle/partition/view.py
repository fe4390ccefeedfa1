"""The interface between a subpartition and the code that serves or consumes it, buffer by buffer.

A view is read by one reader. It never blocks: when it has nothing to read, it calls its listener
once it has. Three answers are kept apart: *nothing yet* (``next_buffer`` gives None), *the end* (an
event buffer) and *failed* (``failure`` is set).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeGuard

from ...protocol.errors import SluiceError


class OutgoingBuffer(NamedTuple):
    """One buffer of a view, on its way out.

    Attributes:
        payload: The bytes. They stay as they are until ``release`` is called.
        release: Returns the memory. Call it exactly once, when the bytes are no longer needed;
            None if no pool owns the bytes.
        data_type: ``sluice.protocol.schema.DATA``, ``EVENT``, ``PRIORITY_EVENT`` or
            ``BLOCKING_EVENT``.
    """

    payload: memoryview | bytes
    release: Callable[[], None] | None
    data_type: int


def release_all(buffers: Iterable[OutgoingBuffer]) -> None:
    """Return the memory of several buffers."""
    for buffer in buffers:
        if buffer.release is not None:
            buffer.release()


DataListener = Callable[[], None]
"""Called when a view that had nothing to read has something, or has failed."""


def no_listener() -> None:
    """Replace the listener of a channel that is released: it would refer to its gate for ever."""


class SubpartitionOwner(Protocol):
    """The partition that its subpartitions notify of their readers."""

    def subpartition_consumed(self, index: int) -> None:
        """Record that a subpartition is consumed.

        Its view was released or, if it is reconsumable, a reader has read it to the end.
        """


class SubpartitionView(Protocol):
    """Reads a range of subpartitions, for one reader."""

    @property
    def failure(self) -> SluiceError | None:
        """Why nothing more will come; None while more may come."""

    @property
    def backlog(self) -> int:
        """Buffers and events that are still to come, as far as known, without priority ones."""

    @property
    def is_local(self) -> bool:
        """True if the bytes come from this TaskManager's own store."""

    @property
    def holds_segments(self) -> bool:
        """Whether segments of this TaskManager are in use until the reader takes more."""

    def is_available(self, credit: int) -> bool:
        """Return whether ``next_buffer`` has something for that much credit.

        Priority events may be taken with less than 1, see :mod:`sluice.protocol.credit`.
        """

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None if it is not there yet.

        Raises:
            SluiceError: The view's failure.
        """

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Take the next buffer, or a part of it, for one message with the data taken before.

        Args:
            most_bytes: Room in the message, at least 1, for which there is credit.

        Returns:
            None if the next buffer is not there yet, is not data, or cannot be taken in parts.
        """

    def release(self) -> None:
        """Stop reading. Idempotent; buffers already taken stay valid until released."""


class PipelinedView(SubpartitionView, Protocol):
    """A view of a partition that is being written, whose reader can influence its producer."""

    @property
    def has_priority_event(self) -> bool:
        """True if the next buffer is an event that overtakes data.

        The listener is called when such an event comes, even while data waits to be read.
        """

    def resume_consumption(self) -> None:
        """Resume after a blocking event."""


def is_pipelined(view: SubpartitionView | None) -> TypeGuard[PipelinedView]:
    """Return whether the reader of a view can influence its producer.

    ``isinstance`` with a protocol would look up every member of the protocol in each view.
    """
    return hasattr(view, "resume_consumption")
