"""A new daemon after kill -9, damage, lost files, foreign locks and broken directories."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from sluice.protocol.messages import EVERY_SUBPARTITION
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.accounts import Accounts
from sluice.shuffle.taskmanager.store.errors import StorageInUse, StorageUnavailable
from sluice.shuffle.taskmanager.store.journal import Journal, generation_of
from sluice.shuffle.taskmanager.store.outputs import MapOutput
from sluice.shuffle.taskmanager.store.recovery import open_storage
from sluice.shuffle.taskmanager.store.rows import pack_commit
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import (
    KEY,
    config,
    content,
    fetch,
    open_descriptors,
    put,
    used,
    write_region,
)


async def filled(directory, attempts=4, length=400_000, **changes):
    """A store with some outputs, closed; returns the journal's path."""
    store = ShuffleStore.open(config(directory, **changes))
    for attempt in range(attempts):
        await put(store, attempt, length)
    await store.close()
    return store.statistics().journal_path


async def kept_attempts(directory, **changes):
    """Attempts that a new store finds, after checking their bytes."""
    store = ShuffleStore.open(config(directory, **changes))
    outputs = store.map_outputs(KEY)
    for attempt, output in outputs.items():
        assert await fetch(store, output) == content(attempt, output.total_bytes)
    attempts = sorted(outputs)
    await store.close()
    return attempts


def expected_bytes(kind, attempt, length):
    if kind == "one":
        return content(attempt, length)
    return content(attempt, 1 + attempt % 7000) + content(attempt, 10_000)


def run_and_kill(directory, seed, *, after_lines):
    """Run the daemon, kill it after it has said so much, return all whole lines."""
    lines = []
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.killed_daemon",
            str(directory),
            str(seed),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        for line in daemon.stdout:
            lines.append(line)
            if len(lines) == after_lines:
                os.kill(daemon.pid, signal.SIGKILL)
        assert daemon.wait(20) == -signal.SIGKILL
    return [line for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(3))
async def test_after_kill_9_every_acknowledged_output_is_there_byte_equal(tmp_path, seed):
    acknowledged: dict[tuple[ShuffleKey, int], bytes] = {}
    releasing: set[ShuffleKey] = set()
    lines = run_and_kill(tmp_path, seed, after_lines=300 + 50 * seed)
    for line in lines:
        kind, application, shuffle, *rest = line.split()
        key = ShuffleKey(application, int(shuffle))
        if kind == "releasing":
            # Until the daemon's next acknowledgement for it we cannot know how far it came.
            acknowledged = {k: v for k, v in acknowledged.items() if k[0] != key}
            releasing.add(key)
        else:
            attempt, length = int(rest[0]), int(rest[-1])
            acknowledged[key, attempt] = expected_bytes(kind, attempt, length)
            releasing.discard(key)
    assert len(acknowledged) > 20

    store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=400_000))
    found = {
        (entry.key, attempt): output
        for entry in store.shuffles()
        for attempt, output in store.map_outputs(entry.key).items()
    }
    for name, data in acknowledged.items():
        assert await fetch(store, found[name]) == data, name
        for region in found[name].regions:
            await store.verify(region)
    # beyond those: at most one commit per worker whose acknowledgement we did not get to read
    extra = [name for name in found.keys() - acknowledged.keys() if name[0] not in releasing]
    assert len(extra) <= 4
    occupied = {
        (region.extent.tier, region.extent.offset)
        for output in found.values()
        for region in output.regions
        if region.extent is not None
    }
    assert sum(tier.extents for tier in store.tiers()) == len(occupied)
    # the space that was in no commit can be used, and all of it comes back
    await put(store, 10**6, 100_000)
    for application in store.applications():
        store.release_application(application)
    assert used(store) == [0, 0]
    await store.close()


async def test_a_clean_restart_keeps_id_outputs_and_journal(tmp_path):
    journal = await filled(tmp_path)
    store = ShuffleStore.open(config(tmp_path))
    identity = store.taskmanager_id
    assert store.statistics().adopted_map_outputs == 4
    assert store.statistics().journal_path == journal
    before = used(store)
    await put(store, 50, 100_000)
    await store.close()
    again = ShuffleStore.open(config(tmp_path))
    assert again.taskmanager_id == identity
    assert sorted(again.map_outputs(KEY)) == [0, 1, 2, 3, 50]
    assert sum(used(again)) == sum(before) + 102_400
    await again.close()


