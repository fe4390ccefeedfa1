"""Flips bits of files at rest, in places where there are data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 4096
BURST_PAGES = 8
"""Pages that are hit together, one bit in each: as by a bad sector or a misdirected write."""

JOURNAL_FLIPS = 3


def flip_in_arena(path: Path, chance: random.Random) -> int:
    """Flip one bit in each of some pages behind one another; return how many have changed.

    The place is among the written parts of the file; there may be none.
    """
    parts = list(_written(path))
    if not parts:
        return 0
    start, end = chance.choices(parts, [end - start for start, end in parts])[0]
    first = chance.randrange(start, end)
    places = range(first, min(first + BURST_PAGES * PAGE_BYTES, end), PAGE_BYTES)
    return flip(path, places, chance)


def flip_in_journal(path: Path, chance: random.Random) -> int:
    """Flip single bits anywhere in a journal; return how many."""
    size = path.stat().st_size
    return flip(path, sorted(chance.sample(range(size), min(size, JOURNAL_FLIPS))), chance)


def flip(path: Path, places: range | list[int], chance: random.Random) -> int:
    """Flip one bit of each of these bytes; return how many."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for place in places:
            before = os.pread(fd, 1, place)
            os.pwrite(fd, bytes([before[0] ^ 1 << chance.randrange(8)]), place)
    finally:
        os.close(fd)
    return len(places)


def _written(path: Path) -> Iterator[tuple[int, int]]:
    """Beginning and end of each part of a sparse file that is no hole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        at = 0
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                return
            at = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, at
    finally:
        os.close(fd)
