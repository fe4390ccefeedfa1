"""The remote tier of a store: writing, reading, failures, deletion, and a restart."""

import asyncio
import logging
import os
import signal
import sys
from typing import Any

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts, QuotaExceeded, Resource
from sluice.shuffle.taskmanager.bounds.quotas import QuotaConfig, Quotas
from sluice.shuffle.taskmanager.store.errors import (
    RemoteFailed,
    RemoteFull,
    RemoteObjectMissing,
    StorageFull,
    StorageUnavailable,
)
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from sluice.transport.fair_queue import Flow
from tests.support.mini_cluster import eventually
from tests.support.remote import (
    REMOTE_ONLY,
    both_places,
    directory_place,
    extent_of,
    extent_of_region,
    open_store,
    s3_place,
    tier_of,
)
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, s3_proxy
from tests.support.store import KEY, config, content, fetch, put, used, write_region

MIB = 1024 * 1024
LARGE = 13 * MIB
"""A region of three parts of 5 MiB."""


def remote_config(directory, place, **changes):
    settings = REMOTE_ONLY | {"remote_part_bytes": 5 * MIB} | place.settings | changes
    return config(directory, **settings)


@both_places
@pytest.mark.parametrize("length", [1, 5000, LARGE], ids=["byte", "small", "parts"])
async def test_a_region_is_one_object(tmp_path, place, length):
    store = open_store(remote_config(tmp_path, place))
    output = await put(store, 1, length)
    assert len(place.data()) == 1
    assert await fetch(store, output) == content(1, length)
    assert tier_of(store).budget.used_bytes == 0
    store.release_shuffle(KEY)
    await eventually(lambda: not place.data())
    await store.close()


@both_places
async def test_bytes_come_in_any_calls_and_in_order(tmp_path, place):
    store = open_store(remote_config(tmp_path, place))
    data = content(3, LARGE)
    writer = store.begin_region(KEY, 0, [LARGE])
    step = 700_001
    pieces = [(start, memoryview(data)[start : start + step]) for start in range(0, LARGE, step)]
    await asyncio.gather(*(writer.write(start, [piece]) for start, piece in reversed(pieces)))
    with pytest.raises(RuntimeError, match="not flushed"):
        writer.finish(crc32c(data))
    await writer.flush()
    region = writer.finish(crc32c(data))
    read = bytearray(LARGE)
    await store.read_all([ExtentRead(region.extent, 0, [memoryview(read)])])
    assert read == data
    region.release()
    await eventually(lambda: not place.data())
    await store.close()


@both_places
@pytest.mark.parametrize("written", [0, 3, 5 * MIB, 11 * MIB])
async def test_a_region_that_is_given_up_leaves_nothing(tmp_path, place, written):
    store = open_store(remote_config(tmp_path, place))
    writer = store.begin_region(KEY, 0, [LARGE])
    await writer.write(0, [memoryview(content(1, written))])
    writer.abort()
    tier = tier_of(store)
    await eventually(lambda: not (tier._live or tier.budget.used_bytes or tier.waiting_deletes))
    await store.close()
    assert [name for name in place.names() if "sgwtmp" not in name] == []
    assert not store.accounts.in_use()


async def test_applications_take_turns_at_reads(tmp_path, object_store):
    place = directory_place(tmp_path)
    store = open_store(remote_config(tmp_path, place, remote_requests=1))
    outputs = {name: await put(store, number, 100) for number, name in enumerate(("many", "few"))}
    tier, served, goes_on = tier_of(store), list[str](), asyncio.Event()
    get_range = tier.objects.get_range

    async def held(name, start, length):
        await goes_on.wait()
        served.append(next(each for each in outputs if extent_of(outputs[each]).name == name))
        return await get_range(name, start, length)

    tier.objects.get_range = held
    flows = [*(Flow("many", number) for number in range(10)), *[Flow("few", 0)] * 3]
    reading = [
        asyncio.ensure_future(
            store.read_all(
                [ExtentRead(extent_of(outputs[flow[0]]), 0, [memoryview(bytearray(9))])], flow
            )
        )
        for flow in flows
    ]
    await eventually(lambda: tier.reading.waiting == len(flows) - 1)
    goes_on.set()
    await asyncio.gather(*reading)
    assert served[:7].count("few") == 3
    await store.close()


