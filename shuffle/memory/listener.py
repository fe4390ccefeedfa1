"""Waiting for a segment: a place in the queue of a local pool."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sluice.shuffle.memory.segment import MemorySegment

if TYPE_CHECKING:
    from collections import OrderedDict

SegmentListener: TypeAlias = Callable[[MemorySegment | None], bool]
"""Is handed a segment, or ``None`` when the pool is destroyed.

Returns whether it keeps the segment; a declined one goes to the next listener. A listener that
raises has declined. It runs inside the call that made the segment available, so it must be short.
"""


class ListenerHandle:
    """A listener's place in the queue: one shot, called at most once.

    Attributes:
        callback: For the pool, which takes it away before the call; ``None`` from then on, and
            after :meth:`cancel`.
    """

    __slots__ = ("_queue", "callback")

    def __init__(
        self, queue: "OrderedDict[ListenerHandle, None]", callback: SegmentListener
    ) -> None:
        self._queue = queue
        self.callback: SegmentListener | None = callback
        queue[self] = None

    @property
    def is_waiting(self) -> bool:
        """Whether the listener is still to be called."""
        return self.callback is not None

    def cancel(self) -> None:
        """Leave the queue; the listener will not be called. Idempotent, also after the call."""
        self.callback = None
        self._queue.pop(self, None)
