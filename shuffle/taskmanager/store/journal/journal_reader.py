"""Reads the newest journal of an arena, as a start finds it."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from .....transport.errors import code_field
from ..errors import CorruptJournal, DirectoryHangs, StorageUnavailable
from ..files.blocking_calls import MakesCalls, at_once
from ..files.file_calls import open_file
from ..files.file_format import HEADER, is_file_of_releases
from ..files.journal_places import directory_of, generation_of, releases_path, run_of
from .adoption_progress import with_progress
from .journal import HEAD, HEADER_BYTES, MARK, MAX_ROW_BYTES, ORDER, Entry, Journal
from .rows import is_undoing

logger = logging.getLogger(__name__)


class JournalScan(NamedTuple):
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
    directory: Path, tier_id: bytes, places: Sequence[Path] = (), make: MakesCalls = at_once
) -> FoundJournal | None:
    """Read the newest journal of an arena, and remove older ones.

    Args:
        directory: The locked directory of the arena.
        tier_id: The arena, used if the header of the journal is damaged.
        places: Other places where the journal may be; they need not exist or answer.
        make: Makes the calls.

    Returns:
        The journal, or None if there is none.

    Raises:
        StorageUnavailable: The directory cannot be read, or the one that has its journal.
    """
    try:
        paths = make(directory, lambda: list(directory.iterdir()))
        for place in places:
            try:
                paths += make(directory_of(place), partial(_listed, place))
            except DirectoryHangs as error:
                logger.warning(
                    "no journal of %s is looked for there: %s",
                    directory,
                    error,
                    extra=code_field(error),
                )
        found = journals_in_order(paths)
        if not found:
            return None
        path = found[-1]
        releases = filter(is_file_of_releases, paths)
        for old in {*found[:-1], *releases} - {releases_path(path)}:
            _remove_old(old, directory, make)
        return make(directory_of(path.parent), partial(_open, path, tier_id), _close)
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error
    except DirectoryHangs as error:
        if error.directory == directory:
            raise
        raise DirectoryHangs(directory, f"its journal is in {error}") from error


def journals_in_order(paths: Iterable[Path]) -> list[Path]:
    """Return the journals among paths, the newest one last."""
    # Compare runs first: a disk that was missing may have a higher generation of an older run.
    return sorted(
        filter(generation_of, paths), key=lambda path: (run_of(path), generation_of(path))
    )


def _listed(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _close(found: FoundJournal) -> None:
    found.journal.close()


def _remove_old(path: Path, directory: Path, make: MakesCalls) -> None:
    try:
        make(directory_of(path.parent), path.unlink)
    except (OSError, DirectoryHangs) as error:
        if path.parent == directory:
            raise
        logger.warning(
            "%s of an earlier run cannot be removed: %s", path, error, extra=code_field(error)
        )


def _open(path: Path, tier_id: bytes) -> FoundJournal:
    fds = [open_file(path)]
    try:
        fds.append(open_file(releases_path(path)))
        first = scan(path, _content(fds[0]), tier_id)
        second = scan(releases_path(path), _content(fds[1]), tier_id)
        for fd, each in zip(fds, (first, second), strict=True):
            if not each.damage and each.end < each.size:
                logger.info("%s: cutting off %d bytes of a torn record", path, each.size - each.end)
                os.ftruncate(fd, each.end)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return found_journal(path, (first, second), (fds[0], fds[1]))


def _content(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read()


def found_journal(
    path: Path, scans: tuple[JournalScan, JournalScan], fds: tuple[int, int] = (-1, -1)
) -> FoundJournal:
    """Return a journal with the content of its two files.

    Args:
        path: The journal.
        scans: Its content, and that of its file of releases.
        fds: Their descriptors; -1: it is only looked at, and not open.
    """
    first, second = scans
    damage = [*first.damage, *second.damage]
    doubtful = first.before_damage if second.damage else 0
    journal = Journal(path, first.tier_id, fds, (first.end, second.end))
    undoing = {(run, number) for run, number, row in first.entries if is_undoing(row)}
    uneven = undoing != {(run, number) for run, number, _ in second.entries}
    return FoundJournal(journal, first.entries, second.entries, damage, doubtful, uneven)


def scan(path: Path, data: bytes, tier_id: bytes) -> JournalScan:
    """Find the rows in the content of a file.

    Args:
        path: The file, for messages.
        data: Its content.
        tier_id: The arena, used if the header is damaged.
    """
    size = len(data)
    entries: list[Entry] = []
    damage: list[CorruptJournal] = []
    before_damage = 0
    named = _tier_named(data[:HEADER_BYTES])
    if named != tier_id and _next_record(data, 0, tier_id) is not None:
        named = None  # its id is damaged: the records belong to this arena
    if named is None:
        damage.append(CorruptJournal(path, 0, size, "its header is missing or damaged"))
    tier_id = named or tier_id
    position = HEADER_BYTES if named else 0
    while True:
        before = len(entries)
        records = _records(data, position, tier_id)
        entries += with_progress(records, f"reading bytes of {path}", size, _size_of, position)
        rows_bytes = sum([len(row) for _, _, row in entries[before:]])
        end = position = position + (len(entries) - before) * HEAD.size + rows_bytes
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
    return JournalScan(tier_id, entries, end, size, damage, before_damage)


def _tier_named(header: bytes) -> bytes | None:
    if len(header) != HEADER_BYTES or not header.startswith(HEADER) or header[-1:] != b"\n":
        return None
    try:
        return bytes.fromhex(header[len(HEADER) : -1].decode("ascii"))
    except ValueError:
        return None


def _records(data: bytes, position: int, tier_id: bytes) -> Iterator[Entry]:
    """Yield the rows from a position on, up to a torn or damaged record."""
    seed, size = crc32c(tier_id), len(data)
    head_bytes, order_bytes, read_head = HEAD.size, ORDER.size, HEAD.unpack_from
    while (start := position + head_bytes) <= size:
        mark, length, checksum, run, number = read_head(data, position)
        position = start + length
        if mark != MARK or length > MAX_ROW_BYTES or position > size:
            return
        # Run and number precede the row: one checksum covers all three.
        if crc32c(data[start - order_bytes : position], seed) != checksum:
            return
        yield Entry(run, number, data[start:position])


def _size_of(entry: Entry) -> int:
    return HEAD.size + len(entry.row)


def _next_record(data: bytes, position: int, tier_id: bytes) -> int | None:
    """Return where the next whole record begins."""
    while (position := data.find(MARK, position)) >= 0:
        if any(True for _ in _records(data, position, tier_id)):
            return position
        position += 1
    return None


def _is_torn(data: bytes, position: int) -> bool:
    """Whether the rest may be the beginning of a record that was not fully written."""
    if position + HEAD.size > len(data):
        return MARK.startswith(data[position : position + len(MARK)])
    mark, length, *_ = HEAD.unpack_from(data, position)
    return bool(mark == MARK and position + HEAD.size + length > len(data))