async def test_a_torn_journal_costs_the_unacknowledged_commit_only(tmp_path):
    journal = await filled(tmp_path)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    assert await kept_attempts(tmp_path) == [0, 1, 2]
    assert await kept_attempts(tmp_path) == [0, 1, 2]


async def test_a_damaged_journal_is_reported_and_its_beginning_kept(tmp_path, caplog):
    journal = await filled(tmp_path)
    broken = bytearray(journal.read_bytes())
    broken[-80] ^= 1  # in the third of the four records
    journal.write_bytes(broken)
    assert await kept_attempts(tmp_path) == [0, 1]
    assert "is damaged" in caplog.text
    assert (journal.parent / "journal.damaged").read_bytes() == broken
    caplog.clear()
    assert await kept_attempts(tmp_path) == [0, 1]
    # The event loop names slow coroutines in records of its own, this test's among them.
    own = [record for record in caplog.records if record.name.startswith("sluice")]
    assert not [record for record in own if "damaged" in record.getMessage()]


async def test_an_unreadable_journal_starts_empty(tmp_path, caplog):
    journal = await filled(tmp_path)
    journal.unlink()
    journal.mkdir()
    assert await kept_attempts(tmp_path) == []
    assert "Is a directory" in caplog.text


async def test_a_record_of_another_version_is_reported_and_skipped(tmp_path, caplog):
    journal = await filled(tmp_path)
    size = journal.stat().st_size
    newer = Journal(journal, os.open(journal, os.O_RDWR), size)
    newer.append([b"\x92\x09\x01"])
    newer.close()
    assert await kept_attempts(tmp_path) == [0, 1, 2, 3]
    assert "not understood" in caplog.text


async def test_after_a_reboot_outputs_of_the_memory_tier_are_forgotten(tmp_path, caplog):
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "memory")
    store = ShuffleStore.open(config(tmp_path))
    assert store.statistics().forgotten_map_outputs == 2
    assert "its arena is gone" in caplog.text
    await put(store, 10, 400_000)  # lands where a forgotten one lay
    await store.close()
    assert await kept_attempts(tmp_path) == [2, 3, 10]


