"""Flips hit what is written, and nothing else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.chaos.damage import BURST_PAGES, JOURNAL_FLIPS, flip_in_arena, flip_in_journal

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def differences(before: bytes, after: bytes) -> list[int]:
    assert len(before) == len(after)
    return [place for place in range(len(before)) if before[place] != after[place]]


def test_a_sparse_arena_is_hit_where_it_has_data(tmp_path: Path):
    arena = tmp_path / "arena"
    with arena.open("wb") as file:
        file.truncate(8 * MIB)
        file.seek(3 * MIB)
        file.write(bytes(MIB))
    before = arena.read_bytes()
    flipped = flip_in_arena(arena, random.Random(1))
    changed = differences(before, arena.read_bytes())
    assert len(changed) == flipped == BURST_PAGES
    assert all(3 * MIB <= place < 4 * MIB for place in changed)


def test_an_arena_without_data_stays_as_it_is(tmp_path: Path):
    arena = tmp_path / "arena"
    with arena.open("wb") as file:
        file.truncate(MIB)
    assert flip_in_arena(arena, random.Random(1)) == 0
    assert arena.read_bytes() == bytes(MIB)


def test_a_journal_is_hit_anywhere(tmp_path: Path):
    journal = tmp_path / "journal"
    journal.write_bytes(bytes(1000))
    assert flip_in_journal(journal, random.Random(1)) == JOURNAL_FLIPS
    assert len(differences(bytes(1000), journal.read_bytes())) == JOURNAL_FLIPS
    journal.write_bytes(b"")
    assert flip_in_journal(journal, random.Random(1)) == 0