@both_places
async def test_reads_close_together_are_one_request(tmp_path, place):
    store = open_store(remote_config(tmp_path, place))
    output = await put(store, 1, 400_000)
    extent = extent_of(output)
    objects, asked = tier_of(store).objects, []
    get_range = objects.get_range

    async def counted(name, start, length):
        asked.append((start, length))
        return await get_range(name, start, length)

    objects.get_range = counted
    ranges = [(100, 50), (0, 100), (300_000, 10), (200, 1000)]
    buffers = [bytearray(length) for _, length in ranges]
    await store.read_all(
        [
            ExtentRead(extent, start, [memoryview(buffer)[:3], memoryview(buffer)[3:]])
            for (start, _), buffer in zip(ranges, buffers, strict=True)
        ]
    )
    whole = content(1, 400_000)
    assert [bytes(each) for each in buffers] == [whole[s : s + n] for s, n in ranges]
    assert asked == [(0, 1200), (300_000, 10)]
    await store.close()


async def test_extents_read_from_disk_and_objects_together_are_kept_from_the_start(
    tmp_path, object_store
):
    settings = {"remote": str(tmp_path / "remote"), "memory_tier_bytes": 0}
    store = open_store(config(tmp_path, disk_quota_bytes=8192, **settings))
    regions = [await write_region(store, content(each, 8000), [8000]) for each in range(2)]
    extents = [extent_of_region(each) for each in regions]
    assert [each.tier.kind for each in extents] == ["disk", "remote"]
    buffers = [bytearray(8000) for _ in extents]
    reads = [ExtentRead(each, 0, [memoryview(b)]) for each, b in zip(extents, buffers, strict=True)]
    reading = asyncio.ensure_future(store.read_all(reads))
    await asyncio.sleep(0)  # it begins
    for each in regions:
        each.release()
    assert sum(used(store)) == 2 * 8192
    await reading
    assert buffers == [content(0, 8000), content(1, 8000)]
    assert sum(used(store)) == 0
    await store.close()


async def test_uploads_wait_for_memory_of_others(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "remote_upload_bytes": 1000}
    store = open_store(config(tmp_path, **settings))
    first, second = (store.begin_region(KEY, 0, [600]) for _ in range(2))
    await first.write(0, [memoryview(bytes(599))])
    waits = asyncio.ensure_future(second.write(0, [memoryview(bytes(600))]))
    await eventually(lambda: tier_of(store).budget.waiting)
    await first.write(599, [memoryview(b"x")])
    await asyncio.gather(first.flush(), waits)
    await second.flush()
    for writer in (first, second):
        writer.finish(0).release()
    assert tier_of(store).budget.used_bytes == 0
    await store.close()


async def test_memory_then_disk_then_remote(tmp_path, object_store):
    settings = {"remote": str(tmp_path / "remote"), "memory_tier_bytes": 8192}
    settings |= {"memory_tier_reserve_percent": 0}
    store = open_store(config(tmp_path, disk_quota_bytes=8192, **settings))
    tiers = [extent_of(await put(store, each, 8000)).tier.kind for each in range(4)]
    assert tiers == ["memory", "disk", "remote", "remote"]
    held = store.accounts.of(KEY.application_id).held
    assert held[Resource.REMOTE_TIER_BYTES] == 2 * 8192
    await store.close()


async def test_a_quota_of_the_tier_and_one_of_an_application(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "remote_quota_bytes": 20_000}
    accounts = Accounts()
    store = open_store(config(tmp_path, **settings), accounts)
    quotas = QuotaConfig(
        quota_remote_tier_bytes="50 %", quota_overrides=("big: remote_tier_bytes = 100 %",)
    )
    accounts.set_limits(
        Quotas(
            quotas, store.wholes() | {Resource.NETWORK_SEGMENTS: 1, Resource.REGION_AREAS_BYTES: 1}
        ).limits_of
    )
    await put(store, 1, 8000)
    with pytest.raises(QuotaExceeded, match="quota of remote tier bytes"):
        await put(store, 2, 8000)
    big = KEY._replace(application_id="big")
    await put(store, 3, 8000, key=big)
    with pytest.raises(StorageFull, match="remote file://"):
        await put(store, 4, 8000, key=big)
    await store.close()


def with_quotas(store, accounts):
    """Apply the quotas of a TaskManager without settings."""
    wholes = store.wholes() | {Resource.NETWORK_SEGMENTS: 1, Resource.REGION_AREAS_BYTES: 1}
    accounts.set_limits(Quotas(QuotaConfig(), wholes).limits_of)


async def test_a_full_remote_tier_reports_storage_full(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "remote_quota_bytes": 20_000}
    accounts = Accounts()
    store = open_store(config(tmp_path, **settings), accounts)
    with_quotas(store, accounts)
    await put(store, 1, 8000)
    await put(store, 2, 8000)
    with pytest.raises(StorageFull, match="remote file://"):
        await put(store, 3, 8000)
    await store.close()


