"""The journal of one arena: an append-only file of rows about its map outputs.

A directory has one arena and its journal, so it recovers alone. The file is a header line,
which names the arena, followed by records of a fixed head and a row::

    4 bytes mark │ u32 length of the row │ u32 crc32c │ u32 run │ u64 number │ row

All integers are little endian. The checksum covers run, number and row, and starts with the arena's
id, so bytes inside a row cannot be mistaken for a record. A *run* is the time between two starts
of the TaskManager; within a run, rows are numbered across all journals. So the rows of several
journals have one order, which does not depend on a clock.

A record is valid when ``write`` has returned: it is then in the kernel's page cache, which survives
a killed process. Whether it also survives a power cut depends on :mod:`.journal_sync`.
:mod:`.journal_reader` reads it.

**Releases** are written twice: first to a second file, then to the journal. So damage to the
journal does not bring released map outputs back.

The name of a journal contains its generation and its run. A rewrite makes the next generation
beside the old one or in another place (:mod:`.journal_places`), and renames it into place. A start
only renames the file, to its run.
Space for the next rows is reserved. The last part of it is only for releases, which free space.
"""

import contextlib
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from crc32c import crc32c

from ..files.file_calls import open_file
from ..files.file_format import HEADER
from ..files.file_sync import sync_file, sync_names
from ..files.journal_places import generation_of, is_on_a_disk, releases_path, run_of
from ..health.directory_probe import identity_of
from .journal_sync import SyncMode
from .reserved_room import RELEASES_BYTES, RESERVED_BYTES, ReservedRoom

logger = logging.getLogger(__name__)

MAX_ROW_BYTES: Final = 256 * 1024 * 1024
"""A longer row is damaged. The row of a region with a million subpartitions has 4 MB."""

COMPACTION_FLOOR_BYTES: Final = 1024 * 1024
"""A journal with fewer dead bytes is not rewritten: that would cost more than it saves."""

HEADER_BYTES: Final = len(HEADER) + 17  # 16 hex digits and the end of the line
MARK: Final = b"\xd7Row"
HEAD: Final = struct.Struct("<4sIIIQ")
ORDER: Final = struct.Struct("<IQ")
_WRITE_BYTES: Final = 1 << 20


class Entry(NamedTuple):
    """A row and its place in the order of all rows: by run, then by number."""

    run: int
    number: int
    row: bytes


