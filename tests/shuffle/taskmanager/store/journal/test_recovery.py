"""A new daemon after kill -9, damage, lost files and released shuffles."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from crc32c import crc32c

from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.store.files.journal_places import run_of
from sluice.shuffle.taskmanager.store.journal.journal import Entry, Journal
from sluice.shuffle.taskmanager.store.journal.rows import pack_commit, pack_release_shuffle
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.shuffle.taskmanager.store.journal.rig import (
    append,
    damage,
    filled,
    journal_in,
    kept_attempts,
)
from tests.support.store import (
    KEY,
    config,
    content,
    fetch,
    put,
    settle,
    used,
    write_region,
)

OTHER = ShuffleKey("app-1", 1)


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
        start = 0
        for region in found[name].regions:
            assert region.crc32c == crc32c(data[start : start + region.length])
            start += region.length
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
    await settle(store)
    assert used(store) == [0, 0]
    await store.close()


async def test_a_clean_restart_keeps_id_outputs_and_journals(tmp_path):
    journal = await filled(tmp_path)
    inode = journal.stat().st_ino
    store = ShuffleStore.open(config(tmp_path))
    identity = store.taskmanager_id
    assert store.statistics().adopted_map_outputs == 4
    assert journal_in(tmp_path / "data").stat().st_ino == inode
    assert run_of(journal_in(tmp_path / "data")) == run_of(journal) + 1
    before = used(store)
    await put(store, 50, 100_000)
    await store.close()
    again = ShuffleStore.open(config(tmp_path))
    assert again.taskmanager_id == identity
    assert sorted(again.map_outputs(KEY)) == [0, 1, 2, 3, 50]
    assert sum(used(again)) == sum(before) + 102_400
    await again.close()


async def test_what_is_adopted_is_charged_and_given_back(tmp_path):
    """Indexes and rows: of map outputs, of secured regions, of sparse regions."""
    store = ShuffleStore.open(config(tmp_path))
    await put(store, 1, 100_000)
    lengths = [0] * 1000 + [8] + [0] * 1000 + [16]
    region = await write_region(store, content(2, 24), lengths)
    await store.commit(MapOutput(KEY, 2, 2002, (region,)))
    secured = MapAttemptKey(KEY, 3)
    await store.secure(secured, 1, [await write_region(store, content(3, 80), [80])])
    account = store.accounts.of(KEY.application_id)
    held = account.amount(Resource.METADATA_BYTES)
    assert held == 3 * 320 + 2 * 4 * (5 + 3 + 2 + 2)
    await store.close()
    again = ShuffleStore.open(config(tmp_path))
    account = again.accounts.of(KEY.application_id)
    assert account.amount(Resource.METADATA_BYTES) == held
    adopted = again.map_outputs(KEY)[2]
    assert adopted.regions[0].lengths() == lengths
    assert adopted.regions[0].slice(2001, 2002) == (8, 16)
    assert await fetch(again, adopted) == content(2, 24)
    again.release_application(KEY.application_id)
    assert account.amount(Resource.METADATA_BYTES) == 0
    await again.close()


async def test_what_is_in_memory_outlives_the_only_disk(tmp_path):
    """The id does too: Spark's map statuses name the outputs by it."""
    store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=1024 * 1024))
    identity = store.taskmanager_id
    await put(store, 1, 100_000)
    assert used(store)[1] == 0
    await store.close()
    shutil.rmtree(tmp_path / "data")
    again = ShuffleStore.open(config(tmp_path, memory_tier_bytes=1024 * 1024))
    assert again.taskmanager_id == identity
    found = again.lookup(KEY, 1)
    assert found is not None
    assert await fetch(again, found) == content(1, 100_000)
    await again.close()


async def test_a_torn_journal_costs_the_unacknowledged_commit_only(tmp_path):
    journal = await filled(tmp_path)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    assert await kept_attempts(tmp_path) == [0, 1, 2]
    assert await kept_attempts(tmp_path) == [0, 1, 2]


