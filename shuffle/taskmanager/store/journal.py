"""The journal of one arena: an append-only file of rows about the map outputs that lie in it.

A directory has one arena and its journal, so that it recovers alone. The file is a header line,
which names the arena, followed by records of a fixed head and a row::

    4 bytes mark │ u32 length of the row │ u32 crc32c │ u32 run │ u64 number │ row

All integers are little endian. The checksum covers run, number and row, and begins with the arena's
id, so that nothing that lies in a row can pass for a record. A *run* is the time between two starts
of the TaskManager; within a run rows are numbered over all journals together. So rows of several
journals have one order, which no clock decides.

A record counts once ``write`` has returned: it then is in the kernel's page cache, which survives a
killed process. The file is never synced. A torn record at the end was never acknowledged and is
cut off. Behind any other damage reading goes on at the next whole record.

**Releases** are written a second time, to a file of their own and before the journal has them. So
no damage of the journal brings back what was released.

The name of a journal carries its generation and its run. A rewrite makes the next generation beside
the old one and renames it into place; a start only renames the file, for its run.
"""

import contextlib
import logging
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from crc32c import crc32c

from .errors import CorruptJournal, ObsoleteJournal, StorageUnavailable
from .rows import is_undoing

logger = logging.getLogger(__name__)

MAX_ROW_BYTES: Final = 256 * 1024 * 1024
"""A longer row is damage. The row of a region with a million subpartitions has 4 MB."""

COMPACTION_FLOOR_BYTES: Final = 1024 * 1024
"""A journal with fewer dead bytes is left alone: a rewrite would cost more than it saves."""

_HEADER: Final = f"sluice journal 2 {sys.byteorder} ".encode("ascii")
_HEADER_BYTES: Final = len(_HEADER) + 17  # 16 hex digits and the end of the line
_MARK: Final = b"\xd7Row"
_HEAD: Final = struct.Struct("<4sIIIQ")
_ORDER: Final = struct.Struct("<IQ")
_NAME: Final = re.compile(r"journal-(\d{8,})-(\d{8,})")
_OBSOLETE_NAME: Final = re.compile(r"journal-\d{8,}")
_WRITE_BYTES: Final = 1 << 20
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Entry(NamedTuple):
    """A row and its place in the order of all rows: by run, and within it by number."""

    run: int
    number: int
    row: bytes


class Journal:
    """The journal of an arena, open for appending.

    Not thread-safe: at most one call is under way, in the journal's thread.

    Args:
        path: The file, named by generation and run.
        tier_id: The arena.
        fds: Descriptors of the journal and of its second file of releases.
        sizes: Lengths of their valid parts.
    """

    def __init__(
        self, path: Path, tier_id: bytes, fds: tuple[int, int], sizes: tuple[int, int]
    ) -> None:
        self.path = path
        self.tier_id = tier_id
        self.run = run_of(path)
        self._fds = fds
        self._sizes = sizes

    @property
    def size_bytes(self) -> int:
        """Length of the journal."""
        return self._sizes[0]

    @classmethod
    def create(
        cls,
        directory: Path,
        tier_id: bytes,
        run: int,
        entries: Iterable[Entry],
        releases: Sequence[Entry] = (),
    ) -> Self:
        """Write the next generation of a directory's journal and put it into place.

        Args:
            directory: A locked directory.
            tier_id: Its arena.
            run: The run that has begun.
            entries: The first rows, releases not among them.
            releases: The releases behind them.

        Raises:
            OSError: The directory does not take the file; no part of it is left behind.
        """
        generation = max((generation_of(path) for path in directory.iterdir()), default=0) + 1
        path = directory / f"journal-{generation:08d}-{run:08d}"
        temporary = directory / "journal.new"
        second = _releases_path(path)
        fds: list[int] = []
        try:
            sizes = []
            for target, rows in ((second, releases), (temporary, [*entries, *releases])):
                fds.append(
                    os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                )
                sizes.append(_write_file(fds[-1], tier_id, rows))
            temporary.rename(path)
        except BaseException:
            for fd in fds:
                os.close(fd)
            for target in (temporary, second):
                with contextlib.suppress(OSError):
                    target.unlink()
            raise
        return cls(path, tier_id, (fds[1], fds[0]), (sizes[1], sizes[0]))

    def append(self, entries: Sequence[Entry], releases: Sequence[Entry]) -> None:
        """Append rows with one write, and those of releases to the second file before.

        Raises:
            OSError: The disk did not take them. Both files are cut back if the disk allows it, and
                the next rows overwrite what is behind :attr:`size_bytes`.
        """
        parts = [_record(self.tier_id, entry) for entry in (*entries, *releases)]
        second = b"".join(parts[len(entries) :])
        first = b"".join(parts)
        sizes = self._sizes
        try:
            if second:
                _write_all(self._fds[1], second, sizes[1])
            _write_all(self._fds[0], first, sizes[0])
        except OSError:
            for fd, size in zip(self._fds, sizes, strict=True):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
            raise
        self._sizes = sizes[0] + len(first), sizes[1] + len(second)

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file that is open."""
        status = os.fstat(self._fds[0])
        return status.st_dev, status.st_ino

    def begin_run(self, run: int) -> None:
        """Name the file for a new run.

        Raises:
            OSError: The directory does not allow it.
        """
        path = self.path.with_name(f"journal-{generation_of(self.path):08d}-{run:08d}")
        self.path.rename(path)
        self.path, self.run = path, run

    def remove(self) -> None:
        """Close and delete the files: the next generation is in place."""
        self.close()
        for path in (self.path, _releases_path(self.path)):
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Close the files. Idempotent."""
        fds, self._fds = self._fds, (-1, -1)
        for fd in fds:
            if fd >= 0:
                os.close(fd)


