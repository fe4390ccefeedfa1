"""Small extents share pages: a page is divided into slots of one size.

An extent takes at least a slot of 64 bytes instead of a page. So many tiny map outputs take little
more space in a tier than their bytes::

    page, 4096 bytes   │ slot │ slot │ free │ slot │ … │      slots of 64, 128, … or 2048 bytes

All slots of a page have the same size until the page is free again.
"""

from typing import Final

from .extent_allocator import ExtentAllocator

PAGE_BYTES: Final = 4096
"""Size of a page; larger extents are whole pages."""

MIN_SLOT_BYTES: Final = 64
MAX_SLOT_BYTES: Final = PAGE_BYTES // 2


def occupied_bytes(length: int) -> int:
    """Return the bytes that an extent takes: a slot, or whole pages."""
    if length > MAX_SLOT_BYTES:
        return -(-length // PAGE_BYTES) * PAGE_BYTES
    if length > MIN_SLOT_BYTES:
        return 1 << (length - 1).bit_length()
    return MIN_SLOT_BYTES if length > 0 else 0


class _Page:
    """A page that is divided into slots; ``used`` has a bit for each slot in use."""

    __slots__ = ("_all", "slot_bytes", "used")

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.used = 0
        self._all = (1 << PAGE_BYTES // slot_bytes) - 1

    @property
    def is_full(self) -> bool:
        return self.used == self._all

    def free_slot(self) -> int:
        """Return the number of the first free slot."""
        return (~self.used & (self.used + 1)).bit_length() - 1


class SlotAllocator(ExtentAllocator):
    """An allocator of pages that divides some of them into slots.

    Its numbers of used and free bytes count whole pages.

    Args:
        capacity_bytes: As in :class:`ExtentAllocator`.
    """

    __slots__ = ("_open", "_pages")

    def __init__(self, capacity_bytes: int | None) -> None:
        super().__init__(capacity_bytes, PAGE_BYTES)
        self._pages: dict[int, _Page] = {}  # pages with slots, by offset
        self._open: dict[int, dict[int, _Page]] = {}  # pages with a free slot, by slot size

    def growth_for(self, length: int) -> int:
        """Return the bytes by which an extent of this length would move the frontier."""
        if 0 < length <= MAX_SLOT_BYTES and self._open.get(occupied_bytes(length)):
            return 0
        return super().growth_for(length)

    def allocate(self, length: int) -> int | None:
        """Allocate an extent: a slot or whole pages; see :meth:`ExtentAllocator.allocate`."""
        if not 0 < length <= MAX_SLOT_BYTES:
            return super().allocate(length)
        slot_bytes = occupied_bytes(length)
        found = self._page_with_slot(slot_bytes)
        if found is not None:
            offset, page = found
        else:
            start = super().allocate(PAGE_BYTES)
            if start is None:
                return None
            offset, page = start, self._add_page(start, slot_bytes)
        slot = page.free_slot()
        self._occupy(offset, page, slot)
        return offset + slot * slot_bytes

    def free(self, offset: int, length: int) -> None:
        """Free an extent; freeing the last slot of a page frees the page.

        Raises:
            ValueError: The range is not wholly in use, e.g. it was freed before.
        """
        if not 0 < length <= MAX_SLOT_BYTES:
            super().free(offset, length)
            return
        start = offset - offset % PAGE_BYTES
        page = self._pages.get(start)
        slot, misplaced = divmod(offset - start, occupied_bytes(length))
        if (
            page is None
            or page.slot_bytes != occupied_bytes(length)
            or misplaced
            or not page.used >> slot & 1
        ):
            msg = f"extent [{offset}, {offset + length}) is not in use"
            raise ValueError(msg)
        page.used &= ~(1 << slot)
        if page.used:
            self._open.setdefault(page.slot_bytes, {})[start] = page
        else:
            self._open.get(page.slot_bytes, {}).pop(start, None)
            del self._pages[start]
            super().free(start, PAGE_BYTES)

    def reserve(self, offset: int, length: int) -> None:
        """Occupy a given range: an extent of an earlier process.

        Raises:
            ValueError: The range is misaligned, or overlaps one in use.
        """
        if not 0 < length <= MAX_SLOT_BYTES:
            super().reserve(offset, length)
            return
        slot_bytes = occupied_bytes(length)
        if offset < 0 or offset % slot_bytes:
            msg = f"extent [{offset}, {offset + length}) is not aligned to {slot_bytes}"
            raise ValueError(msg)
        start = offset - offset % PAGE_BYTES
        slot = (offset - start) // slot_bytes
        page = self._pages.get(start)
        if page is None:
            super().reserve(start, PAGE_BYTES)
            page = self._add_page(start, slot_bytes)
        elif page.slot_bytes != slot_bytes or page.used >> slot & 1:
            msg = f"extent [{offset}, {offset + length}) overlaps one in use"
            raise ValueError(msg)
        self._occupy(start, page, slot)

    def _page_with_slot(self, slot_bytes: int) -> tuple[int, _Page] | None:
        """Return offset and page of a free slot, below the capacity."""
        pages = self._open.get(slot_bytes)
        if not pages:
            return None
        if not self.is_beyond_capacity:
            return next(iter(pages.items()))
        most = (self.capacity_bytes or 0) - PAGE_BYTES
        return next(((offset, page) for offset, page in pages.items() if offset <= most), None)

    def _add_page(self, start: int, slot_bytes: int) -> _Page:
        page = self._pages[start] = _Page(slot_bytes)
        self._open.setdefault(slot_bytes, {})[start] = page
        return page

    def _occupy(self, start: int, page: _Page, slot: int) -> None:
        page.used |= 1 << slot
        if page.is_full:
            del self._open[page.slot_bytes][start]
