"""Stored regions and map outputs: compact and immutable.

The classes are not frozen, because a start makes all instances, and making a frozen instance takes
three times as long.

A map output is one or more regions. A region has the bytes of consecutive subpartitions, in order
and without gaps. Its index is one array of cumulative offsets, with 4 bytes per subpartition if the
region is below 4 GiB. So the index of a 2000 × 2000 shuffle takes 16 MB. If most subpartitions are
empty, the index has only the others, and a second array with their numbers.

The bytes of a broadcast region are stored once and read for every subpartition.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, compress, count, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from ....protocol.schema import EVERY_SUBPARTITION
from ...names import ShuffleKey

if TYPE_CHECKING:
    from .tiers.tier import Extent


REGION_BYTES: Final = 320
"""Memory of a region and its extent, and its bytes in a row of a journal, without the index."""

_SHAPE: Final = Struct("<II")

_MIN_SAVED_ENTRIES: Final = 32
"""Entries that leaving out empty subpartitions must save: a second array costs 80 bytes."""


def region_index(lengths: Sequence[int]) -> "tuple[array[int], array[int] | None]":
    """Turn the lengths of subpartitions into the index of their region.

    Returns:
        The cumulative offsets; and the numbers of the subpartitions that have bytes if the offsets
        are only theirs, or None if the offsets are those of all subpartitions.

    Raises:
        ValueError: A length is negative, or the sum does not fit in 8 bytes.
    """
    if len(lengths) > _MIN_SAVED_ENTRIES:
        empty = lengths.count(0)
        if 2 * empty - len(lengths) > _MIN_SAVED_ENTRIES:
            numbers = array("I", compress(count(), lengths) if empty < len(lengths) else ())
            return cumulative_offsets([*filter(None, lengths)] if numbers else ()), numbers
    return cumulative_offsets(lengths), None


def cumulative_offsets(lengths: Sequence[int]) -> "array[int]":
    """Turn lengths into n + 1 cumulative offsets, of 4 bytes if they fit, else 8.

    Raises:
        ValueError: A length is negative, or the sum does not fit in 8 bytes.
    """
    if lengths and min(lengths) < 0:
        msg = f"a subpartition's length cannot be negative, got {min(lengths)}"
        raise ValueError(msg)
    try:
        return array("I", accumulate(lengths, initial=0))
    except OverflowError:
        pass
    try:
        return array("Q", accumulate(lengths, initial=0))
    except OverflowError:
        msg = "a region cannot be longer than 2**64 - 1 bytes"
        raise ValueError(msg) from None


@dataclass(slots=True, eq=False)
class Region:
    """The bytes of consecutive subpartitions of one map attempt.

    Args:
        extent: Extent with the bytes; None if the region is empty.
        first_subpartition: Number of the first subpartition; ``EVERY_SUBPARTITION`` in a broadcast
            region.
        offsets: n + 1 cumulative offsets for n subpartitions, relative to the extent; two offsets
            in a broadcast region.
        crc32c: Checksum over all bytes.
        numbers: Numbers of these n subpartitions, relative to the first; the others are empty.
            None: all subpartitions from the first one.
    """

    extent: "Extent | None"
    first_subpartition: int
    offsets: "array[int]"
    crc32c: int
    numbers: "array[int] | None" = None

    @property
    def length(self) -> int:
        """Bytes of the region."""
        return self.offsets[-1]

    @property
    def index_bytes(self) -> int:
        """Bytes of the index, in memory and in a row of a journal."""
        return array_bytes(self.offsets, self.numbers)

    def lengths(self) -> list[int]:
        """Return the lengths of the subpartitions, without empty ones at the end."""
        found = [end - start for start, end in pairwise(self.offsets)]
        numbers = self.numbers
        if numbers is None:
            return found
        lengths = [0] * (numbers[-1] + 1 if numbers else 0)
        for number, length in zip(numbers, found, strict=True):
            lengths[number] = length
        return lengths

    @property
    def is_broadcast(self) -> bool:
        """Whether every subpartition has these bytes."""
        return self.first_subpartition == EVERY_SUBPARTITION

    def slice(self, start_subpartition: int, end_subpartition: int) -> tuple[int, int]:
        """Find the bytes of a range of subpartitions: always one contiguous piece.

        Args:
            start_subpartition: First subpartition, numbered in the whole map output.
            end_subpartition: The one after the last. Parts outside this region count as empty.

        Returns:
            Offset in the extent and length, both in bytes; ``(0, 0)`` if the region has none of
            them. The range has these bytes :meth:`repeats` times.
        """
        offsets = self.offsets
        if self.is_broadcast:
            return (0, offsets[-1]) if start_subpartition < end_subpartition else (0, 0)
        start = max(start_subpartition - self.first_subpartition, 0)
        end = end_subpartition - self.first_subpartition
        numbers = self.numbers
        if numbers is None:
            end = min(end, len(offsets) - 1)
        else:
            start, end = bisect_left(numbers, start), bisect_left(numbers, end)
        if start >= end:
            return 0, 0
        offset = offsets[start]
        return offset, offsets[end] - offset

    def repeats(self, start_subpartition: int, end_subpartition: int) -> int:
        """Return how often the slice of a range is read.

        Returns:
            1; for a broadcast region the number of subpartitions in the range.
        """
        return max(end_subpartition - start_subpartition, 0) if self.is_broadcast else 1

    def release(self) -> None:
        """Release the owner's reference to the extent of an uncommitted region."""
        if self.extent is not None:
            self.extent.release()


