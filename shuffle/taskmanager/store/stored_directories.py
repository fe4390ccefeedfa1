"""Reads storage directories without changing anything, also beside a running TaskManager.

It replays journals as a start does, but takes no lock, adopts nothing, cuts no torn record off and
removes no old journal. A TaskManager that writes meanwhile may replace a journal: then the caller
reads again.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from crc32c import crc32c

from ....protocol.schema import EVERY_SUBPARTITION
from ...names import ShuffleKey, utf8_text
from .errors import StorageUnavailable
from .files.file_format import arenas_in, refuse_other_format, tier_id_of
from .files.journal_places import place_on, releases_path
from .journal.journal_reader import FoundJournal, found_journal, journals_in_order, scan
from .journal.replay import Committed, Replayed, Secured, replay
from .journal.rows import RegionRow
from .shuffle_page import OutputDetail, RegionDetail
from .tiers.tier import is_arena

_READ_ONLY: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opening a pipe does not wait for a writer."""

_ATTEMPTS: Final = 3
"""To read a journal that a running TaskManager may replace meanwhile."""

PIECE_BYTES: Final = 1024 * 1024
"""Bytes read at a time to verify a checksum."""


@dataclass(slots=True)
class StoredDirectories:
    """The content of storage directories.

    Attributes:
        directories: The directories.
        replayed: The map outputs that are valid in their journals.
        arenas: The arena file of each id.
        problems: Damage and other findings, in words.
    """

    directories: Sequence[Path]
    replayed: Replayed
    arenas: dict[bytes, Path]
    problems: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Sequence[Committed | Secured]]:
        """Yield the rows of each map output: one if it is committed, else one or more."""
        for committed in self.replayed.commits:
            yield (committed,)
        yield from self.replayed.secured

    def outputs(
        self, wanted: Callable[[ShuffleKey], bool], *, verify: bool
    ) -> list[tuple[ShuffleKey, OutputDetail]]:
        """Return the map outputs of shuffles, as :meth:`output` does. Blocks.

        A running TaskManager may have released one, and written others over its bytes, after its
        journal was read. So the journals are read again after damage is found, and a map output
        that is no longer valid is left out.

        Args:
            wanted: Whether to return the map outputs of a shuffle.
            verify: Whether to read their bytes, and compare their checksums.

        Raises:
            StorageUnavailable: A directory cannot be read again.
        """
        found = [
            (rows, self.output(rows, verify=verify))
            for rows in self.rows()
            if wanted(rows[0].row.key)
        ]
        if any(_is_damaged(output) for _, output in found):
            again = read_directories(self.directories)
            # The bytes identify a row that a rewrite of the journal moved.
            valid = {each.entry.row for rows in again.rows() for each in rows}
            found = [
                (rows, output)
                for rows, output in found
                if not _is_damaged(output) or valid.issuperset(each.entry.row for each in rows)
            ]
        return [(rows[0].row.key, output) for rows, output in found]

    def output(self, rows: Sequence[Committed | Secured], *, verify: bool) -> OutputDetail:
        """Return a map output of :meth:`rows`. Blocks.

        Args:
            rows: Its rows.
            verify: Whether to read its bytes, and compare their checksums.
        """
        first = rows[0]
        regions = tuple(
            self._region(region, verify) for each in rows for region in each.row.regions
        )
        length = sum(region.length_bytes for region in regions)
        if isinstance(first, Committed):
            row = first.row
            return OutputDetail(
                row.map_attempt_id,
                "committed",
                row.num_subpartitions,
                length,
                row.origin,
                row.replicas,
                row.to_remote,
                regions,
            )
        row_of_regions = first.row
        return OutputDetail(
            row_of_regions.map_attempt_id,
            "secured",
            row_of_regions.num_subpartitions,
            length,
            regions=regions,
        )

    def _region(self, region: RegionRow, verify: bool) -> RegionDetail:
        arena = self.arenas.get(region.tier_id)
        is_broadcast = region.first_subpartition == EVERY_SUBPARTITION
        problem = ""
        if arena is None and is_arena(region.tier_id):
            problem = "its arena is in none of these directories"
        elif arena is not None and verify:
            problem = _damage(arena, region)
        tier = "" if not region.tier_id else "arena" if is_arena(region.tier_id) else "remote"
        return RegionDetail(
            tier,
            "" if arena is None else utf8_text(arena.parent),
            region.offset,
            region.offsets[-1],
            0 if is_broadcast else region.first_subpartition,
            len(region.offsets) - 1,
            is_broadcast,
            region.crc32c,
            problem,
        )


def _is_damaged(output: OutputDetail) -> bool:
    return any(region.problem for region in output.regions)


