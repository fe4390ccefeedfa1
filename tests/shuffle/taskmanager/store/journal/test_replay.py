"""Rows of several journals, replayed together."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.journal.journal import Entry, Journal
from sluice.shuffle.taskmanager.store.journal.journal_reader import FoundJournal
from sluice.shuffle.taskmanager.store.journal.replay import Replayed, replay
from sluice.shuffle.taskmanager.store.journal.rows import (
    _COMMIT,
    _SECURE,
    _pack,
    pack_drop,
    pack_drop_committed,
    pack_lose,
    pack_release_application,
    pack_release_shuffle,
)

if TYPE_CHECKING:
    from types import FrameType

A, B = b"arena--a", b"arena--b"
KEY = ShuffleKey("app", 0)
OTHER = ShuffleKey("app", 1)


def region(arena: bytes, offset: int = 0) -> tuple[object, ...]:
    return arena, offset, 0, 4, array("I", [0, 10]).tobytes(), 7


def committed(attempt: int, *arenas: bytes, key: ShuffleKey = KEY) -> bytes:
    return _pack((_COMMIT, *key, attempt, 1, [region(arena) for arena in arenas]))


def secured(attempt: int, first: int, *arenas: bytes, offset: int = 0) -> bytes:
    return _pack((_SECURE, *KEY, attempt, 1, first, [region(arena, offset) for arena in arenas]))


def secured_of(key: ShuffleKey) -> bytes:
    return _pack((_SECURE, *key, 1, 1, 0, [region(A)]))


def journal(
    *rows: tuple[int, bytes], releases: tuple[tuple[int, bytes], ...] = (), doubtful: int = 0
) -> FoundJournal:
    """A journal of run 1 whose rows have numbers."""
    entries = [Entry(1, number, row) for number, row in rows]
    second = [Entry(1, number, row) for number, row in releases]
    not_read = Journal(Path("journal-00000001-00000001"), A, (-1, -1), (0, 0))
    return FoundJournal(not_read, entries, second, [], doubtful, uneven=False)


def attempts(result: Replayed) -> list[int]:
    return sorted(each.row.map_attempt_id for each in result.commits)


def test_a_map_output_counts_if_all_its_journals_have_the_row() -> None:
    whole, half = committed(1, A, B), committed(2, A, B)
    result = replay({A: journal((1, whole), (2, half)), B: journal((1, whole))})
    assert attempts(result) == [1]
    assert result.broken == 1


def test_copies_of_a_row_are_known_when_a_rewrite_has_moved_one() -> None:
    row = committed(1, A, B)
    result = replay({A: journal((1, row)), B: journal((5, row))})
    assert attempts(result) == [1]


@pytest.mark.parametrize("of_all", [False, True])
def test_a_release_in_any_journal_undoes_the_rows_before_it(of_all: bool) -> None:
    release = pack_release_application("app") if of_all else pack_release_shuffle(KEY)
    first = journal((1, committed(1, A)), (5, committed(4, A)), (2, committed(9, A, key=OTHER)))
    result = replay({A: first, B: journal((3, committed(2, B)), (4, release))})
    assert attempts(result) == ([4] if of_all else [4, 9])
    assert result.undone == {A}, "its journal has not this release"


def test_a_release_counts_that_only_the_second_file_has() -> None:
    found = {A: journal((1, committed(1, A)), releases=((2, pack_release_shuffle(KEY)),))}
    assert attempts(replay(found)) == []


def test_rows_of_an_arena_before_it_was_lost_do_not_count() -> None:
    lose = pack_lose(A)
    rows = (1, committed(1, A)), (2, committed(2, A, B)), (5, committed(5, A))
    result = replay(
        {
            A: journal(*rows),
            B: journal(
                (2, committed(2, A, B)), (3, lose), (4, committed(4, B)), releases=((3, lose),)
            ),
        }
    )
    assert attempts(result) == [4, 5]


def test_rows_before_damage_of_the_releases_do_not_count() -> None:
    rows = (1, committed(1, A)), (2, committed(2, A)), (3, committed(3, A))
    assert attempts(replay({A: journal(*rows, doubtful=2)})) == [3]


def test_secured_regions_count_up_to_a_row_that_is_not_whole() -> None:
    rows = (1, secured(1, 0, A)), (2, secured(1, 1, A)), (3, secured(1, 2, A, B))
    result = replay({A: journal(*rows), B: journal()})
    assert [[each.row.first_region for each in rows] for rows in result.secured] == [[0, 1]]


def test_secured_regions_without_the_first_ones_do_not_count() -> None:
    assert replay({A: journal((1, secured(1, 1, A)))}).secured == []


def test_a_map_output_that_was_begun_anew_has_its_new_regions() -> None:
    rows = (1, secured(1, 0, A)), (2, secured(1, 1, A)), (3, secured(1, 0, A, offset=4096))
    (found,) = replay({A: journal(*rows)}).secured
    assert [region.offset for each in found for region in each.row.regions] == [4096]


def test_a_commit_takes_the_place_of_what_was_secured() -> None:
    result = replay({A: journal((1, secured(1, 0, A)), (2, committed(1, A)))})
    assert attempts(result) == [1]
    assert result.secured == []


def test_given_up_rows_are_undone() -> None:
    rows = (1, secured(1, 0, A)), (2, secured(2, 0, A)), (3, pack_drop(*MapAttemptKey(KEY, 1)))
    (found,) = replay({A: journal(*rows)}).secured
    assert found[0].row.map_attempt_id == 2


def test_a_drop_of_a_committed_map_output_undoes_its_secured_rows() -> None:
    rows = (
        (1, secured(1, 0, A)),
        (2, committed(1, A)),
        (3, pack_drop_committed(KEY, 1)),
        (4, secured(2, 0, A)),
    )
    result = replay({A: journal(*rows)})
    assert attempts(result) == []
    assert [each.row.map_attempt_id for (each,) in result.secured] == [2]


def test_a_drop_of_secured_rows_leaves_the_commit_of_a_copy() -> None:
    rows = (1, secured(1, 0, A)), (2, committed(1, A)), (3, pack_drop(KEY, 1))
    result = replay({A: journal(*rows)})
    assert attempts(result) == [1]
    assert result.secured == []


def calls_to_replay(count: int) -> int:
    """Return how many functions are called to replay a release of half of all shuffles each."""
    keys = [ShuffleKey("app", number) for number in range(2 * count)]
    rows = [*map(secured_of, keys), *map(pack_release_shuffle, keys[:count])]
    found = {A: journal(*enumerate(rows, 1))}
    calls = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(called)
    try:
        result = replay(found)
    finally:
        sys.setprofile(None)
    assert len(result.secured) == count
    return calls


@pytest.mark.interpreted
def test_each_release_takes_the_same_work_however_much_is_secured() -> None:
    assert calls_to_replay(200) < 2.5 * calls_to_replay(100)
