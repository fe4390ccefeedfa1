"""Waiting for a segment: a place in the queue of a local pool."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from shuffle.memory.segment import MemorySegment

if TYPE_CHECKING:
    from collections import OrderedDict

SegmentListener: TypeAlias = Callable[[MemorySegment | None], bool]
"""Is handed a segment, or ``None`` when the pool is destroyed.

Returns whether it keeps the segment; a declined one goes to the next listener. A listener that
raises has declined. It runs inside the call that made the segment available, so it must be short.
"""


class ListenerHandle:
    """A listener's place in the queue: one shot, called at most once."""

    __slots__ = ("_callback", "_queue")

    def __init__(
        self, queue: "OrderedDict[ListenerHandle, None]", callback: SegmentListener
    ) -> None:
        self._queue = queue
        self._callback: SegmentListener | None = callback
        queue[self] = None

    @property
    def is_waiting(self) -> bool:
        """Whether the listener is still to be called."""
        return self._callback is not None

    def cancel(self) -> None:
        """Leave the queue; the listener will not be called. Idempotent, also after the call."""
        self._callback = None
        self._queue.pop(self, None)

    def take_callback(self) -> SegmentListener | None:
        """For the pool: the callback, this once; ``None`` when cancelled or called before."""
        callback = self._callback
        self._callback = None
        return callback
