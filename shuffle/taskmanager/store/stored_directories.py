"""Reads storage directories without changing anything, also beside a running TaskManager.

It replays journals as a start does, but takes no lock, adopts nothing, cuts no torn record off and
removes no old journal. A TaskManager that writes meanwhile may replace a journal: then the caller
reads again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ....protocol.schema import EVERY_SUBPARTITION
from ...names import utf8_text
from .errors import StorageUnavailable
from .files.file_format import arenas_in, refuse_other_format, tier_id_of
from .files.journal_places import place_on, releases_path
from .journal.journal_reader import FoundJournal, found_journal, journals_in_order, scan
from .journal.replay import Committed, Replayed, Secured, replay
from .journal.rows import RegionRow
from .shuffle_page import OutputDetail, RegionDetail
from .tiers.tier import is_arena

PIECE_BYTES: Final = 1024 * 1024
"""Bytes read at a time to verify a checksum."""


@dataclass(slots=True)
class StoredDirectories:
    """What storage directories have.

    Attributes:
        replayed: The map outputs that are valid in their journals.
        arenas: The arena file of each id.
        problems: Damage and other findings, in words.
    """

    replayed: Replayed
    arenas: dict[bytes, Path]
    problems: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Sequence[Committed | Secured]]:
        """Yield the rows of each map output: one if it is committed, else one or more."""
        for committed in self.replayed.commits:
            yield (committed,)
        yield from self.replayed.secured

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
    return StoredDirectories(replayed, arenas, problems)


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
    paths = list(directory.iterdir())
    for other in directories:
        place = place_on(other, tier_id)
        if other != directory and place.is_dir():
            paths += place.iterdir()
    journals = journals_in_order(paths)
    if not journals:
        return None
    path = journals[-1]
    scans = [scan(each, each.read_bytes(), tier_id) for each in (path, releases_path(path))]
    return found_journal(path, (scans[0], scans[1]))


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
        with arena.open("rb", buffering=0) as file:
            while position < end:
                piece = os.pread(file.fileno(), min(PIECE_BYTES, end - position), position)
                if not piece:
                    return f"its arena ends at byte {position}, before its last byte {end}"
                found = crc32c(piece, found)
                position += len(piece)
    except OSError as error:
        return f"its arena cannot be read: {error.strerror or error}"
    return "" if found == region.crc32c else "its bytes do not have their checksum"
