"""Where a blocking partition's regions go: the store of a TaskManager, or the way to it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class OutgoingRegion(NamedTuple):
    """The bytes of all subpartitions, in their order, and what is needed to store them.

    Attributes:
        number: From 0, without gaps.
        lengths: Bytes by subpartition; a single number if ``is_broadcast``.
        crc32c: Over all parts.
        parts: The bytes, in order.
        is_broadcast: The bytes are those of *every* subpartition, and are stored once.
    """

    number: int
    lengths: Sequence[int]
    crc32c: int
    parts: Sequence[bytes | memoryview]
    is_broadcast: bool


class RegionSink(Protocol):
    """Stores the regions of one partition, one after the other."""

    @property
    def takes_broadcast(self) -> bool:
        """Whether it can store a region once for all subpartitions."""

    async def write_region(self, region: OutgoingRegion) -> None:
        """Store a region.

        The memory of the parts is the writer's again when this returns *or raises*, cancellation
        included: an implementation whose transport still has them must wait for it first.

        Raises:
            SluiceError: It could not be stored.
        """

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Make the partition complete, so that it can be read; durable when this returns.

        Args:
            total_bytes: Sum over the regions, each counted as it was given.
            regions: How many there were.

        Raises:
            SluiceError: The partition is not complete and never will be.
        """

    def abort(self) -> None:
        """Give up what was stored; a ``write_region`` under way is to end soon. Idempotent."""