def array_bytes(offsets: "array[int]", numbers: "array[int] | None") -> int:
    """Return the bytes of the arrays of a region's index."""
    size = len(offsets) * offsets.itemsize
    return size if numbers is None else size + len(numbers) * numbers.itemsize


def kept_bytes(offsets: "array[int]", numbers: "array[int] | None") -> int:
    """Return what an application is charged for a region: in memory, and in a row of a journal."""
    return REGION_BYTES + 2 * array_bytes(offsets, numbers)


def release_regions(regions: Iterable[Region]) -> None:
    """Release finished regions that were never committed."""
    for region in regions:
        region.release()


def arenas_of(regions: Iterable[Region]) -> set[bytes]:
    """Return the ids of the arenas that hold regions, without the remote tier."""
    return {
        extent.tier.tier_id
        for region in regions
        if (extent := region.extent) is not None and extent.tier.has_journal
    }


def journals_for(regions: Iterable[Region], journals: Sequence[bytes]) -> tuple[set[bytes], bool]:
    """Choose the journals that get a row.

    Args:
        regions: The regions of the row.
        journals: The arenas with a journal.

    Returns:
        Ids of arenas, and whether all of them must have the row. A row with only objects goes to
        every journal, so that it survives the loss of any directory, and is valid when one has it.
        A row without bytes goes to any one journal.
    """
    regions = list(regions)
    arenas = arenas_of(regions)
    if arenas:
        return arenas, True
    if any(region.extent is not None for region in regions):
        return set(journals) or {b""}, False
    return set(journals[-1:]) or {b""}, True


@dataclass(slots=True, eq=False)
class OpenOutput:
    """The secured regions of an uncommitted map output; they survive the process.

    Attributes:
        key: The shuffle.
        map_attempt_id: The attempt.
        num_subpartitions: Subpartitions of the shuffle.
        regions: Its first regions, in the order in which they were written.
        process: The random text of the process that began it; empty: unknown.
        secured: Numbers of the first region of each row; a row ends before the next one.
        taken: Whether the regions are being committed and no longer owned by this object.
    """

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    regions: list[Region]
    process: str = ""
    secured: list[int] = field(default_factory=list)
    taken: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes over all regions."""
        return sum(region.length for region in self.regions)

    def rows(self) -> Iterator[tuple[int, list[Region]]]:
        """Yield the first region's number and the regions of each row."""
        for first, end in pairwise([*self.secured, len(self.regions)]):
            yield first, self.regions[first:end]

    def take(self) -> list[Region]:
        """Return the regions that this object still owns, for their new owner."""
        if self.taken:
            return []
        self.taken = True
        return self.regions


@dataclass(slots=True, eq=False)
class MapOutput:
    """All regions of one map attempt, in order.

    Args:
        key: The shuffle.
        map_attempt_id: The attempt, unique in the application.
        num_subpartitions: Subpartitions of the shuffle.
        regions: In the order in which they were written.
        origin: The TaskManager that sent this copy; empty: its producer wrote it here.
        replicas: Number of TaskManagers that should keep it, including this one.
        is_moved: Whether it was found in the remote tier by its name, so no journal has it.
        is_synchronous: Whether its producer waits for the copies; a restart forgets it.
        to_remote: Whether it should have a copy in the remote tier.
    """

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    regions: tuple[Region, ...]
    origin: str = ""
    replicas: int = 1
    is_moved: bool = False
    is_synchronous: bool = False
    to_remote: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes over all regions."""
        return sum([region.offsets[-1] for region in self.regions])

    @property
    def has_copies(self) -> bool:
        """Whether it is a copy, or one of which copies are made."""
        return bool(self.origin) or self.replicas > 1 or self.to_remote

    def checksum(self) -> int:
        """Return a checksum over its bytes and the subpartitions that they belong to."""
        found = crc32c(_SHAPE.pack(self.num_subpartitions, len(self.regions)))
        for region in self.regions:
            found = crc32c(_SHAPE.pack(region.first_subpartition, region.crc32c), found)
            # A copy may not have the empty subpartitions at the end.
            found = crc32c(array("Q", region.lengths()).tobytes().rstrip(b"\0"), found)
        return found

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Retain its extents for a ``with`` block, in case it is released meanwhile."""
        extents = [region.extent for region in self.regions if region.extent is not None]
        for extent in extents:
            extent.retain()
        try:
            yield
        finally:
            for extent in extents:
                extent.release()
