"""The journal of one arena: an append-only file of rows about its map outputs.

A directory has one arena and its journal, so it recovers alone. The file is a header line,
which names the arena, followed by records of a fixed head and a row::

    4 bytes mark │ u32 length of the row │ u32 crc32c │ u32 run │ u64 number │ row

All integers are little endian. The checksum covers run, number and row, and starts with the arena's
id, so bytes inside a row cannot be mistaken for a record. A *run* is the time between two starts
of the TaskManager; within a run, rows are numbered across all journals. So the rows of several
journals have one order, which does not depend on a clock.

A record is valid when ``write`` has returned: it is then in the kernel's page cache, which survives
a killed process. The file is never synced. A torn record at the end was never acknowledged and is
cut off. After any other damage, reading continues at the next whole record.

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

from ..errors import CorruptJournal, StorageUnavailable
from ..files.file_calls import open_file
from ..files.file_format import HEADER, is_file_of_releases
from ..files.journal_places import generation_of, is_on_a_disk, releases_path, run_of
from ..health.directory_probe import identity_of
from .reserved_room import RELEASES_BYTES, RESERVED_BYTES, ReservedRoom
from .rows import is_undoing

logger = logging.getLogger(__name__)

MAX_ROW_BYTES: Final = 256 * 1024 * 1024
"""A longer row is damaged. The row of a region with a million subpartitions has 4 MB."""

COMPACTION_FLOOR_BYTES: Final = 1024 * 1024
"""A journal with fewer dead bytes is not rewritten: that would cost more than it saves."""

_HEADER_BYTES: Final = len(HEADER) + 17  # 16 hex digits and the end of the line
_MARK: Final = b"\xd7Row"
_HEAD: Final = struct.Struct("<4sIIIQ")
_ORDER: Final = struct.Struct("<IQ")
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
    """

    def __init__(
        self, path: Path, tier_id: bytes, fds: tuple[int, int], sizes: tuple[int, int]
    ) -> None:
        self.path = path
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
    def create(
        cls,
        directory: Path,
        tier_id: bytes,
        run: int,
        entries: Iterable[Entry],
        releases: Sequence[Entry] = (),
        above: int = 0,
        is_wanted: Callable[[], bool] = lambda: True,
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
            journal = cls(path, tier_id, (fds[1], fds[0]), (sizes[1], sizes[0]))
            journal.reserve()
            if not is_wanted():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            temporary.rename(path)
        except BaseException:
            for fd in fds:
                os.close(fd)
            for target in (temporary, second):
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

        Raises:
            OSError: The write failed. Both files are truncated if possible; otherwise the next
                rows overwrite the bytes after :attr:`size_bytes`. If there is no room
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
            _write_all(self._fds[0], first, sizes[0])
        except OSError:
            for fd, room, size in zip(self._fds, self._rooms, sizes, strict=True):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
                room.forget(size)
            raise
        self._sizes = sizes[0] + len(first), sizes[1] + len(second)

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


class FoundJournal(NamedTuple):
    """A journal as it was found at the start.

    Attributes:
        journal: Open at the end of its last whole record. It must be rewritten if damaged.
        entries: Its rows in their order.
        releases: Rows of its second file.
        damage: The damaged places of both files.
        doubtful: Number of the first entries that may have been released, because a release after
            them may have been lost with the damage.
        uneven: Whether only one of its two files has a release, because a crash came between the
            writes, or damage at the end of a file looks like that. It must be rewritten: the next
            damage could undo the release.
    """

    journal: Journal
    entries: list[Entry]
    releases: list[Entry]
    damage: list[CorruptJournal]
    doubtful: int
    uneven: bool


def open_journal(
    directory: Path, tier_id: bytes, places: Sequence[Path] = ()
) -> FoundJournal | None:
    """Read the newest journal of an arena, and remove older ones.

    Args:
        directory: The locked directory of the arena.
        tier_id: The arena, used if the header of the journal is damaged.
        places: Other places where the journal may be; they need not exist.

    Returns:
        The journal, or None if there is none.

    Raises:
        StorageUnavailable: The directory cannot be read.
    """
    try:
        paths = list(directory.iterdir())
        for place in places:
            with contextlib.suppress(OSError):
                paths += place.iterdir()
        # Compare runs first: a disk that was missing may have a higher generation of an older run.
        found = sorted(
            filter(generation_of, paths), key=lambda path: (run_of(path), generation_of(path))
        )
        if not found:
            return None
        path = found[-1]
        releases = filter(is_file_of_releases, paths)
        for old in {*found[:-1], *releases} - {releases_path(path)}:
            _remove_old(old, directory)
        return _open(path, tier_id)
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def _remove_old(path: Path, directory: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        if path.parent == directory:
            raise
        logger.warning("%s of an earlier run cannot be removed: %s", path, error)


def _open(path: Path, tier_id: bytes) -> FoundJournal:
    fds = [open_file(path)]
    try:
        fds.append(open_file(releases_path(path)))
        scans = [_scan(path, fds[0], tier_id), _scan(releases_path(path), fds[1], tier_id)]
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
    undoing = {(run, number) for run, number, row in first.entries if is_undoing(row)}
    uneven = undoing != {(run, number) for run, number, _ in second.entries}
    return FoundJournal(journal, first.entries, second.entries, damage, doubtful, uneven)


class _Scan(NamedTuple):
    """The content of a file of records.

    Attributes:
        tier_id: The arena named by its header.
        entries: The rows.
        end: End of the last whole record.
        size: Length of the file.
        damage: Every damaged place.
        before_damage: Number of rows before the last damaged place.
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
        named = None  # its id is damaged: the records belong to this arena
    if named is None:
        damage.append(CorruptJournal(path, 0, size, "its header is missing or damaged"))
    tier_id = named or tier_id
    position = _HEADER_BYTES if named else 0
    while True:
        before = len(entries)
        entries += _records(data, position, tier_id)
        rows_bytes = sum([len(row) for _, _, row in entries[before:]])
        end = position = position + (len(entries) - before) * _HEAD.size + rows_bytes
        if position == size:
            break
        found = _next_record(data, position + 1, tier_id)
        if found is None and _is_torn(data, position):
            break
        damage.append(CorruptJournal(path, position, size, "a record is incomplete or damaged"))
        before_damage = len(entries)
        if found is None:
            break
        position = found
    return _Scan(tier_id, entries, end, size, damage, before_damage)


def _tier_named(header: bytes) -> bytes | None:
    if len(header) != _HEADER_BYTES or not header.startswith(HEADER) or header[-1:] != b"\n":
        return None
    try:
        return bytes.fromhex(header[len(HEADER) : -1].decode("ascii"))
    except ValueError:
        return None


def _records(data: bytes, position: int, tier_id: bytes) -> Iterator[Entry]:
    """Yield the rows from a position on, up to a torn or damaged record."""
    seed, size = crc32c(tier_id), len(data)
    head_bytes, order_bytes, read_head = _HEAD.size, _ORDER.size, _HEAD.unpack_from
    while (start := position + head_bytes) <= size:
        mark, length, checksum, run, number = read_head(data, position)
        position = start + length
        if mark != _MARK or length > MAX_ROW_BYTES or position > size:
            return
        # Run and number precede the row: one checksum covers all three.
        if crc32c(data[start - order_bytes : position], seed) != checksum:
            return
        yield Entry(run, number, data[start:position])


def _next_record(data: bytes, position: int, tier_id: bytes) -> int | None:
    """Return where the next whole record begins."""
    while (position := data.find(_MARK, position)) >= 0:
        if any(True for _ in _records(data, position, tier_id)):
            return position
        position += 1
    return None


def _is_torn(data: bytes, position: int) -> bool:
    """Whether the rest may be the beginning of a record that was not fully written."""
    if position + _HEAD.size > len(data):
        return _MARK.startswith(data[position : position + len(_MARK)])
    mark, length, *_ = _HEAD.unpack_from(data, position)
    return bool(mark == _MARK and position + _HEAD.size + length > len(data))


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