async def test_a_remote_tier_without_room_reports_storage_full(tmp_path, object_store):
    accounts = Accounts()
    store = open_store(config(tmp_path, **REMOTE_ONLY, remote=str(tmp_path / "remote")), accounts)
    with_quotas(store, accounts)
    put_object = tier_of(store).objects.put

    async def full(name, data, *, new=False):
        if data:
            raise RemoteFailure("No space left on device", full=True)
        await put_object(name, data, new=new)

    tier_of(store).objects.put = full
    with pytest.raises(RemoteFull) as first:
        await put(store, 1, 8000)
    assert first.value.code is ErrorCode.STORAGE_FULL
    with pytest.raises(StorageFull, match="No space left"):  # it is left out
        await put(store, 2, 8000)
    await store.close()


async def test_repeated_requests_outlive_throttling_and_errors(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        refused: dict[tuple[str, str], int] = {}

        def rule(method, path):
            refused[method, path] = refused.get((method, path), 0) + 1
            return {1: 503, 2: 500}.get(refused[method, path])

        proxy.rule = rule
        store = open_store(remote_config(tmp_path, place, remote_endpoint=proxy.endpoint))
        small, large = await put(store, 1, 1000), await put(store, 2, LARGE)
        assert await fetch(store, small) == content(1, 1000)
        assert await fetch(store, large) == content(2, LARGE)
        assert tier_of(store).healthy
        await store.close()


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_an_outage_is_a_typed_error_without_a_secret(tmp_path, s3, status, caplog):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        store = open_store(
            remote_config(
                tmp_path, place, remote_endpoint=proxy.endpoint, remote_timeout_seconds=0.5
            )
        )
        output = await put(store, 1, 1000)
        proxy.rule = lambda method, path: status
        with caplog.at_level(logging.DEBUG):
            with pytest.raises(RemoteFailed) as reading:
                await fetch(store, output)
            tier_of(store).recover()
            with pytest.raises(RemoteFailed) as writing:
                await put(store, 2, 1000)
        assert reading.value.code is ErrorCode.STORAGE_UNAVAILABLE
        for error in (reading.value, writing.value):
            assert place.settings["remote"] in str(error)
            assert "0.5 s" in str(error)
            assert error.retryable
        shown = caplog.text + str(reading.value) + repr(writing.value)
        assert SECRET_KEY not in shown
        assert ACCESS_KEY not in shown
        with pytest.raises(StorageFull, match="remote s3://"):
            await put(store, 3, 1000)  # left out
        proxy.rule = lambda method, path: None
        assert await fetch(store, output) == content(1, 1000)
        await store.close()


async def test_an_object_that_is_gone_loses_its_map_output(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote")}
    store = open_store(config(tmp_path, **settings))
    lost: dict[Any, Any] = {}
    store.watch(lost.update)
    gone, left = await put(store, 1, 1000), await put(store, 2, 1000)
    marker = tmp_path / "remote/taskmanagers" / store.taskmanager_id
    await eventually(marker.exists)
    (tmp_path / "remote" / extent_of(gone).name).unlink()
    with pytest.raises(RemoteObjectMissing) as missing:
        await fetch(store, gone)
    assert missing.value.code is ErrorCode.STORAGE_UNAVAILABLE
    await eventually(lambda: lost == {KEY: [1]})
    assert store.why_lost(KEY, 1)
    assert store.lookup(KEY, 1) is None
    assert await fetch(store, left) == content(2, 1000)
    await store.close()


async def test_a_remote_directory_that_is_gone_loses_nothing(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "health_check_seconds": 0.01}
    store = open_store(config(tmp_path, **settings))
    output = await put(store, 1, 1000)
    store.watch(lambda lost: None)
    marker = tmp_path / "remote/taskmanagers" / store.taskmanager_id
    await eventually(marker.exists)
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    (tmp_path / "remote").write_text("no directory")
    with pytest.raises(RemoteFailed):
        await fetch(store, output)
    assert not tier_of(store).healthy
    (tmp_path / "remote").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "remote")
    await eventually(lambda: tier_of(store).healthy)
    assert await fetch(store, output) == content(1, 1000)
    assert store.lookup(KEY, 1) is not None
    await store.close()


# ---- restarts -----------------------------------------------------------------------------------


@both_places
async def test_committed_and_secured_regions_are_adopted_without_looking(tmp_path, place):
    settings = remote_config(tmp_path, place)
    store = open_store(settings)
    await put(store, 1, 5000)
    attempt = MapAttemptKey(KEY, 2)
    await store.secure(attempt, 1, [await write_region(store, content(2, 700), [700])])
    uncommitted = await write_region(store, content(3, 10), [10])
    await store.close()

    again = open_store(settings)
    tier = tier_of(again)
    tier.objects.errors = 0
    output = again.lookup(KEY, 1)
    assert await fetch(again, output) == content(1, 5000)
    (secured,) = again.open_output(attempt).regions
    read = bytearray(secured.length)
    await again.read_all([ExtentRead(secured.extent, 0, [memoryview(read)])])
    assert crc32c(read) == secured.crc32c
    assert again.accounts.of(KEY.application_id).held[Resource.REMOTE_TIER_BYTES] == 8192 + 1024
    assert len(place.data()) == 3
    assert not tier.is_live(extent_of_region(uncommitted).offset)  # an orphan, for the sweep
    again.release_application(KEY.application_id)
    await eventually(lambda: len(place.data()) == 1)
    await again.close()
    third = open_store(settings)
    assert third.applications() == []
    await third.close()


async def test_a_row_of_objects_outlives_all_directories_but_one(tmp_path, object_store):
    directories = tuple(tmp_path / name for name in "abc")
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "data_directories": directories}
    store = open_store(config(tmp_path, **settings))
    await put(store, 1, 5000)
    await store.close()
    for directory in directories[:2]:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    again = open_store(config(tmp_path, **settings))
    assert await fetch(again, again.lookup(KEY, 1)) == content(1, 5000)
    again.release_shuffle(KEY)
    await again.released()
    await again.close()
    third = open_store(config(tmp_path, **settings))
    assert third.lookup(KEY, 1) is None
    await third.close()


