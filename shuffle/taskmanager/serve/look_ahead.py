"""Advises the kernel which bytes of the disks a view reads next.

A view has one read in flight, whose segments wait for their reader. A disk is faster with more. So
once a view has missed the page cache, the kernel reads the next bytes into it meanwhile, in the
order in which they lie on the disk.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....transport.fair_queue import Flow
from ....transport.loop import start_task
from ..store.extent_reader import AHEAD_BYTES, ExtentRange
from ..store.shuffle_store import ShuffleStore
from .stored_partition_view import Slice

if TYPE_CHECKING:
    import asyncio

MAX_RANGES: Final = 256
"""Maximum ranges of one piece of advice: each is a system call."""


class LookAhead:
    """The position up to which the kernel is advised of what a view reads.

    Args:
        store: The store of the slices.
        slices: What the view reads, in order.
        flow: The flow of its reads.
    """

    def __init__(self, store: ShuffleStore, slices: Sequence[Slice], flow: Flow) -> None:
        self._store = store
        self._slices = slices
        self._flow = flow
        self._index = 0
        self._used = 0  # advised bytes of the slice at the index
        self._advised_bytes = 0  # of the view, in the order of its reads
        self._task: asyncio.Task[None] | None = None

    def advance(self, index: int, used: int, read_bytes: int) -> None:
        """Advise the kernel of more, if less than half of AHEAD_BYTES is advised and not read.

        Args:
            index: Slice that the view reads next.
            used: Bytes of it that the view has read.
            read_bytes: Bytes that the view has read in all, or is reading.
        """
        if self._advised_bytes - read_bytes > AHEAD_BYTES // 2:
            return
        if self._task is not None and not self._task.done():
            return
        if self._advised_bytes < read_bytes:
            self._index, self._used, self._advised_bytes = index, used, read_bytes
        ranges = self._next_ranges(read_bytes + AHEAD_BYTES)
        if ranges:
            self._task = start_task(self._store.will_need(ranges, self._flow))

    def stop(self) -> None:
        """Withdraw advice that has not been given: the view is released."""
        if self._task is not None:
            self._task.cancel()

    def _next_ranges(self, end_bytes: int) -> list[ExtentRange]:
        ranges: list[ExtentRange] = []
        while (
            self._index < len(self._slices)
            and self._advised_bytes < end_bytes
            and len(ranges) < MAX_RANGES
        ):
            extent, offset, length, times = self._slices[self._index]
            count = min(length - self._used, end_bytes - self._advised_bytes)
            if extent.tier.reads_ahead:
                ranges.append(ExtentRange(extent, offset + self._used, count))
            self._used += count
            self._advised_bytes += count
            if self._used == length:
                self._advised_bytes += length * (times - 1)
                self._used = 0
                self._index += 1
        return ranges