async def test_damage_of_a_journal_costs_the_damaged_rows(tmp_path, caplog):
    journal = await filled(tmp_path, 6, memory_tier_bytes=0)
    broken = damage(journal, -200)  # in the fourth or fifth of six records
    kept = await kept_attempts(tmp_path, memory_tier_bytes=0)
    assert len(kept) == 5
    assert {0, 1, 2, 5} < set(kept)
    assert "is damaged" in caplog.text
    assert (journal.parent / "journal.damaged").read_bytes() == broken
    caplog.clear()
    assert await kept_attempts(tmp_path, memory_tier_bytes=0) == kept
    # The event loop names slow coroutines in records of its own, this test's among them.
    own = [record for record in caplog.records if record.name.startswith("sluice")]
    assert not [record for record in own if "damaged" in record.getMessage()]


async def test_damage_of_one_journal_leaves_the_others_alone(tmp_path):
    """The memory tier has two of the outputs, and its own journal."""
    journal = await filled(tmp_path)
    journal.write_bytes(b"no journal")
    assert await kept_attempts(tmp_path) == [0, 1]


async def test_after_damage_regions_are_verified(tmp_path, caplog):
    journal = await filled(tmp_path, memory_tier_bytes=0)
    (arena,) = (tmp_path / "data").glob("arena-*")
    damage(arena, 500_000)  # in the second output
    assert len((await opened_and_closed(tmp_path, memory_tier_bytes=0)).map_outputs(KEY)) == 4
    journal = journal_in(tmp_path / "data")
    damage(journal, -1)  # the row of the fourth
    assert await kept_attempts(tmp_path, memory_tier_bytes=0) == [0, 2]
    assert "do not have their checksum" in caplog.text


async def opened_and_closed(directory, **changes):
    store = ShuffleStore.open(config(directory, **changes))
    await store.close()
    return store


@pytest.mark.parametrize("broken", ["journal", "releases", "both"])
async def test_no_damage_brings_a_released_shuffle_back(tmp_path, broken):
    changes = {"memory_tier_bytes": 0}
    keys = [ShuffleKey("app-1", shuffle) for shuffle in range(3)]
    store = ShuffleStore.open(config(tmp_path, **changes))
    for key in keys:
        await put(store, 1, 1000, key=key)
    store.release_shuffle(keys[1])
    await put(store, 2, 1000, key=keys[2])
    await store.close()
    journal = journal_in(tmp_path / "data")
    (second,) = (tmp_path / "data").glob("releases-*")
    row = pack_release_shuffle(keys[1])
    for path, names in ((journal, ("journal", "both")), (second, ("releases", "both"))):
        if broken in names:
            damage(path, path.read_bytes().index(row) + 1)
    again = ShuffleStore.open(config(tmp_path, **changes))
    found = {each.key for each in again.shuffles()}
    assert keys[1] not in found
    assert found == ({keys[2]} if broken == "both" else {keys[0], keys[2]})
    await again.close()
    again = ShuffleStore.open(config(tmp_path, **changes))
    assert {each.key for each in again.shuffles()} == found
    await again.close()


async def test_a_cut_journal_does_not_bring_a_released_shuffle_back(tmp_path):
    store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=0))
    await put(store, 1, 1000)
    size = journal_in(tmp_path / "data").stat().st_size
    store.release_shuffle(KEY)
    await store.close()
    os.truncate(journal_in(tmp_path / "data"), size)
    assert await kept_attempts(tmp_path, memory_tier_bytes=0) == []