async def test_a_commit_counts_when_one_journal_has_it(tmp_path, object_store, monkeypatch):
    directories = tuple(tmp_path / name for name in "ab")
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote"), "data_directories": directories}
    store = open_store(config(tmp_path, **settings))
    broken = next(iter(store._journal.files.journals.values()))

    def refuse(entries, releases):
        raise OSError(5, "broken")

    monkeypatch.setattr(broken, "append", refuse)
    await put(store, 1, 5000)
    await store.close()
    again = open_store(config(tmp_path, **settings))
    assert again.lookup(KEY, 1) is not None
    await again.close()


async def test_without_the_remote_tier_its_map_outputs_are_forgotten(tmp_path, object_store):
    store = open_store(config(tmp_path, **REMOTE_ONLY, remote=str(tmp_path / "remote")))
    await put(store, 1, 5000)
    await store.close()
    again = open_store(config(tmp_path, **REMOTE_ONLY))
    assert again.lookup(KEY, 1) is None
    assert again.statistics().forgotten_map_outputs == 1
    with pytest.raises(StorageUnavailable, match="no remote tier"):
        await again.move_to_remote(MapOutput(KEY, 1, 1, ()))
    await again.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.remote import REMOTE_ONLY
from tests.support.store import config, put, KEY

async def main():
    directory = Path(sys.argv[1])
    settings = REMOTE_ONLY | {"remote": str(directory / "remote")}
    store = ShuffleStore.open(config(directory, **settings))
    for attempt in range(20):
        await put(store, attempt, 5000)
    for attempt in range(20, 40):
        await put(store, attempt, 5000, key=KEY._replace(shuffle_id=1))
    store.begin_region(KEY, 0, [5000])
    store.release_shuffle(KEY._replace(shuffle_id=1))
    await store.released()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_kill_9_keeps_what_was_acknowledged_and_what_was_released_stays_so(
    tmp_path, object_store
):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(tmp_path)), env=os.environ | {"PYTHONPATH": os.getcwd()}
    )
    assert await process.wait() == -signal.SIGKILL
    store = open_store(config(tmp_path, **REMOTE_ONLY, remote=str(tmp_path / "remote")))
    assert sorted(store.map_outputs(KEY)) == list(range(20))
    for output in store.map_outputs(KEY).values():
        assert await fetch(store, output) == content(output.map_attempt_id, 5000)
    assert not store.map_outputs(KEY._replace(shuffle_id=1))
    await store.close()


async def test_a_name_that_comes_during_its_deletion_is_deleted_again(tmp_path, object_store):
    store = open_store(config(tmp_path, **REMOTE_ONLY, remote=str(tmp_path / "remote")))
    tier = tier_of(store)
    delete = tier.objects.delete
    asked: list[list[str]] = []

    async def slow(names):
        await delete(names)
        if not asked:
            await tier.objects.put("name", b"stored late")
            tier.delete_soon(["name"])
        asked.append(names)

    tier.objects.delete = slow
    tier.delete_soon(["name"])
    await eventually(lambda: not tier.waiting_deletes)
    assert asked == [["name"], ["name"]]
    assert not (tmp_path / "remote/name").exists()
    await store.close()
