"""Rows that are refused while they are written do not come back at a restart."""

from __future__ import annotations

import os
import shutil

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.errors import StorageError
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from tests.support.store import (
    KEY,
    Gate,
    content,
    extent_of,
    on_disks,
    put,
    settle,
    used,
    write_region,
)

LENGTH = 20_000
ATTEMPT = MapAttemptKey(KEY, 7)
OTHER = ShuffleKey("app-1", 5)


async def test_a_commit_that_was_given_up_does_not_come_back(tmp_path, monkeypatch):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    secured = await write_region(store, content(1, LENGTH), [LENGTH])
    await store.secure(ATTEMPT, 1, [secured])
    copy = await write_region(store, content(7, LENGTH), [LENGTH])
    with monkeypatch.context() as held:
        gate = Gate(held, os, "pwrite")
        committing = store.commit(MapOutput(KEY, 7, 1, (copy,), "origin", 2))
        await gate.wait_entered()
        store.drop_open(ATTEMPT)
        gate.proceed.set()
        with pytest.raises(StorageError, match="given up"):
            await committing
    release_regions([copy])
    await settle(store)
    for attempt in range(3):  # the space has other bytes now
        await put(store, attempt, LENGTH, key=OTHER)
    store.release_shuffle(OTHER)
    await settle(store)
    assert used(store) == [0]
    shutil.copytree(tmp_path / "a", tmp_path / "killed" / "a")
    await store.close()
    again = ShuffleStore.open(on_disks(tmp_path / "killed", "a"))
    assert again.lookup(KEY, 7) is None
    assert used(again) == [0]
    await again.close()


@pytest.mark.parametrize("is_released", [False, True])
async def test_bytes_of_a_refused_row_stay_until_the_journal_undoes_it(
    tmp_path, monkeypatch, is_released
):
    """Otherwise a kill between the two writes would leave a row with the bytes of another."""
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    region = await write_region(store, content(7, LENGTH), [LENGTH])
    output = MapOutput(KEY, 7, 1, (region,))
    row_gate = Gate(monkeypatch, os, "pwrite")
    committing = store.commit(output)
    await row_gate.wait_entered()
    if is_released:
        store.release_shuffle(KEY)
    else:
        store.drop_open(ATTEMPT)
    undo_gate = Gate(monkeypatch, os, "pwrite")
    row_gate.proceed.set()
    with pytest.raises(StorageError):
        await committing
    release_regions([region])
    await undo_gate.wait_entered()
    assert used(store) != [0]
    undo_gate.proceed.set()
    await settle(store)
    assert used(store) == [0]
    await store.close()


async def test_secured_rows_do_not_come_back_when_their_commit_is_dropped(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await store.secure(ATTEMPT, 1, [await write_region(store, b"x" * LENGTH, [LENGTH])], "process")
    first = store.open_output(ATTEMPT)
    assert first is not None
    second = await write_region(store, b"y" * LENGTH, [LENGTH])
    output = MapOutput(KEY, 7, 1, (*first.take(), second))
    await store.commit(output)
    assert extent_of(output)
    store.drop(output, "was damaged")
    await settle(store)
    await store.close()
    again = ShuffleStore.open(on_disks(tmp_path, "a"))
    assert again.open_outputs() == []
    assert used(again) == [0]
    await again.close()