async def test_an_output_with_one_lost_region_is_forgotten_whole(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    regions = [await write_region(store, content(1, n), [n]) for n in (1000, 2_000_000)]
    await store.commit(MapOutput(KEY, 1, 1, tuple(regions)))
    await store.close()
    (arena,) = (tmp_path / "data").glob("arena-*")
    os.truncate(arena, 4096)
    again = ShuffleStore.open(config(tmp_path))
    assert again.lookup(KEY, 1) is None
    assert used(again) == [0, 0]
    await again.close()


async def test_rows_that_overlap_are_not_both_adopted(tmp_path, caplog):
    store = ShuffleStore.open(config(tmp_path))
    output = await put(store, 1, 1000)
    twin = pack_commit(MapOutput(KEY, 2, 4, output.regions))
    journal = store._journal.journal
    journal.append([twin])
    await store.close()
    assert await kept_attempts(tmp_path) == [1]
    assert "overlaps" in caplog.text


async def test_the_newest_generation_wins_and_older_ones_go(tmp_path):
    journal = await filled(tmp_path)
    Journal.create(journal.parent, 2, []).close()
    newer = Journal.create(journal.parent, generation_of(journal) + 5, [])
    newer.close()
    assert await kept_attempts(tmp_path) == []
    assert sorted(path.name for path in journal.parent.glob("journal*")) == [newer.path.name]


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
    assert [(tier.kind, tier.healthy, tier.directory) for tier in left_out] == [
        ("disk", False, bad),
        ("memory", False, bad / "below"),
    ]
    assert all(tier.reason for tier in left_out)
    assert len(store.map_outputs(KEY)) == 4
    await store.close()


async def test_the_arena_file_that_cannot_be_opened_leaves_its_directory_out(tmp_path):
    bad = tmp_path / "bad"
    (bad / f"arena-{'0' * 16}.dat").mkdir(parents=True)
    store = ShuffleStore.open(config(tmp_path, data_directories=(bad, tmp_path / "good")))
    assert [tier.healthy for tier in store.tiers()] == [True, True, False]
    await store.close()


async def test_the_journal_follows_the_first_healthy_directory(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    await filled(tmp_path, data_directories=(a, b))
    journal = await filled(tmp_path, attempts=0, data_directories=(b, a))
    assert journal.parent == b
    assert not list(a.glob("journal*"))
    assert await kept_attempts(tmp_path, data_directories=(b, a)) == [0, 1, 2, 3]


async def test_a_directory_that_comes_back_does_not_bring_its_stale_journal(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    await filled(tmp_path, attempts=6, data_directories=(a, b))
    a.rename(tmp_path / "away")
    a.touch()  # the disk is gone
    store = ShuffleStore.open(config(tmp_path, data_directories=(a, b)))
    assert store.map_outputs(KEY) == {}
    for attempt in (10, 11, 12):
        await put(store, attempt, 400_000)
    await store.close()
    a.unlink()
    (tmp_path / "away").rename(a)
    # Journals of the same second are a matter of this test only: give the old one a past time.
    (old,) = a.glob("journal-*")
    old.rename(a / f"journal-{generation_of(old) - 60:08d}")
    assert await kept_attempts(tmp_path, data_directories=(a, b)) == [10, 11, 12]
    assert await kept_attempts(tmp_path, data_directories=(a, b)) == [10, 11, 12]


async def test_many_rows_are_rewritten_in_pieces(tmp_path):
    journal = await filled(tmp_path, attempts=0)
    rows = [b"\x92\x09\xc5\x80\x00" + bytes(32768)] * 70  # 2.3 MB that no one understands
    writer = Journal(journal, os.open(journal, os.O_RDWR), journal.stat().st_size)
    writer.append(rows)
    writer.close()
    copy = Journal.create(tmp_path, 1, rows)
    copy.close()
    assert copy.path.read_bytes() == journal.read_bytes()
    assert await kept_attempts(tmp_path) == []
    assert sum(p.stat().st_size for p in journal.parent.glob("journal-*")) < 100


async def test_no_usable_data_directory_is_an_error_that_names_them(tmp_path):
    bad = tmp_path / "bad"
    bad.touch()
    descriptors = open_descriptors()
    with pytest.raises(StorageUnavailable, match="bad") as caught:
        ShuffleStore.open(config(tmp_path, data_directories=(bad, bad / "below")))
    assert "data_directories" in caught.value.remedy
    assert open_descriptors() == descriptors


async def test_no_place_for_a_journal_is_an_error(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "journal.new").mkdir()
    descriptors = open_descriptors()
    with pytest.raises(StorageUnavailable, match="no directory takes a journal"):
        open_storage(config(tmp_path), Accounts())
    assert open_descriptors() == descriptors


async def test_without_a_memory_tier_all_goes_to_disk(tmp_path):
    for changes in ({"memory_directory": None}, {"memory_tier_bytes": 0}):
        store = ShuffleStore.open(config(tmp_path, **changes))
        assert [tier.kind for tier in store.tiers()] == ["disk"]
        await store.close()


@pytest.mark.parametrize("memory_tier_bytes", [0, 1024 * 1024], ids=["disk", "memory"])
async def test_a_broadcast_region_is_adopted_as_one(tmp_path, memory_tier_bytes):
    changes = {"memory_tier_bytes": memory_tier_bytes}
    store = ShuffleStore.open(config(tmp_path, **changes))
    data = content(3, 20_000)
    region = await write_region(store, data, [len(data)], first=EVERY_SUBPARTITION)
    await store.commit(MapOutput(KEY, 1, 50, (region,)))
    before = used(store)
    assert sum(before) < 2 * len(data)
    await store.close()
    store = ShuffleStore.open(config(tmp_path, **changes))
    assert used(store) == before
    output = store.map_outputs(KEY)[1]
    assert output.regions[0].is_broadcast
    assert (output.num_subpartitions, output.total_bytes) == (50, len(data))
    assert output.regions[0].slice(49, 50) == (0, len(data))
    assert await fetch(store, output) == data
    await store.close()
