"""The credit of a producer of a pipelined partition: segments that are ready for its next buffers.

One credit is one segment of the partition's pool. Up to a window of segments are ready; when the
pool is empty, one listener waits for the next segment. So a partition whose buffers all wait for
their readers grants nothing, and its producer stops: back pressure reaches the source. (A hybrid
partition is notified, and spills.) A priority event takes no segment, and its credit is granted
again when its readers have taken it.
"""

from collections.abc import Callable
from typing import Final

from ....protocol.credit import MAX_OVERDRAFT_EVENTS
from ....protocol.errors import CreditExceeded
from ...memory import ListenerHandle, LocalBufferPool, MemorySegment

CREDIT_WINDOW_BUFFERS: Final = 16
"""Most buffers granted and not arrived: 512 KiB at the default size, more than a Unix socket
holds, and little enough that an idle producer keeps no memory from the others."""


class PipelinedCredit:
    """Draws segments and grants several at a time, once as many are ungranted as are outstanding.

    Args:
        pool: The partition's pool.
        grant: Sends credit to the producer.
        window_buffers: Maximum number of segments that are ready.
        memory_short: Called after each use while the pool has no segment for the window.
    """

    def __init__(
        self,
        pool: LocalBufferPool,
        grant: Callable[[int], None],
        window_buffers: int = CREDIT_WINDOW_BUFFERS,
        memory_short: Callable[[], None] | None = None,
    ) -> None:
        self.outstanding = 0
        """Granted and not used by the producer; below 0 after priority events on account."""
        self._unread_events = 0  # priority events, whose credit has no segment
        self._pool = pool
        self._grant = grant
        self._window_buffers = window_buffers
        self._memory_short = memory_short
        self._ready: list[MemorySegment] = []
        self._waiting: ListenerHandle | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """Segments that are ready."""
        return len(self._ready)

    def take(self) -> MemorySegment | None:
        """Take the segment of one credit; None if no credit is outstanding."""
        if self.outstanding <= 0:
            return None
        self.outstanding -= 1
        return self._ready.pop()

    def overdraw(self) -> None:
        """Use up a credit for a priority event, or send it on account.

        Raises:
            CreditExceeded: MAX_OVERDRAFT_EVENTS unread ones were sent on account already.
        """
        if self.outstanding <= -MAX_OVERDRAFT_EVENTS:
            raise CreditExceeded(
                "Priority event without credit",
                value=1 - self.outstanding,
                limit=MAX_OVERDRAFT_EVENTS,
            )
        self.outstanding -= 1
        self._unread_events += 1

    def event_taken(self) -> None:
        """Grant the credit of a priority event again: its readers have taken it."""
        self._unread_events -= 1
        self.fill()

    def put_back(self, segment: MemorySegment) -> None:
        """Return a segment whose bytes went into the buffer before; call :meth:`fill` next."""
        self._ready.append(segment)

    def fill(self) -> None:
        """Make segments ready up to the window, and grant them; call it after each use."""
        if self._closed:
            return
        ready = self._ready
        while len(ready) < self._window_buffers:
            segment = self._pool.request_segment_nowait()
            if segment is None:
                self._wait()
                break
            ready.append(segment)
        ungranted = len(ready) - self._unread_events - self.outstanding
        if ungranted and ungranted >= self.outstanding:
            self.outstanding += ungranted
            self._grant(ungranted)

    def close(self) -> None:
        """Stop granting and free the segments. Idempotent."""
        self._closed = True
        self._grant = _nobody
        self.outstanding = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        ready, self._ready = self._ready, []
        for segment in ready:
            self._pool.recycle(segment)

    def _wait(self) -> None:
        if self._waiting is None:
            handle = self._pool.add_listener(self._segment_came)
            if handle.is_waiting:  # otherwise it was called already, and waits again if it must
                self._waiting = handle
        if self._memory_short is not None and self._waiting is not None:
            self._memory_short()

    def _segment_came(self, segment: MemorySegment | None) -> bool:
        self._waiting = None
        if segment is None or self._closed:
            return False
        self._ready.append(segment)
        self.fill()
        return True


def _nobody(credit: int) -> None:
    """Ignore: the credit is closed."""
