"""References to lent memory, counted: the last one to be recycled sends it home."""

from collections.abc import Callable
from typing import Generic, Self, TypeVar

from shuffle.memory.errors import BufferAlreadyRecycled

Lent = TypeVar("Lent")


class ReferenceCounted(Generic[Lent]):
    """Memory that several share.

    There is one of these for each buffer that comes or goes. So that it costs no call more, there
    is no constructor: a subclass sets the attributes in its own.

    Attributes:
        recycler: Called with what is lent when the count reaches 0.
    """

    __slots__ = ("_lent", "_references", "recycler")

    _lent: Lent
    _references: int  # starts at 1
    recycler: Callable[[Lent], None]

    @property
    def reference_count(self) -> int:
        """References that are still to be recycled."""
        return self._references

    @property
    def is_recycled(self) -> bool:
        """Whether the last reference is gone."""
        return self._references < 1

    def retain(self) -> Self:
        """Add a reference, to be recycled by whoever gets this very object.

        Raises:
            BufferAlreadyRecycled: The last reference is gone: the memory may be another's already.
        """
        if self._references < 1:
            raise BufferAlreadyRecycled("retain()")
        self._references += 1
        return self

    def recycle(self) -> None:
        """Drop one reference; with the last one the memory goes to the recycler.

        Raises:
            BufferAlreadyRecycled: More recycles than references.
        """
        references = self._references - 1
        if references < 0:
            raise BufferAlreadyRecycled("recycle()")
        self._references = references
        if references == 0:
            self.recycler(self._lent)
