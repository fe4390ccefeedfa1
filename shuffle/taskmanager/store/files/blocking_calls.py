"""Makers of blocking calls: this thread, or another one that is given up if a disk hangs."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")


class MakesCalls(Protocol):
    """Makes blocking calls, each of which accesses one directory."""

    def __call__(
        self, directory: Path, call: Callable[[], T], dispose: Callable[[T], None] | None = None, /
    ) -> T:
        """Make a call.

        Args:
            directory: The storage directory that the call accesses.
            call: The call.
            dispose: Called with a result that comes too late.

        Raises:
            DirectoryHangs: The directory does not answer.
            Exception: The error of the call.
        """


def at_once(
    _directory: Path, call: Callable[[], T], _dispose: Callable[[T], None] | None = None, /
) -> T:
    """Make a call in this thread, however long it takes: a :class:`MakesCalls`."""
    return call()
