"""The consuming end of a channel whose partition is on this very TaskManager.

It hands the partition's own buffers on: nothing is copied and no socket is touched. Until the
partition is found the channel is there already, with nothing to read.
"""

from protocol.errors import SluiceError
from protocol.messages import DATA
from shuffle.partition.view import DataListener, OutgoingBuffer, SubpartitionView


class LocalInputChannel:
    """A channel to a partition of this TaskManager.

    Args:
        listener: Told when a channel that had nothing has something, or has failed.
    """

    is_local = True

    def __init__(self, listener: DataListener) -> None:
        self.bytes_in = 0
        self.buffers_in = 0
        self._listener = listener
        self._failure: SluiceError | None = None
        self._view: SubpartitionView | None = None
        self._released = False

    def attach(self, view: SubpartitionView) -> None:
        """Give the channel its view; a channel released meanwhile gives it back at once."""
        if self._released:
            view.release()
            return
        self._view = view
        self._listener()

    def data_available(self) -> None:
        """The view has something now, or has failed (the view's listener)."""
        self._listener()

    def fail(self, error: SluiceError) -> None:
        """End the channel with an error."""
        if self._failure is None and not self._released:
            self._failure = error
            self._listener()

    @property
    def failure(self) -> SluiceError | None:
        """Why nothing more will come, if so."""
        if self._failure is None and self._view is not None:
            return self._view.failure
        return self._failure

    @property
    def backlog(self) -> int:
        """Data buffers that are still to come."""
        return 0 if self._view is None else self._view.backlog

    def is_available(self, credit: int) -> bool:
        """True if the view can make use of a turn."""
        return self._view is not None and self._view.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None if there is none yet."""
        if self._failure is not None:
            raise self._failure
        if self._view is None:
            return None
        buffer = self._view.next_buffer(credit)
        if buffer is not None and buffer.data_type == DATA:
            self.bytes_in += len(buffer.payload)
            self.buffers_in += 1
        return buffer

    def release(self) -> None:
        """Give the view up. Idempotent."""
        self._released = True
        view, self._view = self._view, None
        if view is not None:
            view.release()
