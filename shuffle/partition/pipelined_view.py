"""The one reader's view of a pipelined subpartition."""

from typing import TYPE_CHECKING, Final

from shuffle.partition.view import DataListener, OutgoingBuffer

if TYPE_CHECKING:
    from protocol.errors import SluiceError
    from shuffle.partition.pipelined_subpartition import PipelinedSubpartition


class PipelinedSubpartitionView:
    """The reader's side, a :class:`shuffle.partition.view.PipelinedView`.

    Attributes:
        failure: Why nothing more will come, if so; set by the subpartition.
        listener: Called when there is something where there was nothing.
    """

    __slots__ = ("_released", "_subpartition", "failure", "listener")

    is_local = True

    def __init__(self, subpartition: "PipelinedSubpartition", listener: DataListener) -> None:
        self.failure: SluiceError | None = None
        self.listener: Final = listener
        self._subpartition = subpartition
        self._released = False

    @property
    def backlog(self) -> int:
        """Data buffers that wait to be taken."""
        return self._subpartition.backlog

    @property
    def has_priority_event(self) -> bool:
        """True if the next one is an event that overtakes data."""
        return self._subpartition.has_priority_event

    def is_available(self, credit: int) -> bool:
        """True if there is something for that much credit; events need none."""
        return self._subpartition.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer, which is the producer's own; None if there is none yet.

        Raises:
            SluiceError: The partition failed or was released by its producer.
        """
        if self.failure is not None:
            # Without the frames of the last time, which would pile up and keep buffers alive.
            raise self.failure.with_traceback(None)
        return self._subpartition.poll(credit)

    def resume_consumption(self) -> None:
        """Go on after a blocking event.

        Raises:
            InvalidRequest: The reader has met none.
        """
        if not self._released:
            self._subpartition.resume()

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask for buffers of at most this size from now on.

        Raises:
            InvalidRequest: Less than 1 byte.
        """
        if not self._released:
            self._subpartition.announce_buffer_size(size_bytes)

    def release(self) -> None:
        """Give up reading, whether at the end or before; buffers taken stay valid. Idempotent."""
        if not self._released:
            self._released = True
            self._subpartition.view_released()
