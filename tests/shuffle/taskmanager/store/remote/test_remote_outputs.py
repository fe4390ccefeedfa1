"""Map outputs that move to the remote tier, and are found there by name."""

import asyncio
import gc
import os

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.store.errors import RemoteFailed, StorageError
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.objects.remote_names import manifest_name
from sluice.shuffle.taskmanager.store.objects.remote_objects import RemoteObjects
from sluice.shuffle.taskmanager.store.remote import remote_outputs
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.mini_cluster import eventually
from tests.support.raises_code import raises_code
from tests.support.remote import (
    REMOTE_ONLY,
    both_places,
    directory_place,
    extent_of,
    moved_of,
    open_store,
    s3_place,
    tier_of,
)
from tests.support.s3 import s3_proxy
from tests.support.store import (
    KEY,
    Gate,
    config,
    content,
    fetch,
    holders_of_data,
    put,
    settle,
    write_region,
)

MIB = 1024 * 1024
SIZES = (100, 0, 9000, 6 * MIB)


async def many_regions(store, attempt):
    """Commit a map output of a broadcast region, an empty one, and others."""
    regions = [
        await write_region(store, content(attempt, 70), [70], first=EVERY_SUBPARTITION),
        *[
            await write_region(store, content(attempt + n, size), [size // 2, size - size // 2])
            if size
            else store.begin_region(KEY, 0, [0, 0]).finish(0)
            for n, size in enumerate(SIZES)
        ],
    ]
    output = MapOutput(KEY, attempt, 2, tuple(regions))
    await store.commit(output)
    return output


async def found_by(store, key, map_attempt_id):
    """Return the map output that a store with a remote tier finds, here or remotely."""
    return await store.remote.find(MapAttemptKey(key, map_attempt_id))


def moved(place):
    return [name for name in place.data() if name.startswith("moved/")]


class Pair:
    """Two stores with one remote tier, and data in all tiers of the first one."""

    def __init__(self, directory, place, **changes):
        settings = place.settings | {"remote_part_bytes": 5 * MIB} | changes
        self.first = open_store(config(directory / "first", **settings))
        self.second = open_store(config(directory / "second", **settings))

    async def close(self):
        await self.first.close()
        await self.second.close()


@both_places
@pytest.mark.parametrize("source", ["local", "remote"])
async def test_another_store_finds_what_moved_and_serves_the_same_bytes(tmp_path, place, source):
    stores = Pair(tmp_path, place, **(REMOTE_ONLY if source == "remote" else {}))
    output = await many_regions(stores.first, 7)
    await stores.first.move_to_remote(output)
    await stores.first.close()

    finding = [found_by(stores.second, KEY, 7) for _ in range(5)]
    found = (await asyncio.gather(*finding))[0]
    assert moved_of(stores.second).lookups == 1
    assert found is stores.second.lookup(KEY, 7)
    assert found.num_subpartitions == 2
    assert await fetch(stores.second, found) == b"".join(
        [content(7, 70), *(content(7 + n, size) for n, size in enumerate(SIZES))]
    )
    for before, after in zip(output.regions, found.regions, strict=True):
        assert before.first_subpartition == after.first_subpartition
        assert before.offsets == after.offsets
        assert before.crc32c == after.crc32c
    held = stores.second.accounts.of(KEY.application_id).held
    assert held[Resource.MAP_OUTPUTS] == 1
    assert held[Resource.REMOTE_TIER_BYTES] >= sum(SIZES)

    assert stores.second.release_shuffle(KEY) == 70 + sum(SIZES)
    await eventually(lambda: not moved(place))
    assert await found_by(stores.second, KEY, 7) is None
    await eventually(lambda: not holders_of_data(stores.second))
    await stores.second.close()


@both_places
async def test_what_is_not_there_is_none_and_an_empty_map_output_moves(tmp_path, place):
    stores = Pair(tmp_path, place)
    assert await found_by(stores.second, KEY, 1) is None
    empty = MapOutput(KEY, 1, 4, ())
    await stores.first.commit(empty)
    await stores.first.move_to_remote(empty)
    found = await found_by(stores.second, KEY, 1)
    assert (found.num_subpartitions, found.regions) == (4, ())
    await stores.close()


@both_places
async def test_two_that_move_the_same_map_output_leave_one(tmp_path, place):
    stores = Pair(tmp_path, place)
    outputs = [await put(store, 1, 5000) for store in (stores.first, stores.second)]
    await asyncio.gather(
        stores.first.move_to_remote(outputs[0]), stores.second.move_to_remote(outputs[1])
    )
    await eventually(lambda: len(moved(place)) == 2)
    stores.first.release_shuffle(KEY)
    stores.second.release_shuffle(KEY)
    await eventually(lambda: not moved(place))
    await stores.close()


@both_places
async def test_the_end_of_an_application_deletes_what_it_moved_whoever_moved_it(tmp_path, place):
    stores = Pair(tmp_path, place)
    await stores.first.move_to_remote(await put(stores.first, 1, 5000))
    other = KEY._replace(application_id="app/with slash")
    await stores.first.move_to_remote(await put(stores.first, 1, 5000, key=other))
    assert len(moved(place)) == 4
    stores.second.release_application(KEY.application_id)  # it lost touch only
    await moved_of(stores.second).close()
    assert len(moved(place)) == 4
    stores.second.application_ends(KEY.application_id)
    await eventually(lambda: len(moved(place)) == 2)
    assert await found_by(stores.second, other, 1) is not None
    await stores.close()


async def test_a_found_map_output_is_in_no_journal_and_found_again(tmp_path, object_store):
    settings = {"remote": str(tmp_path / "remote")}
    first = open_store(config(tmp_path / "first", **settings))
    await first.move_to_remote(await put(first, 1, 5000))
    await first.close()
    second = open_store(config(tmp_path / "second", **settings))
    await found_by(second, KEY, 1)
    await put(second, 2, 5000)
    arena = second._tiers.tiers()[-1].tier_id
    assert await second._journal.restore(arena)  # a rewrite of the journal
    await second.close()
    again = open_store(config(tmp_path / "second", **settings))
    assert again.lookup(KEY, 1) is None
    assert again.lookup(KEY, 2) is not None
    assert again.statistics().forgotten_map_outputs == 0
    assert await fetch(again, await found_by(again, KEY, 1)) == content(1, 5000)
    await again.close()


async def test_damaged_bytes_do_not_move(tmp_path, object_store):
    settings = {"remote": str(tmp_path / "remote")}
    store = open_store(config(tmp_path, **settings))
    output = await put(store, 1, 5000)
    extent_of(output).view[77] ^= 1
    with raises_code(ErrorCode.STORAGE_CORRUPT, "is corrupt", StorageError):
        await store.move_to_remote(output)
    assert await found_by(store, KEY, 1) is output
    assert not (tmp_path / "remote" / manifest_name(MapAttemptKey(KEY, 1))).exists()
    tier = tier_of(store)
    await eventually(lambda: not (tier.waiting_deletes or tier.budget.used_bytes))
    await store.close()
    assert not list((tmp_path / "remote").glob("moved/**/*-*"))


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x94\x02\xa6little\x01\x90"])
async def test_a_manifest_that_is_none_is_not_found(tmp_path, object_store, damage):
    store = open_store(config(tmp_path, remote=str(tmp_path / "remote")))
    path = tmp_path / "remote" / manifest_name(MapAttemptKey(KEY, 1))
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    assert await found_by(store, KEY, 1) is None
    await store.close()


async def test_a_manifest_cannot_name_objects_of_others(tmp_path, object_store):
    settings = REMOTE_ONLY | {"remote": str(tmp_path / "remote")}
    store = open_store(config(tmp_path, **settings))
    output = await put(store, 1, 5000)
    await store.move_to_remote(output)
    path = tmp_path / "remote" / manifest_name(MapAttemptKey(KEY, 1))
    manifest = path.read_bytes()
    other = MapAttemptKey(KEY._replace(application_id="another"), 1)
    stolen = tmp_path / "remote" / manifest_name(other)
    stolen.parent.mkdir(parents=True)
    stolen.write_bytes(manifest)
    assert await found_by(store, *other) is None
    await store.close()


async def test_a_move_that_fails_leaves_nothing_to_be_found(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        place.settings |= {"remote_endpoint": proxy.endpoint, "remote_timeout_seconds": 0.5}
        stores = Pair(tmp_path, place)
        output = await many_regions(stores.first, 1)
        proxy.rule = lambda method, path: (
            403 if method == "PUT" and path.endswith("manifest") else None
        )
        with pytest.raises(RemoteFailed):
            await stores.first.move_to_remote(output)
        proxy.rule = lambda method, path: None
        assert await found_by(stores.second, KEY, 1) is None
        await eventually(lambda: not (moved(place) or tier_of(stores.first).waiting_deletes))
        tier_of(stores.first).recover()
        await stores.first.move_to_remote(output)
        assert await found_by(stores.second, KEY, 1) is not None
        await stores.close()


@pytest.mark.parametrize("repeated", [True, False])
async def test_a_manifest_that_is_not_confirmed_goes_with_the_release(
    tmp_path, object_store, monkeypatch, repeated
):
    place = directory_place(tmp_path)
    stores = Pair(tmp_path, place)
    output = await many_regions(stores.first, 1)
    tier = tier_of(stores.first)

    confirm = tier.marker.require_stored

    async def unconfirmed(name: str) -> None:
        await confirm(name)
        if name == manifest_name(MapAttemptKey(output.key, 1)):
            raise RemoteFailure("it is not there")

    with monkeypatch.context() as patch:
        patch.setattr(tier.marker, "require_stored", unconfirmed)
        with pytest.raises(RemoteFailed, match="it is not there"):
            await stores.first.move_to_remote(output)
    tier.recover()
    if repeated:
        await stores.first.move_to_remote(output)
        assert await found_by(stores.second, KEY, 1) is not None
    assert moved(place)
    stores.first.release_shuffle(KEY)
    await eventually(lambda: not (moved(place) or tier.waiting_deletes))
    await stores.close()


@pytest.mark.parametrize("known", [True, False], ids=["it is found there", "nobody knows"])
@pytest.mark.parametrize("repeated", [True, False])
async def test_a_manifest_whose_answer_was_lost_keeps_its_regions(
    tmp_path, object_store, known, repeated
):
    stores = Pair(tmp_path, directory_place(tmp_path))
    output = await many_regions(stores.first, 1)
    objects = tier_of(stores.first).objects
    put, get = objects.put, objects.get

    async def answer_lost(name, data, *, new=False):
        await put(name, data, new=new)
        if name.endswith("manifest"):
            raise RemoteFailure("lost", exists=repeated)

    async def no_answer(name):
        if name.endswith("manifest"):
            raise RemoteFailure("no answer")
        return await get(name)

    objects.put = answer_lost
    if known:
        await stores.first.move_to_remote(output)
        assert moved_of(stores.first).uploads.moves == 1
    else:
        objects.get = no_answer
        with pytest.raises(RemoteFailed):
            await stores.first.move_to_remote(output)
    objects.put, objects.get = put, get
    await stores.first.close()
    found = await found_by(stores.second, KEY, 1)
    assert await fetch(stores.second, found) == b"".join(
        [content(1, 70), *(content(1 + n, size) for n, size in enumerate(SIZES))]
    )
    await stores.second.close()


async def test_what_is_found_behind_the_end_of_its_application_is_not_kept(tmp_path, object_store):
    stores = Pair(tmp_path, directory_place(tmp_path))
    await stores.first.move_to_remote(await put(stores.first, 1, 5000))
    objects = tier_of(stores.second).objects
    get, asked, answer = objects.get, asyncio.Event(), asyncio.Event()

    async def slow(name):
        data = await get(name)
        asked.set()
        await answer.wait()
        return data

    objects.get = slow
    finding = asyncio.ensure_future(found_by(stores.second, KEY, 1))
    await asked.wait()
    stores.second.release_application(KEY.application_id)
    asked.clear()
    again = asyncio.ensure_future(found_by(stores.second, KEY, 1))
    await eventually(asked.is_set)  # one that asks now is of a new life of the application
    answer.set()
    assert await finding is None
    assert await again is stores.second.lookup(KEY, 1)
    assert stores.second.statistics().map_outputs == 1
    assert not moved_of(stores.second)._finding
    stores.second.release_shuffle(KEY)
    await settle(stores.second)
    assert not holders_of_data(stores.second)
    await stores.close()


async def test_what_is_found_while_a_copy_is_committed_is_there_once(
    tmp_path, object_store, monkeypatch
):
    stores = Pair(tmp_path, directory_place(tmp_path))
    await stores.first.move_to_remote(await put(stores.first, 1, 5000))
    gate = Gate(monkeypatch, os, "pwrite")
    committing = asyncio.ensure_future(put(stores.second, 1, 5000))
    await gate.wait_entered()
    assert await found_by(stores.second, KEY, 1) is None
    gate.proceed.set()
    output = await committing
    assert await found_by(stores.second, KEY, 1) is output
    assert stores.second.statistics().map_outputs == 1
    stores.second.release_shuffle(KEY)
    await settle(stores.second)
    assert stores.second.statistics().stored_bytes == 0
    await eventually(lambda: not holders_of_data(stores.second))
    await stores.close()


@pytest.mark.interpreted
async def test_the_end_of_an_application_keeps_no_more_names_in_mind_than_are_deleted(
    tmp_path, object_store, monkeypatch
):
    monkeypatch.setattr(remote_outputs, "MAX_DELETES", 4)
    stores = Pair(tmp_path, directory_place(tmp_path))
    for attempt in range(4):
        await stores.first.move_to_remote(await put(stores.first, attempt, 500))
    deleted: list[str] = []
    tier_of(stores.second).delete_soon = deleted.extend
    stores.second.application_ends(KEY.application_id)
    await eventually(lambda: deleted)
    assert len(deleted) == 4
    await stores.close()


async def test_a_manifest_refused_after_a_cancelled_move_is_not_reported(
    tmp_path, object_store, monkeypatch
):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    stores = Pair(tmp_path, directory_place(tmp_path))
    putting, goes_on = asyncio.Event(), asyncio.Event()
    put_object = RemoteObjects.put

    async def refuse(self, name, data, *, new=False):
        if not new:
            return await put_object(self, name, data)
        putting.set()
        await goes_on.wait()
        raise RemoteFailure("it exists already", exists=True)

    monkeypatch.setattr(RemoteObjects, "put", refuse)
    move = asyncio.ensure_future(stores.first.move_to_remote(await put(stores.first, 1, 5000)))
    await putting.wait()
    move.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await move
    del move
    await stores.close()
    gc.collect()
    assert not reported


@both_places
async def test_a_move_that_is_cancelled_is_cleaned_up(tmp_path, place):
    stores = Pair(tmp_path, place)
    output = await many_regions(stores.first, 1)
    reading = asyncio.Event()
    read = moved_of(stores.first).uploads._read

    async def slow(reads):
        await read(reads)
        reading.set()
        if reads[0].offset > 2 * MIB:
            await asyncio.Event().wait()

    moved_of(stores.first).uploads._read = slow
    move = asyncio.ensure_future(stores.first.move_to_remote(output))
    await reading.wait()
    await asyncio.sleep(0)
    move.cancel()
    with pytest.raises(asyncio.CancelledError):
        await move
    tier = tier_of(stores.first)
    await eventually(lambda: not (moved(place) or tier.budget.used_bytes))
    await stores.close()
