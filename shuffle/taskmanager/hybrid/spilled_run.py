"""Neighboring spilled buffers of one subpartition, opened and freed together.

A run is one event, or data of any number of buffers in at most ``MAX_RUN_SLICES`` slices: adjacent
buffers of a region are one slice. A reader opens a run as a view of stored bytes, which serves the
memory tier from its mapping, and reads other tiers ahead into segments of the reader's connection.
The view releases the extents of the run when all of it is read, and an extent is freed after the
last run that has bytes in it. Runs are short so that space comes back while a long backlog is read.
"""

from typing import Final

from crc32c import crc32c

from ....protocol.schema import DATA
from ..bounds.accounts import Account, Resource
from ..serve.stored_partition_view import Slice
from ..serve.stored_slices import SLICE_BYTES
from ..store.stored_outputs import REGION_BYTES
from ..store.tiers.tier import Extent

MAX_RUN_SLICES: Final = 16
"""Maximum slices of a run: usually one for each region, more if buffers are not adjacent."""

SPILLED_SLICE_BYTES: Final = SLICE_BYTES + REGION_BYTES
"""Charged to the application for a slice: for its numbers, and for its region."""


class SpilledRun:
    """Spilled bytes in the order of the stream. It holds a reference to each extent.

    Args:
        data_type: Type of the bytes.
        account: The application that is charged for the slices.
    """

    __slots__ = ("_account", "buffers", "checksum", "data_type", "slices", "total_bytes")

    def __init__(self, data_type: int, account: Account) -> None:
        self.data_type: Final = data_type
        self.buffers = 0
        """Buffers that the bytes were in."""
        self.total_bytes = 0
        """Length of the bytes."""
        self.checksum = 0
        """CRC-32C of the bytes."""
        self.slices: list[Slice] = []
        self._account: Final = account

    def takes(self, data_type: int, extent: Extent, offset: int) -> bool:
        """Return whether the bytes of another buffer of that type can be added."""
        if not data_type == self.data_type == DATA:
            return False
        return len(self.slices) < MAX_RUN_SLICES or self._ends_at(extent, offset)

    def add(self, extent: Extent, offset: int, content: memoryview) -> None:
        """Add the bytes of a buffer, which follow the bytes before.

        Args:
            extent: Has the bytes.
            offset: Position in the extent.
            content: The bytes in memory.
        """
        length = len(content)
        self.buffers += 1
        self.total_bytes += length
        self.checksum = crc32c(content, self.checksum)
        slices = self.slices
        if self._ends_at(extent, offset):
            slices[-1] = slices[-1]._replace(length=slices[-1].length + length)
            return
        extent.retain()
        self._account.hold(Resource.METADATA_BYTES, SPILLED_SLICE_BYTES)
        slices.append(Slice(extent, offset, length, 1))

    def messages(self, message_bytes: int) -> int:
        """Return the number of messages that a reader of the run gets."""
        return -(-self.total_bytes // message_bytes) if self.data_type == DATA else 1

    def _ends_at(self, extent: Extent, offset: int) -> bool:
        """Return whether the bytes at that place continue those of the last slice."""
        if not self.slices:
            return False
        last = self.slices[-1]
        return last.extent is extent and last.offset + last.length == offset

    def uncharge(self) -> None:
        """Return the charge; the references belong to a view, which frees them."""
        self._account.give_back(Resource.METADATA_BYTES, SPILLED_SLICE_BYTES * len(self.slices))
        self.slices = []

    def release(self) -> None:
        """Free the bytes, unread."""
        for each in self.slices:
            each.extent.release()
        self.uncharge()
