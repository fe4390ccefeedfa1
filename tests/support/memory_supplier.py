"""A bounded supply of receive memory for tests, in the shape of the daemon's segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.protocol.limits import RECEIVE_TAIL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIBBLE = 0xEE
"""Memory that was given back is overwritten with this at once, so that late users are seen."""


class MemorySupplier:
    """Hands out segments and takes them back; conserves them.

    Args:
        segments: How many there are.
        segment_size_bytes: Size of each, not counting the receive tail.
        on_free: Called whenever a segment comes back.
    """

    def __init__(
        self,
        segments: int,
        segment_size_bytes: int,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self.segment_size_bytes = segment_size_bytes
        self.segments = segments
        self.on_free = on_free
        self.refused = 0
        """How often nothing was left."""
        length = segment_size_bytes + RECEIVE_TAIL_BYTES
        self._free = [memoryview(bytearray(length)) for _ in range(segments)]
        self._lent: set[int] = set()

    @property
    def lent(self) -> int:
        """Segments that are out."""
        return len(self._lent)

    def take(self) -> memoryview | None:
        """Return the segment that came back last (early reuse shows soonest), or None."""
        if not self._free:
            self.refused += 1
            return None
        memory = self._free.pop()
        self._lent.add(id(memory))
        return memory

    def give(self, memory: memoryview) -> None:
        """Take a segment back.

        Raises:
            RuntimeError: It was not out: released twice.
        """
        if id(memory) not in self._lent:
            raise RuntimeError("segment given back twice")
        self._lent.remove(id(memory))
        memory[:] = bytes((SCRIBBLE,)) * len(memory)
        self._free.append(memory)
        self.on_free()
