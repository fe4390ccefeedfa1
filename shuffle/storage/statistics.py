"""Immutable snapshots for status pages and metrics."""

from dataclasses import dataclass
from pathlib import Path

from shuffle.storage.outputs import ShuffleKey


@dataclass(frozen=True, slots=True)
class ShuffleStatistics:
    """What is stored of one shuffle.

    Args:
        key: The shuffle.
        map_outputs: Committed map attempts.
        stored_bytes: Their bytes.
        regions: Their regions.
    """

    key: ShuffleKey
    map_outputs: int
    stored_bytes: int
    regions: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Totals of a store. Counters start with the process.

    Args:
        map_outputs: Committed map attempts now.
        stored_bytes: Their bytes.
        commits: Commits since the start.
        adopted_map_outputs: Map outputs taken over from the previous process.
        forgotten_map_outputs: Map outputs in its journal whose bytes are not there any more.
        journal_path: The journal.
        journal_bytes: Its length.
        journal_live_bytes: Bytes of rows that still count.
        compactions: Rewrites of the journal since the start.
    """

    map_outputs: int
    stored_bytes: int
    commits: int
    adopted_map_outputs: int
    forgotten_map_outputs: int
    journal_path: Path
    journal_bytes: int
    journal_live_bytes: int
    compactions: int
