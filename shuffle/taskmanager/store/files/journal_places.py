"""Places for the journal of an arena: beside it, or on a disk if there is no room there.

A directory that has its own journal recovers alone, so a journal is beside its arena if there is
room. If another program fills the file system, the next generation is written to a data directory
that has room::

    /dev/shm/sluice-0/arena-2-A.dat
    /dev/shm/sluice-0/journal-00000001-00000001                        beside the arena
    /data/1/arena-2-B.dat
    /data/1/journal-of-A/journal-00000002-00000001                     on another disk

A journal never moves to the memory tier's directory, because a reboot empties it.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .file_format import JOURNAL_NAME

logger = logging.getLogger(__name__)

_PREFIX: Final = "journal-of-"


def generation_of(path: Path) -> int:
    """Return the generation in a journal's name, at least 1; 0 for any other name."""
    match = JOURNAL_NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def run_of(path: Path) -> int:
    """Return the run in a journal's name; 0 for any other name."""
    match = JOURNAL_NAME.fullmatch(path.name)
    return int(match[2]) if match else 0


def releases_path(path: Path) -> Path:
    """Return the path of a journal's second file, which has its releases."""
    return path.with_name(f"releases-{generation_of(path):08d}")


def place_on(disk: Path, arena: bytes) -> Path:
    """Return the place on a disk for the journal of an arena that lies elsewhere.

    Args:
        disk: A data directory.
        arena: The arena's id.
    """
    return disk / f"{_PREFIX}{arena.hex()}"


def is_on_a_disk(place: Path) -> bool:
    """Return whether a place is from :func:`place_on`; these are created when needed."""
    return place.name.startswith(_PREFIX)


def directory_of(place: Path) -> Path:
    """Return the storage directory in which a place for journals lies."""
    return place.parent if is_on_a_disk(place) else place


def require_room(place: Path, size_bytes: int) -> None:
    """Check that a place has room for a journal. Blocks.

    Args:
        place: One of the places; it need not exist.
        size_bytes: Bytes that the journal needs.

    Raises:
        OSError: It has less room (ENOSPC), or cannot be examined.
    """
    usage = os.statvfs(place if place.exists() else place.parent)
    free = usage.f_bavail * usage.f_frsize
    if free < size_bytes:
        reason = f"{free} bytes are free, and a journal needs {size_bytes}"
        raise OSError(errno.ENOSPC, reason, str(place))


def remove_unused(disks: Iterable[Path], in_use: Iterable[Path]) -> None:
    """Remove journals whose arenas are gone from places on disks. Blocks.

    Args:
        disks: Data directories.
        in_use: Directories of the journals in use.
    """
    kept = set(in_use)
    places: list[Path] = []
    for disk in disks:
        with contextlib.suppress(OSError):
            places += disk.glob(f"{_PREFIX}*")
    for place in {*places} - kept:
        with contextlib.suppress(OSError):
            for path in (*place.glob("journal-*"), *place.glob("releases-*")):
                path.unlink()
            place.rmdir()  # unless a damaged journal is kept there


def keep_damaged(path: Path) -> None:
    """Keep a damaged journal for inspection. Blocks."""
    try:
        path.replace(path.with_name("journal.damaged"))
    except OSError as error:
        logger.warning("%s cannot be kept: %s", path, error)
