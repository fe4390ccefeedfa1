"""Begins the journals of a run: the ones that a start found, or their next generations.

A journal is not removed before its next generation is in place, because nothing else names its map
outputs. The exception is a directory that was away in the last run: its rows do not count. If a
journal cannot be rewritten now, it is set aside: its directory gets nothing new, its map outputs
can be read, and it is rewritten when the directory is used again or at the next start.
"""

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ..errors import DirectoryHangs
from ..files.blocking_calls import MakesCalls
from ..files.file_sync import sync_names
from ..files.journal_places import directory_of, is_on_a_disk, keep_damaged, place_on
from ..tiers.arena_tier import ArenaTier
from ..tiers.tier import FULL
from .journal import COMPACTION_FLOOR_BYTES, Entry, Journal
from .journal_reader import FoundJournal
from .opened_storage import OpenedStorage
from .power_cuts import begin_writing
from .start_calls import StartCalls

logger = logging.getLogger(__name__)


def other_places(storage: OpenedStorage, tier: ArenaTier) -> list[Path]:
    """Return where the journal may be if there was no room for it beside its arena."""
    others = (disk.directory for disk in storage.disks if disk is not tier)
    return [place_on(directory, tier.tier_id) for directory in others]


def begin_journal(
    storage: OpenedStorage,
    starts: StartCalls,
    tier: ArenaTier,
    found: FoundJournal | None,
    rows_in: Callable[[bytes], Iterable[Entry]],
    *,
    is_stale: bool,
) -> None:
    """Open the journal of a tier for this run: the existing one, or its next generation.

    A tier without a journal accepts no new regions, but its map outputs can still be read. If it
    hangs now, its journal is rewritten when it answers.

    Args:
        storage: Gets the journal.
        starts: Makes the calls.
        tier: The tier.
        found: Its journal of the last run.
        rows_in: Returns the rows that a rewritten journal needs, by arena.
        is_stale: Whether the journal must be rewritten.
    """
    arena = tier.tier_id
    old = None if found is None else found.journal
    is_good = old is not None and not is_stale and old.tier_id == arena
    if old is not None:
        old.mode = storage.sync.of(tier)
    try:
        if old is not None and is_good and old.path.parent == tier.directory:
            live = storage.index.live_bytes(arena)
            if old.size_bytes <= max(2 * live, COMPACTION_FLOOR_BYTES):
                _begin_run(starts, old, storage.run)
                storage.journals[arena] = old
                return
        storage.journals[arena] = _next_generation(storage, starts, tier, old, rows_in)
    except (OSError, DirectoryHangs) as error:
        if old is not None and is_good and isinstance(error, OSError) and error.errno in FULL:
            with contextlib.suppress(OSError, DirectoryHangs):
                _begin_run(starts, old, storage.run)
                storage.journals[arena] = old
                return
        if isinstance(error, DirectoryHangs):
            tier.fail(error.reason)
        else:
            tier.fail(f"its journal cannot be written: {error.strerror or error}")
        if old is not None and arena not in storage.stale:
            _set_aside(storage, starts, arena, old)
            return
    if old is not None:
        _end(storage, starts, old, is_damaged=found is not None and bool(found.damage))


def _begin_run(starts: StartCalls, journal: Journal, run: int) -> None:
    starts.make(directory_of(journal.path.parent), partial(journal.begin_run, run))


def end_start(storage: OpenedStorage, tier: ArenaTier, make: MakesCalls) -> None:
    """Begin to write to a directory that a start has opened; leave it out if that fails."""
    journal = storage.journals.get(tier.tier_id)
    try:
        if journal is not None and storage.sync.is_on:
            make(directory_of(journal.path.parent), partial(_sync_journal, journal))
        make(tier.directory, partial(begin_writing, tier, storage.sync))
    except (DirectoryHangs, OSError) as error:
        tier.fail(error.reason if isinstance(error, DirectoryHangs) else str(error))
        if journal is not None:  # it is rewritten when the directory is back
            storage.set_aside(tier.tier_id, journal)


def _sync_journal(journal: Journal) -> None:
    """Sync a journal that a start found or made, which may lie on another disk than its arena."""
    journal.sync()
    if is_on_a_disk(journal.path.parent):  # otherwise the names are synced with its arena
        sync_names(journal.path.parent)


def _set_aside(storage: OpenedStorage, starts: StartCalls, arena: bytes, old: Journal) -> None:
    """Keep a journal that could not be rewritten, under the number of this run if possible.

    So the next start does not count its directory as away. The other journals keep the releases of
    this run for it.
    """
    if not storage.threads.of(directory_of(old.path.parent)).late.are_running:
        with contextlib.suppress(OSError, DirectoryHangs):
            _begin_run(starts, old, storage.run)
    storage.set_aside(arena, old)


def _end(storage: OpenedStorage, starts: StartCalls, old: Journal, *, is_damaged: bool) -> None:
    """Remove a journal that is not used in this run; one that hangs stays for the next start."""

    def remove() -> None:
        if is_damaged:
            keep_damaged(old.path)
        old.remove()

    directory = directory_of(old.path.parent)
    late = storage.threads.of(directory).late
    if late.are_running:
        late.when_idle(old.close)
        return
    with contextlib.suppress(DirectoryHangs):
        starts.make(directory, remove)


def _next_generation(
    storage: OpenedStorage,
    starts: StartCalls,
    tier: ArenaTier,
    old: Journal | None,
    rows_in: Callable[[bytes], Iterable[Entry]],
) -> Journal:
    """Write a journal's next generation beside its arena, or on a disk with room.

    Raises:
        OSError: It cannot be written anywhere.
        DirectoryHangs: The directory of the arena does not answer.
    """
    lost = [entry for arena, entry in storage.lost.items() if arena != tier.tier_id]
    gone = [*lost, *storage.unseen]
    above = 0 if old is None else old.generation
    failure: OSError | None = None
    for place in (tier.directory, *other_places(storage, tier)):
        # Before the rows of this run, the first of which has the number 1.
        released = [Entry(storage.run, 0, row) for row in storage.index.released_rows()]
        rows = [*rows_in(tier.tier_id), *released]
        mode = storage.sync.of(tier)
        create = partial(
            Journal.create, place, tier.tier_id, storage.run, rows, gone, above, mode=mode
        )
        try:
            new = starts.make(directory_of(place), create, Journal.remove)
        except DirectoryHangs as error:
            # It may still be put into place, also after the end of this process.
            above += 1
            storage.generations[tier.tier_id] = above
            if place == tier.directory:
                raise
            failure = failure or OSError(errno.ETIMEDOUT, error.reason)
            continue
        except OSError as error:
            if error.errno not in FULL:
                raise
            failure = failure or error
            continue
        if failure is not None:
            logger.warning("the journal of %s is kept in %s: %s", tier.directory, place, failure)
        return new
    raise failure or OSError("no directory has room for it")