class Journal:
    """The journal of an arena, open for appending.

    Not thread-safe: only the journal's thread calls it, one call at a time.

    Args:
        path: The file, named by generation and run.
        tier_id: The arena.
        fds: Descriptors of the journal and of its file of releases.
        sizes: Lengths of their valid parts.
        mode: When its rows are synced.

    Attributes:
        mode: When its rows are synced; a start sets it for the journals that it finds.
    """

    def __init__(
        self,
        path: Path,
        tier_id: bytes,
        fds: tuple[int, int],
        sizes: tuple[int, int],
        mode: SyncMode = "never",
    ) -> None:
        self.path = path
        self.mode = mode
        self.tier_id = tier_id
        self.run = run_of(path)
        self._fds = fds
        # Now, because the disk may hang later.
        self._identity = identity_of(os.fstat(fds[0])) if fds[0] >= 0 else (0, 0)
        self._sizes = sizes
        self._rooms = (
            ReservedRoom(fds[0], sizes[0], RESERVED_BYTES),
            ReservedRoom(fds[1], sizes[1], RELEASES_BYTES),
        )

    @property
    def generation(self) -> int:
        """Number of the rewrite that made the file, starting at 1."""
        return generation_of(self.path)

    @property
    def size_bytes(self) -> int:
        """Length of the journal."""
        return self._sizes[0]

    @classmethod
    def create(  # noqa: PLR0913 - what a file of rows consists of
        cls,
        directory: Path,
        tier_id: bytes,
        run: int,
        entries: Iterable[Entry],
        releases: Sequence[Entry] = (),
        above: int = 0,
        is_wanted: Callable[[], bool] = lambda: True,
        mode: SyncMode = "never",
    ) -> Self:
        """Write the next generation of an arena's journal and put it into place.

        Args:
            directory: A locked directory, or a place in one, which is created if missing.
            tier_id: Its arena.
            run: The current run.
            entries: The first rows, without releases.
            releases: The releases, which follow them.
            above: The previous generation, which may be in another place.
            is_wanted: Whether to put it into place, asked when that is all that is left to do.
            mode: When its rows are synced; unless never, this call syncs the first ones.

        Raises:
            OSError: The file cannot be written, or is not wanted; partial files are removed.
        """
        if is_on_a_disk(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
        found = (generation_of(path) for path in directory.iterdir())
        generation = max(above, *found, 0) + 1
        path = directory / f"journal-{generation:08d}-{run:08d}"
        temporary = directory / "journal.new"
        second = releases_path(path)
        fds: list[int] = []
        try:
            sizes = []
            for target, rows in ((second, releases), (temporary, [*entries, *releases])):
                fds.append(open_file(target, os.O_TRUNC))
                sizes.append(_write_file(fds[-1], tier_id, rows))
            journal = cls(path, tier_id, (fds[1], fds[0]), (sizes[1], sizes[0]), mode)
            journal.reserve()
            if mode != "never":
                journal.sync()
            if not is_wanted():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            temporary.rename(path)
            if mode != "never":
                sync_names(directory)
                if is_on_a_disk(directory):
                    sync_names(directory.parent)
        except BaseException:
            for fd in fds:
                os.close(fd)
            for target in (temporary, path, second):
                with contextlib.suppress(OSError):
                    target.unlink()
            raise
        return journal

    def reserve(self) -> bool:
        """Reserve room; return whether there is room for rows as well as for releases."""
        try:
            for room, size in zip(self._rooms, self._sizes, strict=True):
                room.require(size, 0, RELEASES_BYTES)
            self._rooms[0].require(self._sizes[0], 0, RESERVED_BYTES)
        except OSError:
            return False
        return True

    def append(self, entries: Sequence[Entry], releases: Sequence[Entry]) -> None:
        """Append releases to the second file, then all rows to the journal.

        Releases are synced unless the mode is never, the other rows if it is commit.

        Raises:
            OSError: A write or sync failed. Both files are truncated if possible; otherwise the
                next rows overwrite the bytes after :attr:`size_bytes`. If there is no room
                (``tier.FULL``), nothing was written, and releases alone may still fit.
        """
        parts = [_record(self.tier_id, entry) for entry in (*entries, *releases)]
        second = b"".join(parts[len(entries) :])
        first = b"".join(parts)
        sizes = self._sizes
        self._rooms[0].require(sizes[0], len(first), RELEASES_BYTES if entries else 0)
        self._rooms[1].require(sizes[1], len(second))
        try:
            if second:
                _write_all(self._fds[1], second, sizes[1])
                if self.mode != "never":
                    sync_file(self._fds[1], releases_path(self.path))
            _write_all(self._fds[0], first, sizes[0])
            if self.mode == "commit" and entries:
                sync_file(self._fds[0], self.path)
        except OSError:
            for fd, room, size in zip(self._fds, self._rooms, sizes, strict=True):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
                room.forget(size)
            raise
        self._sizes = sizes[0] + len(first), sizes[1] + len(second)

    def sync(self) -> None:
        """Write both files to the disk. Blocks.

        Raises:
            OSError: It failed: rewrite the journal.
        """
        sync_file(self._fds[1], releases_path(self.path))
        sync_file(self._fds[0], self.path)

    def is_in_place(self) -> bool:
        """Whether both files are still at their paths. Blocks."""
        for path, fd in zip((self.path, releases_path(self.path)), self._fds, strict=True):
            try:
                if not os.path.samestat(path.stat(), os.fstat(fd)):
                    return False
            except OSError:
                return False
        return True

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file that is open."""
        return self._identity

    def begin_run(self, run: int) -> None:
        """Rename the file to a new run, and reserve room if there is some.

        Raises:
            OSError: The file cannot be renamed.
        """
        path = self.path.with_name(f"journal-{generation_of(self.path):08d}-{run:08d}")
        self.path.rename(path)
        self.path, self.run = path, run
        self.reserve()

    def renumber(self, generation: int) -> None:
        """Rename the files to a later generation: one that was given up may still appear.

        Raises:
            OSError: A file cannot be renamed. The journal is still complete.
        """
        path = self.path.with_name(f"journal-{generation:08d}-{self.run:08d}")
        releases_path(self.path).rename(releases_path(path))
        self.path.rename(path)
        self.path = path
        if self.mode != "never":
            sync_names(path.parent)

    def remove(self) -> None:
        """Close and delete the files when the next generation is in place."""
        self.close()
        for path in (self.path, releases_path(self.path)):
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Close the files. Idempotent."""
        fds, self._fds = self._fds, (-1, -1)
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _checksum(tier_id: bytes, run: int, number: int, row: bytes) -> int:
    return crc32c(row, crc32c(ORDER.pack(run, number), crc32c(tier_id)))


def _record(tier_id: bytes, entry: Entry) -> bytes:
    run, number, row = entry
    checksum = _checksum(tier_id, run, number, row)
    return HEAD.pack(MARK, len(row), checksum, run, number) + row


def _write_file(fd: int, tier_id: bytes, entries: Iterable[Entry]) -> int:
    """Write header and records; return the number of bytes."""
    size = 0
    for chunk in _chunks(tier_id, entries):
        size += _write_all(fd, chunk, size)
    return size


def _chunks(tier_id: bytes, entries: Iterable[Entry]) -> Iterator[bytes]:
    chunk = bytearray(HEADER + tier_id.hex().encode("ascii") + b"\n")
    for entry in entries:
        chunk += _record(tier_id, entry)
        if len(chunk) >= _WRITE_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def _write_all(fd: int, data: bytes, offset: int) -> int:
    """Write everything at an offset; return the number of bytes."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
    return done
