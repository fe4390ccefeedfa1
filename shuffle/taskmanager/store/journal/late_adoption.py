"""Adopts the map outputs of a directory that did not answer at the start.

The rows of the other journals decide which of its map outputs were released meanwhile: their
releases of earlier runs, which the start keeps for this, and all releases of this run. A map output
that also has bytes in another directory is not adopted, because its part there was given up at the
start.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ....names import ShuffleKey
from ...config.storage_config import StorageConfig
from ..stored_outputs import MapOutput
from ..tiers.disk_tier import DiskTier
from ..tiers.memory_tier import MemoryTier
from .adoption import Adoption
from .journal import Entry
from .journal_reader import FoundJournal, open_journal
from .opened_storage import OpenedStorage
from .power_cuts import may_lack_bytes
from .replay import replay

if TYPE_CHECKING:
    from ..tiers.tier import Tier

logger = logging.getLogger(__name__)

_THIS_RUN = b"this run"
"""Stands for the journals that have the releases of this run."""


class LateDirectory(NamedTuple):
    """A directory that answers only now.

    Attributes:
        tier: Its tier, which accepts no regions yet.
        found: Its journal.
    """

    tier: DiskTier | MemoryTier
    found: FoundJournal

    def finish(self) -> None:
        """Truncate the arena, and close the old journal. Blocks."""
        self.found.journal.close()
        self.tier.finish_adoption()


def open_late(
    storage: OpenedStorage, directory: Path, config: StorageConfig
) -> LateDirectory | None:
    """Open a directory and read its journal; return None if nothing can be adopted. Blocks.

    Raises:
        StorageUnavailable: It still cannot be used.
        StorageInUse: Another process uses it.
    """
    storage.lock_again(directory)
    tier = storage.open_tier(directory, config)
    try:
        found = open_journal(directory, tier.tier_id)
        refusal = _refusal(storage, tier, found)
    except BaseException:
        tier.close()
        raise
    if found is None or refusal:
        logger.error("storage directory %s is emptied: %s", directory, refusal)
        if found is not None:
            found.journal.close()
        tier.close()
        return None
    return LateDirectory(tier, found)


def _refusal(
    storage: OpenedStorage, tier: DiskTier | MemoryTier, found: FoundJournal | None
) -> str:
    """Return why a directory cannot be adopted; empty if it can be."""
    if found is None:
        return "it has no journal"
    if isinstance(tier, DiskTier) and may_lack_bytes(tier.directory):
        return "the host was restarted and journal_sync was not commit, or a sync failed"
    if found.damage:
        return f"its journal is damaged: {found.damage[0]}"
    run = found.journal.run
    if not storage.last_run <= run < storage.run:
        return f"it was last used in run {run}, the others in run {storage.last_run}"
    return ""


def adopt_late(
    storage: OpenedStorage,
    late: LateDirectory,
    releases: Sequence[Entry],
    is_pending: Callable[[ShuffleKey, int], bool],
) -> list[MapOutput]:
    """Add the map outputs of a directory that were not released to the index; return them.

    Args:
        storage: Has the index, and the releases of earlier runs.
        late: The directory.
        releases: All releases of this run.
        is_pending: Whether a map attempt is being committed.
    """
    tier, found = late
    rows = {**storage.earlier, tier.tier_id: found}
    rows[_THIS_RUN] = found._replace(entries=list(releases), releases=[], doubtful=0)
    tiers: dict[bytes, Tier] = {tier.tier_id: tier}
    if storage.remote is not None:
        tiers[storage.remote.tier_id] = storage.remote
    index = storage.index
    commits = [
        each
        for each in replay(rows).commits
        if index.get(each.row.key, each.row.map_attempt_id) is None
        and not is_pending(each.row.key, each.row.map_attempt_id)
    ]
    adoption = Adoption(tiers, storage.accounts, index)
    adoption.adopt(commits, (), {})
    outputs = [index.get(each.row.key, each.row.map_attempt_id) for each in commits]
    return [each for each in outputs if each is not None]
