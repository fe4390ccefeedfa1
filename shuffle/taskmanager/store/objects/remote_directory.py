"""A remote tier that is a directory, beyond what ``obstore`` shows of it."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_UNFINISHED: Final = re.compile(r".+#\d+")
"""How ``obstore`` names a file until it is complete."""


class Identity(NamedTuple):
    """Distinguishes a directory from others that had the same path."""

    device: int
    inode: int


def identity_of(path: str) -> Identity:
    """Return the identity of a directory. Blocks.

    Raises:
        OSError: It cannot be examined.
    """
    found = Path(path).stat()
    return Identity(found.st_dev, found.st_ino)


async def remove_files(top: Path, before: float, is_live: Callable[[str], bool]) -> int:
    """Remove old incomplete files below a directory; return their number.

    Args:
        top: The directory.
        before: Files that were written later stay, in seconds since 1970.
        is_live: Whether the object with this last part of a name is being written.

    Cancellation: safe; a thread may remove some more.
    """
    found = await asyncio.to_thread(_unfinished_files, top, before)
    dead = [each for each in found if not is_live(each.name.rpartition("#")[0])]
    return await asyncio.to_thread(_remove_old, dead, before)


def _unfinished_files(top: Path, before: float) -> list[Path]:
    found = []
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            with contextlib.suppress(OSError):  # others remove them too
                if _UNFINISHED.fullmatch(name) and path.stat().st_mtime < before:
                    found.append(path)
    return found


def _remove_old(paths: Sequence[Path], before: float) -> int:
    removed = 0
    for path in paths:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
                removed += 1
    return removed
