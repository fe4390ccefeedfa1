"""Releases with an upper bound of map attempts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts, Resource
from sluice.shuffle.taskmanager.store.errors import ReleasedDuringCommit
from sluice.shuffle.taskmanager.store.releases import (
    INTERVAL_BYTES,
    ReleasedShuffles,
    Releases,
)
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.store import KEY, Gate, fetch, put, settle, write_region

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore


def attempt(number: int) -> MapAttemptKey:
    return MapAttemptKey(KEY, number)


async def test_attempts_at_or_above_the_bound_survive_release_and_restart(opened):
    store = opened()
    for number in range(6):
        await put(store, number, 100)
    kept = await fetch(store, store.lookup(KEY, 5))
    assert store.release_shuffle(KEY, 4) == 400
    assert sorted(store.map_outputs(KEY)) == [4, 5]
    assert store.statistics().map_outputs == 2
    assert store.statistics().stored_bytes == 200
    assert store.release_shuffle(KEY, 4) == 0
    await settle(store)
    await store.close()
    again = opened()
    assert sorted(again.map_outputs(KEY)) == [4, 5]
    assert await fetch(again, again.lookup(KEY, 5)) == kept


async def test_secured_regions_and_running_commits_below_the_bound_are_released(
    opened, monkeypatch
):
    store = opened()
    for number in (1, 9):
        await store.secure(attempt(number), 1, [await write_region(store, b"x", [1])])
    regions = [await write_region(store, b"y", [1]) for _ in range(2)]
    gate = Gate(monkeypatch, os, "pwrite")
    old = store.commit(MapOutput(KEY, 2, 1, (regions[0],)))
    await gate.wait_entered()
    new = store.commit(MapOutput(KEY, 8, 1, (regions[1],)))
    store.release_shuffle(KEY, 8)
    gate.proceed.set()
    await new
    with pytest.raises(ReleasedDuringCommit):
        await old
    regions[0].release()
    assert list(store.map_outputs(KEY)) == [8]
    assert [each.map_attempt_id for each in store.open_outputs()] == [9]
    await settle(store)
    await store.close()
    again = opened()
    assert list(again.map_outputs(KEY)) == [8]
    assert [each.map_attempt_id for each in again.open_outputs()] == [9]


@pytest.mark.parametrize("kept_rows", [True, False], ids=["journal", "rewritten"])
async def test_releases_survive_restarts_until_the_application_ends(opened, kept_rows):
    store = opened()
    await put(store, 1, 100)
    for shuffle_id in range(5000):
        store.release_shuffle(KEY._replace(shuffle_id=shuffle_id), 10 + shuffle_id)
    store.release_shuffle(KEY._replace(shuffle_id=9999))
    if not kept_rows:
        store._storage.stale.update(store._journal.files.journals)
        for arena in list(store._journal.files.journals):
            assert await store._journal.restore(arena)
    await settle(store)
    await store.close()
    for _ in range(2):
        store = opened()
        assert store.applications() == [KEY.application_id]
        assert store.releases.has(MapAttemptKey(KEY._replace(shuffle_id=4999), 5008))
        assert not store.releases.has(MapAttemptKey(KEY._replace(shuffle_id=4999), 5009))
        assert store.releases.has(MapAttemptKey(KEY._replace(shuffle_id=0), 9))
        assert store.releases.has_copy(MapAttemptKey(KEY._replace(shuffle_id=9999), 1))
        account = store.accounts.of(KEY.application_id)
        assert account.amount(Resource.METADATA_BYTES) == 5001 * INTERVAL_BYTES
        await store.close()
    store = opened()
    store.release_application(KEY.application_id)
    assert store.applications() == []
    assert account_is_empty(store)
    await settle(store)
    await store.close()
    again = opened()
    assert again.applications() == []
    assert account_is_empty(again)


def account_is_empty(store: ShuffleStore) -> bool:
    return not any(store.accounts.of(KEY.application_id).held)


def released(shuffle_id: int, number: int) -> MapAttemptKey:
    return MapAttemptKey(KEY._replace(shuffle_id=shuffle_id), number)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(-2, 4))), max_size=60)
)
def test_intervals_are_what_a_dictionary_would_be(added):
    releases = Releases(Accounts())
    model: dict[int, int | None] = {}
    for shuffle_id, end in added:
        before = model.get(shuffle_id)
        if end is not None and before is not None:
            end = max(end, before)
        is_new = shuffle_id not in model or model[shuffle_id] != end
        assert releases.add(KEY._replace(shuffle_id=shuffle_id), end) == is_new
        model[shuffle_id] = end
    for shuffle_id in range(14):
        for number in range(-3, 6):
            end = model.get(shuffle_id, -9)
            attempt = released(shuffle_id, number)
            assert releases.has(attempt) == (end is not None and number < end)
            assert releases.has_copy(attempt) == (end is None or number < end)
    ((_, intervals),) = list(releases.items()) or [("", ReleasedShuffles())]
    assert len(intervals) <= len(model)
    assert releases.journal_bytes == len(intervals) * INTERVAL_BYTES


async def test_a_repeated_release_is_written_once_while_a_directory_hangs(opened, tmp_path):
    store = opened()
    store._storage.hanging.add(tmp_path / "hangs")
    for _ in range(3):
        store.release_shuffle(KEY)
        store.release_application("ended")
        await settle(store)
    size = store.statistics().journal_bytes
    kept = len(store._journal.kept_releases())
    for _ in range(20):
        store.release_shuffle(KEY)
        store.release_application("ended")
        await settle(store)
    assert store.statistics().journal_bytes == size
    assert len(store._journal.kept_releases()) == kept


def test_shuffles_released_together_are_one_interval():
    releases = Releases(Accounts())
    for shuffle_id in reversed(range(100_000)):
        releases.add(KEY._replace(shuffle_id=shuffle_id), 7)
    assert releases.journal_bytes == INTERVAL_BYTES
    assert releases.has(released(50_000, 6))


def test_a_late_release_does_not_lower_the_bound():
    releases = Releases(Accounts())
    releases.add(KEY, 10)
    releases.add(KEY, 4)
    assert releases.has(attempt(9))
    assert not releases.has(attempt(10))


def test_without_a_bound_only_copies_are_refused():
    releases = Releases(Accounts())
    assert not releases.has_copy(attempt(1))
    releases.add(KEY, None)
    assert releases.has_copy(attempt(1))
    assert not releases.has(attempt(1))
