"""Allocates extents in one address space, without any I/O.

Extents can have any length. With a fixed length, small map outputs would waste most of the space,
and a range of subpartitions would not be one contiguous read.

The space below the *frontier* was used before: its pages are resident in memory, or its blocks are
allocated on disk, so writing there is several times cheaper than touching fresh space. The space
above is cold. An allocation takes the best fitting hole below the frontier (the lowest of equal
holes). If no hole fits, it moves the frontier, starting in the hole that touches the frontier, if
any. So extents stay at the low end, and memory use follows the peak load.

Two sorted lists contain the holes, by start and by (length, start). A search is a bisection; an
insertion or deletion is one memmove, which is faster than any tree in Python up to some hundred
thousand holes.
"""

from bisect import bisect_left, insort


class ExtentAllocator:
    """Allocates by best fit and joins neighboring holes.

    Args:
        capacity_bytes: Limit for the end of allocated extents and for the used bytes. Reserved
            extents may lie beyond it. None: no limit.
        alignment: Extents start at a multiple of this and occupy a multiple of it, in bytes.

    Raises:
        ValueError: The alignment is below 1, or the capacity is negative.
    """

    __slots__ = (
        "_by_size",
        "_frontier",
        "_lengths",
        "_starts",
        "_used",
        "alignment",
        "capacity_bytes",
    )

    def __init__(self, capacity_bytes: int | None, alignment: int) -> None:
        if alignment < 1:
            msg = f"alignment must be at least 1, got {alignment}"
            raise ValueError(msg)
        if capacity_bytes is not None and capacity_bytes < 0:
            msg = f"capacity_bytes must not be negative, got {capacity_bytes}"
            raise ValueError(msg)
        self.alignment = alignment
        self.capacity_bytes = (
            None if capacity_bytes is None else capacity_bytes - capacity_bytes % alignment
        )
        self._frontier = 0
        self._used = 0
        self._starts: list[int] = []
        self._lengths: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    @property
    def used_bytes(self) -> int:
        """Bytes occupied by extents, each rounded up to the alignment."""
        return self._used

    @property
    def frontier_bytes(self) -> int:
        """End of the space that was used and not trimmed."""
        return self._frontier

    @property
    def tail_free_bytes(self) -> int:
        """Length of the hole that touches the frontier."""
        if self._starts:
            start = self._starts[-1]
            length = self._lengths[start]
            if start + length == self._frontier:
                return length
        return 0

    @property
    def largest_hole_bytes(self) -> int:
        """Longest extent that fits below the frontier."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def largest_free_bytes(self) -> int:
        """Longest extent that could be allocated now; 2**64 - 1 without a limit."""
        if self.capacity_bytes is None:
            return 2**64 - 1
        if self.is_beyond_capacity:
            within = (
                min(start + self._lengths[start], self.capacity_bytes) - start
                for start in self._starts
            )
            return max(0, min(max(within, default=0), self.capacity_bytes - self._used))
        return max(
            self.largest_hole_bytes, self.capacity_bytes - self._frontier + self.tail_free_bytes
        )

    @property
    def is_beyond_capacity(self) -> bool:
        """Whether the frontier is above the capacity, because of reserved extents."""
        return self.capacity_bytes is not None and self._frontier > self.capacity_bytes

    def holes_above_capacity(self) -> list[tuple[int, int]]:
        """Return start and length of each hole between the capacity and the frontier."""
        if self.capacity_bytes is None or not self.is_beyond_capacity:
            return []
        ends = [(start, start + self._lengths[start]) for start in self._starts]
        clipped = [(max(start, self.capacity_bytes), end) for start, end in ends]
        return [(start, end - start) for start, end in clipped if start < end]

    def rounded(self, length: int) -> int:
        """Return the bytes that an extent of this length occupies."""
        return -(-length // self.alignment) * self.alignment

    def growth_for(self, length: int) -> int:
        """Return the bytes by which an extent of this length would move the frontier."""
        size = self.rounded(length)
        if self._by_size and self._by_size[-1][0] >= size:
            return 0
        return size - self.tail_free_bytes

    def allocate(self, length: int) -> int | None:
        """Allocate an extent.

        Args:
            length: Bytes wanted, at least 1.

        Returns:
            Its offset, or None if there is no room.

        Raises:
            ValueError: The length is below 1.
        """
        if length < 1:
            msg = f"an extent has at least 1 byte, got {length}"
            raise ValueError(msg)
        size = self.rounded(length)
        if self.is_beyond_capacity:
            return self._allocate_below_capacity(size)
        index = bisect_left(self._by_size, (size, -1))
        if index < len(self._by_size):
            hole_length, start = self._by_size[index]
            self._fill_hole(start, hole_length, size)
            return start
        tail = self.tail_free_bytes
        start = self._frontier - tail
        if self.capacity_bytes is not None and start + size > self.capacity_bytes:
            return None
        if tail:
            self._remove_hole(start, tail)
        self._frontier = start + size
        self._used += size
        return start

    def free(self, offset: int, length: int) -> None:
        """Free an extent.

        Args:
            offset: As returned by :meth:`allocate` or passed to :meth:`reserve`.
            length: As passed to either.

        Raises:
            ValueError: The range is not wholly in use, e.g. it was freed before.
        """
        size = self.rounded(length)
        end = offset + size
        position = bisect_left(self._starts, offset)
        before = self._starts[position - 1] if position else None
        after = self._starts[position] if position < len(self._starts) else None
        if (
            size < 1
            or offset < 0
            or offset % self.alignment
            or end > self._frontier
            or (before is not None and before + self._lengths[before] > offset)
            or (after is not None and after < end)
        ):
            msg = f"extent [{offset}, {end}) is not in use"
            raise ValueError(msg)
        self._used -= size
        if before is not None and before + self._lengths[before] == offset:
            length_before = self._lengths[before]
            self._remove_hole(before, length_before)
            offset, size = before, size + length_before
        if after is not None and after == end:
            length_after = self._lengths[after]
            self._remove_hole(after, length_after)
            size += length_after
        self._add_hole(offset, size)

    def reserve(self, offset: int, length: int) -> None:
        """Occupy a given range: an extent of an earlier process.

        It may lie beyond the capacity, which may have been larger then.

        Args:
            offset: Start, a multiple of the alignment.
            length: Bytes, at least 1.

        Raises:
            ValueError: The range is misaligned, or overlaps one in use.
        """
        size = self.rounded(length)
        end = offset + size
        if length < 1 or offset < 0 or offset % self.alignment:
            msg = f"extent [{offset}, {end}) is empty or not aligned to {self.alignment}"
            raise ValueError(msg)
        if offset >= self._frontier:
            tail = self.tail_free_bytes
            gap_start = self._frontier - tail
            if gap_start < offset:
                if tail:
                    self._remove_hole(gap_start, tail)
                self._add_hole(gap_start, offset - gap_start)
            elif tail:
                self._remove_hole(gap_start, tail)
            self._frontier = end
            self._used += size
            return
        position = bisect_left(self._starts, offset + 1) - 1
        start = self._starts[position] if position >= 0 else -1
        hole_end = start + self._lengths[start] if position >= 0 else -1
        # The hole at the frontier may be extended; any other must contain the whole range.
        if position < 0 or offset >= hole_end or (end > hole_end and hole_end < self._frontier):
            msg = f"extent [{offset}, {end}) overlaps one in use"
            raise ValueError(msg)
        self._remove_hole(start, hole_end - start)
        if start < offset:
            self._add_hole(start, offset - start)
        if end < hole_end:
            self._add_hole(end, hole_end - end)
        self._frontier = max(self._frontier, end)
        self._used += size

    def trim_to(self, frontier: int) -> None:
        """Lower the frontier.

        Args:
            frontier: The new frontier, a multiple of the alignment, within the hole at the end.

        Raises:
            ValueError: The new frontier is not within that hole.
        """
        tail = self.tail_free_bytes
        start = self._frontier - tail
        if not start <= frontier <= self._frontier or frontier % self.alignment:
            msg = f"the frontier cannot move to {frontier}: extents end at {start}"
            raise ValueError(msg)
        if tail:
            self._remove_hole(start, tail)
            if start < frontier:
                self._add_hole(start, frontier - start)
            self._frontier = frontier

    def _allocate_below_capacity(self, size: int) -> int | None:
        """Allocate below the capacity while reserved extents lie beyond it."""
        capacity_bytes = self.capacity_bytes or 0
        if self._used + size > capacity_bytes:
            return None
        for index in range(bisect_left(self._by_size, (size, -1)), len(self._by_size)):
            hole_length, start = self._by_size[index]
            if start + size <= capacity_bytes:
                self._fill_hole(start, hole_length, size)
                return start
        return None

    def _fill_hole(self, start: int, hole_length: int, size: int) -> None:
        """Use the start of a hole."""
        self._remove_hole(start, hole_length)
        if hole_length > size:
            self._add_hole(start + size, hole_length - size)
        self._used += size

    def _add_hole(self, start: int, length: int) -> None:
        insort(self._starts, start)
        insort(self._by_size, (length, start))
        self._lengths[start] = length

    def _remove_hole(self, start: int, length: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._by_size[bisect_left(self._by_size, (length, start))]
        del self._lengths[start]
