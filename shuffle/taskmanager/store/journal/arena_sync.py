"""Syncs arenas and journals in the threads of their directories (:mod:`.journal_sync`)."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ..tiers.tiers import Tiers
from .journal import Journal
from .journal_sync import JournalSync, SyncMode
from .power_cuts import sync_arena


class RunsCalls(Protocol):
    """Runs a blocking call in the thread of a directory."""

    def __call__(
        self, place: Path, call: Callable[[], None], size_bytes: int = 0, /
    ) -> Awaitable[None]:
        """Run a call.

        Raises:
            OSError: The call failed, or the directory hangs.
        """


class ArenaSync:
    """Knows what is not synced yet.

    Args:
        sync: The settings.
        tiers: The arenas.
        run: Runs the calls.
    """

    def __init__(self, sync: JournalSync, tiers: Tiers, run: RunsCalls) -> None:
        self._sync: Final = sync
        self._tiers: Final = tiers
        self._run: Final = run
        self._due: set[bytes] = set()
        """Arenas whose journals have rows that the next interval must sync."""

    @property
    def interval_seconds(self) -> float:
        """Longest time between an append and its sync, with mode ``interval``."""
        return self._sync.interval_seconds

    def mode(self, arena: bytes) -> SyncMode:
        """Return when the rows of an arena's journal are synced."""
        return self._sync.of(self._tiers.arena(arena))

    def is_due(self, arena: bytes) -> bool:
        """Whether :meth:`sync` must be called within the interval."""
        return arena in self._due

    def appended(self, arena: bytes) -> None:
        """Note rows of map outputs in the journal of an arena."""
        if self.mode(arena) == "interval":
            self._due.add(arena)

    def forget(self, arena: bytes) -> None:
        """Sync nothing of an arena that is left out."""
        self._due.discard(arena)

    async def before_rows(self, arena: bytes) -> OSError | None:
        """Sync the bytes that rows name, if they must be before that; return the error.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        if self.mode(arena) != "commit":
            return None
        return await self._sync_bytes(arena)

    async def sync(self, arena: bytes, journal: Journal) -> OSError | None:
        """Sync the bytes of an arena, then its journal; return the error if that fails.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        self._due.discard(arena)
        error = await self._sync_bytes(arena)
        if error is None:
            try:
                await self._run(journal.path.parent, journal.sync)
            except OSError as failure:
                error = failure
        return error

    async def _sync_bytes(self, arena: bytes) -> OSError | None:
        tier = self._tiers.arena(arena)
        if tier is None or not tier.unsynced_bytes:
            return None
        written_bytes = tier.written_bytes
        try:
            await self._run(tier.directory, partial(sync_arena, tier), tier.unsynced_bytes)
        except OSError as error:
            return error
        tier.synced(written_bytes)
        return None
