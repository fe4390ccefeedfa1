"""Neighboring spilled buffers of one subpartition, opened and freed together.

A run is data of any number of buffers, or one event. A reader opens a run as a view of stored
bytes, which serves the memory tier from its mapping, reads other tiers ahead into segments of the
reader's connection, and frees the extents at its end. So runs are short: space comes back while a
long backlog is read.
"""

from typing import Final

from ....protocol.schema import DATA
from ..bounds.accounts import Account, Resource
from ..serve.stored_partition_view import Slice
from ..serve.stored_slices import SLICE_BYTES
from ..store.stored_outputs import REGION_BYTES
from ..store.tiers.tier import Extent

MAX_RUN_SLICES: Final = 16
"""Most slices of a run; each is in another region."""

SPILLED_SLICE_BYTES: Final = SLICE_BYTES + REGION_BYTES
"""Charged to the application for a slice: for its numbers, and for its region."""


class SpilledRun:
    """Spilled bytes in the order of the stream. It holds a reference to each extent.

    Args:
        data_type: Type of the bytes.
        account: The application that is charged for the slices.
    """

    __slots__ = ("_account", "buffers", "data_type", "slices")

    def __init__(self, data_type: int, account: Account) -> None:
        self.data_type: Final = data_type
        self.buffers = 0
        """Buffers that the bytes were in."""
        self.slices: list[Slice] = []
        self._account: Final = account

    def takes(self, data_type: int) -> bool:
        """Return whether another buffer of that type can be added."""
        return data_type == self.data_type == DATA and len(self.slices) < MAX_RUN_SLICES

    def add(self, extent: Extent, offset: int, length: int) -> None:
        """Add the bytes of a buffer, which follow the bytes before."""
        self.buffers += 1
        slices = self.slices
        if slices:
            last = slices[-1]
            if last.extent is extent and last.offset + last.length == offset:
                slices[-1] = last._replace(length=last.length + length)
                return
        extent.retain()
        self._account.hold(Resource.METADATA_BYTES, SPILLED_SLICE_BYTES)
        slices.append(Slice(extent, offset, length, 1))

    def uncharge(self) -> None:
        """Return the charge; the references belong to a view, which frees them."""
        self._account.give_back(Resource.METADATA_BYTES, SPILLED_SLICE_BYTES * len(self.slices))
        self.slices = []

    def release(self) -> None:
        """Free the bytes, unread."""
        for each in self.slices:
            each.extent.release()
        self.uncharge()