def read_directories(directories: Sequence[Path]) -> StoredDirectories:
    """Read the journals of directories. Blocks.

    Args:
        directories: All storage directories of a TaskManager: a map output with regions in a
            missing one is not valid. One that has only the directories of data processes stands for
            these.

    Raises:
        StorageUnavailable: One has no arena, has another format, or cannot be read.
    """
    found: dict[bytes, FoundJournal] = {}
    arenas: dict[bytes, Path] = {}
    problems: list[str] = []
    expanded = [inner for directory in directories for inner in _with_arenas(directory)]
    for directory in expanded:
        try:
            refuse_other_format(directory)
            arena, *others = arenas_in(directory)
            journal = _journal(directory, tier_id_of(arena), expanded)
        except OSError as error:
            raise _unreadable(directory, error) from error
        arenas[tier_id_of(arena)] = arena
        if others:
            problems.append(f"{directory} has {len(others) + 1} arenas: {arena.name} is used")
        if journal is None:
            problems.append(f"{directory} has no journal: its map outputs are unknown")
        else:
            found[tier_id_of(arena)] = journal
            problems += [str(damage) for damage in journal.damage]
    replayed = replay(_of_last_run(found, problems))
    if replayed.broken:
        problems.append(
            f"{replayed.broken} committed map outputs are incomplete: a journal lacks their row, "
            "or a directory is not among these"
        )
    return StoredDirectories(directories, replayed, arenas, problems)


def _with_arenas(directory: Path) -> list[Path]:
    """Return a directory with an arena, or those of data processes in it."""
    try:
        if arenas_in(directory):
            return [directory]
        inner = [each for each in sorted(directory.iterdir()) if each.is_dir() and arenas_in(each)]
    except OSError as error:
        raise _unreadable(directory, error) from error
    if not inner:
        raise StorageUnavailable(
            directory,
            "it has no arena, so no TaskManager has stored anything there",
            "Name a data directory or the memory directory of a TaskManager",
        )
    return inner


def _unreadable(directory: Path, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        directory,
        f"it cannot be read: {error.strerror or error}",
        "Run this as the user of the TaskManager; if it is running, run this again",
    )


def _journal(directory: Path, tier_id: bytes, directories: Sequence[Path]) -> FoundJournal | None:
    """Return the newest journal of an arena.

    Raises:
        OSError: It cannot be read.
    """
    before = None
    for _ in range(_ATTEMPTS):
        path = _newest_journal(directory, tier_id, directories)
        if path is None:
            return None
        try:
            data = _content(path)
        except FileNotFoundError:
            before = None
            continue
        try:
            releases = _content(releases_path(path))
        except FileNotFoundError:
            # Without a file, it is replaced now, or the file is lost if the journal stays.
            if path != before:
                before = path
                continue
            releases = b""
        scans = (scan(path, data, tier_id), scan(releases_path(path), releases, tier_id))
        return found_journal(path, scans)
    raise OSError(errno.EBUSY, "its journal is being replaced")


def _newest_journal(directory: Path, tier_id: bytes, directories: Sequence[Path]) -> Path | None:
    paths = list(directory.iterdir())
    for other in directories:
        place = place_on(other, tier_id)
        if other != directory and place.is_dir():
            paths += place.iterdir()
    return next(reversed(journals_in_order(paths)), None)


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _opened(path: Path) -> BinaryIO:
    """Open a regular file.

    Raises:
        OSError: It is not one, or cannot be opened.
    """
    file = open(os.open(path, _READ_ONLY), "rb", buffering=0)  # noqa: SIM115 - for the caller
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
    return file


def _of_last_run(
    found: Mapping[bytes, FoundJournal], problems: list[str]
) -> dict[bytes, FoundJournal]:
    """Leave the rows out that a start would not count: those of a directory that was away."""
    entries = [entry for each in found.values() for entry in (*each.entries, *each.releases)]
    last_run = max((entry.run for entry in entries if entry.number), default=0)
    counted = {}
    for arena, each in found.items():
        if each.journal.run < last_run:
            problems.append(
                f"{each.journal.path.parent} was away in run {last_run}: its {len(each.entries)} "
                f"rows of run {each.journal.run} do not count"
            )
            each = each._replace(entries=[], releases=[], doubtful=0)
        counted[arena] = each
    return counted


def _damage(arena: Path, region: RegionRow) -> str:
    """Return why the bytes of a region cannot be used; empty if they have their checksum."""
    found, position, end = 0, region.offset, region.offset + region.offsets[-1]
    try:
        with _opened(arena) as file:
            while position < end:
                piece = os.pread(file.fileno(), min(PIECE_BYTES, end - position), position)
                if not piece:
                    return f"its arena ends at byte {position}, before its last byte {end}"
                found = crc32c(piece, found)
                position += len(piece)
    except OSError as error:
        return f"its arena cannot be read: {error.strerror or error}"
    return "" if found == region.crc32c else "its bytes do not have their checksum"
