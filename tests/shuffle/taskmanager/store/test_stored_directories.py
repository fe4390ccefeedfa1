"""Directories read without a TaskManager: as a start would adopt them, and nothing is changed."""

from __future__ import annotations

import os

import pytest

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_directories import read_directories
from tests.support.store import KEY, config, on_disks, put, write_region


def files(directory):
    """Return every file below a directory with its content and time of change."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def shown(directories, *, verify=True):
    stored = read_directories(directories)
    outputs = stored.outputs(lambda _: True, verify=verify)
    return stored, {each.map_attempt_id: each for _, each in outputs}


async def test_what_a_start_would_adopt_is_found_and_nothing_is_changed(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    for attempt in range(6):
        await put(store, attempt, 300_000)
    store.release_shuffle(KEY, 2)
    region = await write_region(store, b"abcd", [4])
    await store.secure(MapAttemptKey(KEY, 9), 1, [region], "p")
    await store.close()
    before = files(tmp_path)
    stored, outputs = shown([tmp_path / "data", tmp_path / "memory"])
    assert files(tmp_path) == before
    assert stored.problems == []
    assert sorted(outputs) == [2, 3, 4, 5, 9]
    assert outputs[9].state == "secured"
    regions = [region for each in outputs.values() for region in each.regions]
    assert [region.problem for region in regions] == [""] * 5
    assert {region.directory for region in regions} == {
        str(tmp_path / "data"),
        str(tmp_path / "memory"),
    }


async def test_directories_are_read_beside_a_running_store(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    await put(store, 1, 1000)
    _, outputs = shown([tmp_path / "data", tmp_path / "memory"])
    assert list(outputs) == [1]
    await put(store, 2, 1000)  # it can still write
    await store.close()


async def test_a_flipped_byte_is_found_only_when_verified(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await put(store, 1, 5000)
    await put(store, 2, 5000)
    await store.close()
    (arena,) = (tmp_path / "a").glob("arena-*")
    data = bytearray(arena.read_bytes())
    data[10] ^= 1
    arena.write_bytes(data)
    _, outputs = shown([tmp_path / "a"])
    problems = {number: each.regions[0].problem for number, each in outputs.items()}
    assert problems == {1: "its bytes do not have their checksum", 2: ""}
    _, unread = shown([tmp_path / "a"], verify=False)
    assert [each.regions[0].problem for each in unread.values()] == ["", ""]
    os.truncate(arena, 100)
    _, cut = shown([tmp_path / "a"])
    assert "its arena ends at byte 100" in cut[1].regions[0].problem


async def test_damage_in_a_journal_is_reported(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    for attempt in range(3):
        await put(store, attempt, 1000)
    await store.close()
    (journal,) = (tmp_path / "a").glob("journal-*")
    data = bytearray(journal.read_bytes())
    data[60] ^= 1
    journal.write_bytes(data)
    stored, outputs = shown([tmp_path / "a"])
    assert any("incomplete or damaged" in each for each in stored.problems)
    assert len(outputs) == 2


async def test_a_missing_directory_makes_its_map_outputs_incomplete(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path))
    for attempt in range(4):
        await put(store, attempt, 1000)
    await store.close()
    _, both = shown([tmp_path / "a", tmp_path / "b"])
    assert len(both) == 4
    stored, one = shown([tmp_path / "a"])
    assert 0 < len(one) < 4
    assert stored.problems == []


async def test_directories_of_data_processes_are_found_in_theirs(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path / "process-0", "a"))
    await put(store, 1, 1000)
    await store.close()
    _, outputs = shown([tmp_path / "process-0"])
    assert list(outputs) == [1]


@pytest.mark.parametrize("name", ["", "missing"])
def test_another_directory_is_refused_with_the_remedy(tmp_path, name):
    with pytest.raises(StorageUnavailable, match="storage directory"):
        read_directories([tmp_path / name])


async def test_another_format_is_refused(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await store.close()
    (journal,) = (tmp_path / "a").glob("journal-*")
    journal.write_bytes(journal.read_bytes().replace(b"journal 2", b"journal 7"))
    with pytest.raises(StorageUnavailable, match="format 7"):
        read_directories([tmp_path / "a"])


async def test_space_that_is_reused_meanwhile_is_not_damage(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    for attempt in range(20):
        await put(store, attempt, 200_000)
    stored = read_directories([tmp_path / "a"])
    store.release_shuffle(KEY, 2)
    for attempt in range(100, 110):
        await put(store, attempt, 200_000 + attempt)
    rows = list(stored.rows())
    assert any(stored.output(each, verify=True).regions[0].problem for each in rows)
    outputs = stored.outputs(lambda _: True, verify=True)
    assert [each.map_attempt_id for _, each in outputs if each.regions[0].problem] == []
    assert {each.map_attempt_id for _, each in outputs} >= set(range(2, 20))
    await store.close()


async def test_a_pipe_is_not_read(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await put(store, 1, 5000)
    await store.close()
    (arena,) = (tmp_path / "a").glob("arena-*")
    arena.unlink()
    os.mkfifo(arena)
    _, outputs = shown([tmp_path / "a"])
    assert "is not a regular file" in outputs[1].regions[0].problem
    (journal,) = (tmp_path / "a").glob("journal-*")
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(StorageUnavailable, match=f"{journal.name} is not a regular file"):
        read_directories([tmp_path / "a"])


async def test_a_missing_file_of_releases_is_damage_by_name(tmp_path):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await put(store, 1, 5000)
    await store.close()
    (releases,) = (tmp_path / "a").glob("releases-*")
    releases.unlink()
    stored, outputs = shown([tmp_path / "a"])
    assert list(outputs) == [1]
    (problem,) = stored.problems
    assert releases.name in problem
    assert "missing" in problem
