"""A new daemon with directories that are broken, lost, in use, or were away."""

import os
import shutil

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageInUse, StorageUnavailable
from sluice.shuffle.taskmanager.store.files.journal_places import generation_of, run_of
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.shuffle.taskmanager.store.journal.rig import (
    filled,
    journal_in,
    kept_attempts,
)
from tests.support.store import (
    KEY,
    config,
    open_descriptors,
    put,
)


async def test_a_journal_that_is_no_file_leaves_its_directory_out(tmp_path, caplog):
    journal = await filled(tmp_path)
    journal.unlink()
    journal.mkdir()
    with pytest.raises(StorageUnavailable, match="Is a directory"):
        ShuffleStore.open(config(tmp_path))
    changes = {"data_directories": (tmp_path / "data", tmp_path / "good")}
    assert await kept_attempts(tmp_path, **changes) == [0, 1]
    assert "Is a directory" in caplog.text


async def test_a_second_daemon_on_any_of_the_directories_is_refused(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    descriptors = open_descriptors()
    free = tmp_path / "free"
    for changes in (
        {"memory_directory": free / "memory"},
        {"data_directories": (free / "data",)},
        {"data_directories": (free / "data", tmp_path / "data"), "memory_directory": None},
    ):
        with pytest.raises(StorageInUse, match=str(os.getpid())):
            ShuffleStore.open(config(tmp_path, **changes))
    assert open_descriptors() == descriptors
    await store.close()
    await ShuffleStore.open(config(tmp_path)).close()


async def test_a_bad_directory_is_left_out_and_the_others_go_on(tmp_path, caplog):
    bad = tmp_path / "bad"
    bad.touch()
    directories = (bad, tmp_path / "good")
    await filled(tmp_path, data_directories=directories, memory_directory=bad)
    assert "left out" in caplog.text
    store = ShuffleStore.open(
        config(tmp_path, data_directories=directories, memory_directory=bad / "below")
    )
    good, *left_out = store.tiers()
    assert good.healthy
    assert [(tier.tier, tier.healthy, tier.directory) for tier in left_out] == [
        ("disk", False, str(bad)),
        ("memory", False, str(bad / "below")),
    ]
    assert all(tier.reason for tier in left_out)
    assert len(store.map_outputs(KEY)) == 4
    await store.close()


async def test_the_arena_file_that_cannot_be_opened_leaves_its_directory_out(tmp_path):
    bad = tmp_path / "bad"
    (bad / f"arena-2-{'0' * 16}.dat").mkdir(parents=True)
    store = ShuffleStore.open(config(tmp_path, data_directories=(bad, tmp_path / "good")))
    assert [tier.healthy for tier in store.tiers()] == [True, True, False]
    await store.close()


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_lost_directory_costs_its_own_outputs_only(tmp_path, lost):
    directories = tmp_path / "a", tmp_path / "b"
    changes = {"data_directories": directories, "memory_tier_bytes": 0}
    await filled(tmp_path, **changes)
    shutil.rmtree(directories[lost])
    assert await kept_attempts(tmp_path, **changes) == [1 - lost, 3 - lost]
    assert await kept_attempts(tmp_path, **changes) == [1 - lost, 3 - lost]
    assert await kept_attempts(tmp_path, **changes | {"data_directories": directories[::-1]}) == [
        1 - lost,
        3 - lost,
    ]


async def test_a_directory_that_was_away_is_emptied(tmp_path, caplog):
    """Its outputs counted as lost, and what was released meanwhile must not come back."""
    a, b = tmp_path / "a", tmp_path / "b"
    changes = {"data_directories": (a, b), "memory_tier_bytes": 0}
    await filled(tmp_path, attempts=6, **changes)
    a.rename(tmp_path / "away")
    a.touch()  # the disk is gone
    store = ShuffleStore.open(config(tmp_path, **changes))
    assert sorted(store.map_outputs(KEY)) == [1, 3, 5]
    store.release_shuffle(KEY)
    for attempt in (10, 11, 12):
        await put(store, attempt, 400_000)
    await store.close()
    a.unlink()
    (tmp_path / "away").rename(a)
    assert await kept_attempts(tmp_path, **changes) == [10, 11, 12]
    assert "was away in run 2" in caplog.text
    assert await kept_attempts(tmp_path, **changes) == [10, 11, 12]


async def test_a_start_that_was_cut_short_takes_no_directory_for_one_that_was_away(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    changes = {"data_directories": (a, b), "memory_tier_bytes": 0}
    await filled(tmp_path, **changes)
    path = journal_in(a)
    path.rename(path.with_name(f"journal-{generation_of(path):08d}-{run_of(path) + 1:08d}"))
    assert await kept_attempts(tmp_path, **changes) == [0, 1, 2, 3]


async def test_no_usable_data_directory_is_an_error_that_names_them(tmp_path):
    bad = tmp_path / "bad"
    bad.touch()
    descriptors = open_descriptors()
    with pytest.raises(StorageUnavailable, match="bad") as caught:
        ShuffleStore.open(config(tmp_path, data_directories=(bad, bad / "below")))
    assert "data_directories" in caught.value.remedy
    assert open_descriptors() == descriptors


async def test_a_directory_without_a_place_for_a_journal_takes_nothing_new(tmp_path):
    (tmp_path / "a" / "journal.new").mkdir(parents=True)
    changes = {"data_directories": (tmp_path / "a", tmp_path / "b"), "memory_tier_bytes": 0}
    store = ShuffleStore.open(config(tmp_path, **changes))
    bad, good = store.tiers()
    assert (bad.healthy, good.healthy) == (False, True)
    assert "its journal cannot be written" in bad.reason
    for attempt in range(3):
        await put(store, attempt, 100)
    await store.close()