class FoundJournal(NamedTuple):
    """A journal as it was found at the start.

    Attributes:
        journal: Open, behind its last whole record. Damaged ones must be rewritten.
        entries: Its rows in their order.
        releases: Rows of its second file.
        damage: What is wrong with the journal, if anything is.
        doubtful: So many of the first entries lie before damage, and nothing tells whether a
            release of them is what was lost.
        uneven: Whether a release stands in one of its two files only, because a crash came between
            the writes, or because damage at the end of a file looks like that. It must be
            rewritten: the next damage could undo the release.
    """

    journal: Journal
    entries: list[Entry]
    releases: list[Entry]
    damage: list[CorruptJournal]
    doubtful: int
    uneven: bool


def record_bytes(row_bytes: int) -> int:
    """Return the length of the record of a row."""
    return _HEAD.size + row_bytes


def generation_of(path: Path) -> int:
    """Return the generation in a journal's name, from 1 on; 0 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def run_of(path: Path) -> int:
    """Return the run in a journal's name; 0 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else 0


def open_journal(directory: Path, tier_id: bytes) -> FoundJournal | None:
    """Read the newest journal of a directory; remove what older ones left behind.

    Args:
        directory: A locked directory.
        tier_id: Its arena, for a journal whose header is damaged.

    Returns:
        What was found; None if there is no journal.

    Raises:
        ObsoleteJournal: Its format is of an older version.
        StorageUnavailable: The directory cannot be read.
    """
    try:
        paths = list(directory.iterdir())
        if any(_OBSOLETE_NAME.fullmatch(path.name) for path in paths):
            raise ObsoleteJournal(directory)
        found = sorted(filter(generation_of, paths), key=generation_of)
        if not found:
            return None
        path = found[-1]
        for old in paths:
            if old.name.startswith("releases-") and old != _releases_path(path):
                old.unlink()
        for old in found[:-1]:
            old.unlink()
        return _open(path, tier_id)
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def _open(path: Path, tier_id: bytes) -> FoundJournal:
    fds = [os.open(path, _OPEN, 0o600)]
    try:
        fds.append(os.open(_releases_path(path), _OPEN, 0o600))
        scans = [_scan(path, fds[0], tier_id), _scan(_releases_path(path), fds[1], tier_id)]
        first, second = scans
        for fd, scan in zip(fds, scans, strict=True):
            if not scan.damage and scan.end < scan.size:
                logger.info("%s: cutting off %d bytes of a torn record", path, scan.size - scan.end)
                os.ftruncate(fd, scan.end)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    damage = [*first.damage, *second.damage]
    doubtful = first.before_damage if second.damage else 0
    journal = Journal(path, first.tier_id, (fds[0], fds[1]), (first.end, second.end))
    undoing = {entry[:2] for entry in first.entries if is_undoing(entry.row)}
    uneven = undoing != {entry[:2] for entry in second.entries}
    return FoundJournal(journal, first.entries, second.entries, damage, doubtful, uneven)


