"""Advises the kernel which bytes of the disks a view reads next.

A view has one read in flight, whose segments wait for their reader. A disk is faster with more. So
once a view has missed the page cache, the kernel reads the next bytes into it meanwhile, in the
order in which they lie on the disk.

Behind the bytes of a reducer in an extent lie those of the next reducers, which soon read them. If
they are small, the kernel reads whole cells of an extent, and each cell before a reader has reached
it: few large requests instead of many small ones.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....transport.fair_queue import Flow
from ....transport.loop import start_task
from ..store.extent_reader import AHEAD_BYTES, ExtentRange
from ..store.shuffle_store import ShuffleStore
from ..store.tiers.tier import Extent
from .stored_partition_view import Slice

if TYPE_CHECKING:
    import asyncio

MAX_RANGES: Final = 256
"""Maximum ranges of one piece of advice: each is a system call."""

CELL_BYTES: Final = 256 * 1024
"""Bytes of an extent that the kernel reads at once, with those of the next reducers."""

MAX_CELL_SLICES: Final = 256
"""Maximum slices of a view that reads cells: these have to stay in the page cache until the next
reducers come."""


class LookAhead:
    """The position up to which the kernel is advised of what a view reads.

    Args:
        store: The store of the slices.
        slices: What the view reads, in order.
        flow: The flow of its reads.
        max_cell_slices: A view of more slices reads no cells.
    """

    def __init__(
        self,
        store: ShuffleStore,
        slices: Sequence[Slice],
        flow: Flow,
        max_cell_slices: int = MAX_CELL_SLICES,
    ) -> None:
        self._store = store
        self._slices = slices
        self._flow = flow
        self._index = 0
        self._used = 0  # advised bytes of the slice at the index
        self._advised_bytes = 0  # of the view, in the order of its reads
        self._reads_cells = len(slices) <= max_cell_slices
        self._task: asyncio.Task[None] | None = None
        self._ranges: list[ExtentRange] = []  # of the task

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
            self._ranges = ranges
            self._task = start_task(self._store.will_need(ranges, self._flow))

    def stop(self) -> None:
        """Withdraw advice that has not been given: the view is released."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            for extent, offset, _ in self._ranges:
                extent.cells_ahead &= ~(1 << offset // CELL_BYTES)

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
                start = offset + self._used
                if self._reads_cells and length < CELL_BYTES // 2:
                    _add_cells(ranges, extent, start, start + count)
                else:
                    ranges.append(ExtentRange(extent, start, count))
            self._used += count
            self._advised_bytes += count
            if self._used == length:
                self._advised_bytes += length * (times - 1)
                self._used = 0
                self._index += 1
        return ranges


def _add_cells(ranges: list[ExtentRange], extent: Extent, start: int, end: int) -> None:
    """Add the cells with bytes of a range that nobody has added; the next one from the middle on.

    The view that reads the end of a cell clears its mark: later views may read it once more.
    """
    marks = extent.cells_ahead
    first, last = start // CELL_BYTES, (end - 1) // CELL_BYTES
    last_cell = (extent.length - 1) // CELL_BYTES
    if end - last * CELL_BYTES > CELL_BYTES // 2:
        last += 1
    for cell in range(first, min(last, last_cell) + 1):
        if not marks >> cell & 1:
            begin = max(start, cell * CELL_BYTES)
            length = min((cell + 1) * CELL_BYTES, extent.length) - begin
            ranges.append(ExtentRange(extent, begin, length))
            marks |= 1 << cell
    passed = last_cell + 1 if end == extent.length else end // CELL_BYTES
    extent.cells_ahead = marks & ~((1 << passed) - (1 << first))
