"""Releases with an upper bound of map attempts."""

from __future__ import annotations

import os

import pytest

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.store.errors import ReleasedDuringCommit
from sluice.shuffle.taskmanager.store.releases import MAX_KEPT, Releases
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.store import KEY, Gate, fetch, put, settle, write_region


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


def test_a_late_release_does_not_lower_the_bound():
    releases = Releases()
    releases.add(KEY, 10)
    releases.add(KEY, 4)
    assert releases.has(attempt(9))
    assert not releases.has(attempt(10))


def test_without_a_bound_only_copies_are_refused():
    releases = Releases()
    assert not releases.has_copy(attempt(1))
    releases.add(KEY, None)
    assert releases.has_copy(attempt(1))
    assert not releases.has(attempt(1))


def test_the_latest_releases_are_remembered():
    releases = Releases()
    for number in range(MAX_KEPT + 1):
        releases.add(KEY._replace(shuffle_id=number), 10)
    assert not releases.has(MapAttemptKey(KEY._replace(shuffle_id=0), 1))
    assert releases.has(MapAttemptKey(KEY._replace(shuffle_id=MAX_KEPT), 1))