class _Scan(NamedTuple):
    """What a file of records holds.

    Attributes:
        tier_id: The arena that its header names.
        entries: The rows.
        end: End of the last whole record.
        size: Length of the file.
        damage: Each place that is damaged.
        before_damage: Number of the rows before the last of them.
    """

    tier_id: bytes
    entries: list[Entry]
    end: int
    size: int
    damage: list[CorruptJournal]
    before_damage: int


def _scan(path: Path, fd: int, tier_id: bytes) -> _Scan:
    with open(fd, "rb", closefd=False) as file:
        data = file.read()
    size = len(data)
    entries: list[Entry] = []
    damage: list[CorruptJournal] = []
    before_damage = 0
    named = _tier_named(data[:_HEADER_BYTES])
    if named != tier_id and _next_record(data, 0, tier_id) is not None:
        named = None  # a damaged id: no row of another arena passes for one of this
    if named is None:
        damage.append(CorruptJournal(path, 0, size, "it has no header of a journal"))
    tier_id = named or tier_id
    position = end = _HEADER_BYTES if named else 0
    while position < size:
        entry = _entry_at(data, position, tier_id)
        if entry is None:
            found = _next_record(data, position + 1, tier_id)
            if found is None and _is_torn(data, position):
                break
            damage.append(CorruptJournal(path, position, size, "a record is not whole"))
            before_damage = len(entries)
            if found is None:
                break
            position = found
            continue
        entries.append(entry)
        position = end = position + record_bytes(len(entry.row))
    return _Scan(tier_id, entries, end, size, damage, before_damage)


def _tier_named(header: bytes) -> bytes | None:
    if len(header) != _HEADER_BYTES or not header.startswith(_HEADER) or header[-1:] != b"\n":
        return None
    try:
        return bytes.fromhex(header[len(_HEADER) : -1].decode("ascii"))
    except ValueError:
        return None


def _entry_at(data: bytes, position: int, tier_id: bytes) -> Entry | None:
    """Return the row of the record that begins there, if one does."""
    start = position + _HEAD.size
    if start > len(data):
        return None
    mark, length, checksum, run, number = _HEAD.unpack_from(data, position)
    if mark != _MARK or length > MAX_ROW_BYTES or start + length > len(data):
        return None
    row = data[start : start + length]
    return Entry(run, number, row) if _checksum(tier_id, run, number, row) == checksum else None


def _next_record(data: bytes, position: int, tier_id: bytes) -> int | None:
    """Return where the next whole record begins."""
    while (position := data.find(_MARK, position)) >= 0:
        if _entry_at(data, position, tier_id) is not None:
            return position
        position += 1
    return None


def _is_torn(data: bytes, position: int) -> bool:
    """Whether the rest may be the beginning of a record, whose write was cut short."""
    if position + _HEAD.size > len(data):
        return _MARK.startswith(data[position : position + len(_MARK)])
    mark, length, *_ = _HEAD.unpack_from(data, position)
    return bool(mark == _MARK and position + _HEAD.size + length > len(data))


def _releases_path(path: Path) -> Path:
    return path.with_name(f"releases-{generation_of(path):08d}")


def _checksum(tier_id: bytes, run: int, number: int, row: bytes) -> int:
    return crc32c(row, crc32c(_ORDER.pack(run, number), crc32c(tier_id)))


def _record(tier_id: bytes, entry: Entry) -> bytes:
    run, number, row = entry
    checksum = _checksum(tier_id, run, number, row)
    return _HEAD.pack(_MARK, len(row), checksum, run, number) + row


def _write_file(fd: int, tier_id: bytes, entries: Iterable[Entry]) -> int:
    """Write header and records; return the number of bytes."""
    size = 0
    for chunk in _chunks(tier_id, entries):
        size += _write_all(fd, chunk, size)
    return size


def _chunks(tier_id: bytes, entries: Iterable[Entry]) -> Iterator[bytes]:
    chunk = bytearray(_HEADER + tier_id.hex().encode("ascii") + b"\n")
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
