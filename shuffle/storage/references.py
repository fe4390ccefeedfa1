"""Counted references to what the storage hands out: the last one to be released gives it back."""

from abc import ABC, abstractmethod


class Referenced(ABC):
    """Something that several hold. Starts with one reference, its owner's."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references = 1

    @property
    def references(self) -> int:
        """Holders; 0 once it has been given back."""
        return self._references

    def retain(self) -> None:
        """Add a reference.

        Raises:
            RuntimeError: It was given back already.
        """
        if self._references < 1:
            raise RuntimeError(f"{self!r} was retained after its last release")
        self._references += 1

    def release(self) -> None:
        """Drop a reference; the last one gives it back.

        Raises:
            RuntimeError: Released more often than retained.
        """
        if self._references < 1:
            raise RuntimeError(f"{self!r} was released more often than retained")
        self._references -= 1
        if self._references == 0:
            self._give_back()

    @abstractmethod
    def _give_back(self) -> None:
        """Undo what made it: nobody holds it any more."""