@pytest.mark.parametrize("first", ["journal", "releases"])
async def test_damage_that_looks_torn_leaves_no_release_in_one_file_only(tmp_path, first):
    """A start after it makes the release safe again, before the next damage comes."""
    store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=0))
    await put(store, 1, 1000)
    await put(store, 2, 1000, key=OTHER)
    before = {
        path.name.partition("-")[0]: path.stat().st_size
        for path in (tmp_path / "data").glob("*-0*")
    }
    store.release_shuffle(KEY)
    await store.close()
    for name in (first, *({"journal", "releases"} - {first})):
        (path,) = (tmp_path / "data").glob(f"{name}-*")
        if path.stat().st_size > before[name]:
            os.truncate(path, before[name])
        again = ShuffleStore.open(config(tmp_path, memory_tier_bytes=0))
        assert [each.key for each in again.shuffles()] == [OTHER]
        await again.close()


async def test_a_row_of_another_version_is_reported_and_skipped(tmp_path, caplog):
    journal = await filled(tmp_path)
    append(journal, b"\x92\x09\x01")
    assert await kept_attempts(tmp_path) == [0, 1, 2, 3]
    assert "not understood" in caplog.text


@pytest.mark.parametrize(("lost", "forgotten"), [("*", 0), ("arena-*", 2)])
async def test_after_a_reboot_the_memory_tier_is_empty_and_the_disk_is_not(
    tmp_path, lost, forgotten
):
    await filled(tmp_path)
    for path in (tmp_path / "memory").glob(lost):
        path.unlink()
    store = ShuffleStore.open(config(tmp_path))
    assert store.statistics().forgotten_map_outputs == forgotten
    assert sorted(store.map_outputs(KEY)) == [2, 3]
    await put(store, 10, 400_000)
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


async def test_of_rows_that_overlap_the_newer_one_counts(tmp_path, caplog):
    store = ShuffleStore.open(config(tmp_path))
    output = await put(store, 1, 1000)
    other = await put(store, 3, 1000)
    await store.close()
    twin = MapOutput(KEY, 2, 4, output.regions)
    append(journal_in(tmp_path / "memory"), pack_commit(twin))
    again = ShuffleStore.open(config(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [2, 3]
    assert await fetch(again, again.map_outputs(KEY)[3]) == content(3, 1000)
    assert other.total_bytes == 1000
    await again.close()
    assert "overlaps" in caplog.text


async def test_what_was_forgotten_does_not_come_back_when_its_space_is_free_again(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    output = await put(store, 1, 1000)
    await store.close()
    append(journal_in(tmp_path / "memory"), pack_commit(MapOutput(OTHER, 2, 4, output.regions)))
    again = ShuffleStore.open(config(tmp_path))
    again.release_shuffle(OTHER)
    await again.close()
    assert await kept_attempts(tmp_path) == []


async def test_the_clock_decides_nothing(tmp_path, monkeypatch):
    a, b = tmp_path / "a", tmp_path / "b"
    changes = {"data_directories": (a, b), "memory_tier_bytes": 0}
    now = time.time()
    for days in (0, 400, -400):
        monkeypatch.setattr(time, "time", partial(float, now + days * 86400))
        store = ShuffleStore.open(config(tmp_path, **changes))
        await put(store, days, 1000)
        await store.close()
    assert await kept_attempts(tmp_path, **changes) == [-400, 0, 400]


async def test_many_rows_are_rewritten_in_pieces(tmp_path):
    journal = await filled(tmp_path, attempts=0)
    rows = [b"\x92\x09\xc5\x80\x00" + bytes(32768)] * 70  # 2.3 MB that no one understands
    append(journal, *rows)
    copy = Journal.create(
        tmp_path, tier_id(journal), 1, [Entry(1, n, row) for n, row in enumerate(rows, 1)]
    )
    copy.close()
    assert copy.path.read_bytes() == journal.read_bytes()
    assert await kept_attempts(tmp_path) == []
    assert sum(p.stat().st_size for p in journal.parent.glob("journal-*")) < 100


def tier_id(journal):
    (arena,) = journal.parent.glob("arena-*")
    return bytes.fromhex(arena.stem.removeprefix("arena-2-"))


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
