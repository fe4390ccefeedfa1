"""Copies in the remote tier of one store, and those that are there already."""

import asyncio

import pytest

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.store.errors import OtherRemoteOutput, OutputGone, RemoteFailed
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.objects.remote_names import manifest_name
from sluice.shuffle.taskmanager.store.output_index import DAMAGED, REPLACED
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.mini_cluster import eventually
from tests.support.remote import directory_place, open_store, tier_of
from tests.support.store import KEY, config, content, fetch, put, write_region

ATTEMPT = MapAttemptKey(KEY, 1)


class Rig:
    """Stores with one remote tier."""

    def __init__(self, directory):
        self.directory = directory
        self.place = directory_place(directory)
        self.stores = []

    def open(self):
        name = f"store{len(self.stores)}"
        store = open_store(config(self.directory / name, **self.place.settings))
        self.stores.append(store)
        return store

    def names(self):
        return [name for name in self.place.data() if name.startswith("moved/")]


@pytest.fixture
async def rig(tmp_path, object_store):
    rig = Rig(tmp_path)
    yield rig
    for store in rig.stores:
        await store.close()


async def put_other(store):
    """Commit a map output of the name with other bytes."""
    region = await write_region(store, content(99, 5000), [2500, 2500])
    output = MapOutput(KEY, 1, 2, (region,))
    await store.commit(output)
    return output


def held(store):
    return store.accounts.of(KEY.application_id).amount(Resource.REMOTE_TIER_BYTES)


@pytest.mark.parametrize("how", ["copy", "move"])
async def test_other_bytes_in_the_remote_tier_are_not_a_copy(rig, how):
    first, second = rig.open(), rig.open()
    await first.remote.copies.make(await put(first, 1, 5000))
    before = rig.names()
    output = await put_other(second)
    for _ in range(2):
        copying = second.remote.copies.make if how == "copy" else second.move_to_remote
        with pytest.raises(OtherRemoteOutput, match="with other bytes"):
            await copying(output)
        await eventually(lambda: rig.names() == before)  # no part of the new one stays
    assert not second.remote.has(ATTEMPT)
    assert held(second) == 0
    assert tier_of(second).healthy


async def test_a_refused_copy_is_not_uploaded_again(rig):
    first, second = rig.open(), rig.open()
    await first.remote.copies.make(await put(first, 1, 5000))
    output = await put_other(second)
    with pytest.raises(OtherRemoteOutput):
        await second.remote.copies.make(output)
    written = tier_of(second).objects.written_bytes
    with pytest.raises(OtherRemoteOutput):
        await second.remote.copies.make(output)
    assert tier_of(second).objects.written_bytes == written
    first.release_shuffle(KEY)
    await eventually(lambda: not rig.names())
    assert await second.remote.copies.make(output)


async def test_the_copy_of_another_taskmanager_is_released_with_its_regions(rig):
    first, second = rig.open(), rig.open()
    assert await first.remote.copies.make(await put(first, 1, 5000))
    assert not await second.remote.copies.make(await put(second, 1, 5000))
    second.release_shuffle(KEY)
    await eventually(lambda: not rig.names())


async def test_a_copy_found_while_its_output_is_dropped_stays(rig):
    """It was another TaskManager that uploaded it."""
    first, second = rig.open(), rig.open()
    await first.remote.copies.make(await put(first, 1, 5000))
    output = await put(second, 1, 5000)
    uploads = second.remote.uploads
    find = uploads.find

    async def drop(output):
        found = await find(output)
        second.drop(output, DAMAGED)
        return found

    async def at_once(length):
        """Return at once."""

    uploads.find = drop
    assert not await second.remote.copies.make(output, at_once)
    assert second.remote.has(ATTEMPT)
    tier = tier_of(second)
    assert not tier.waiting_deletes
    found = await second.remote.find(ATTEMPT)
    assert await fetch(second, found) == content(1, 5000)


async def test_a_copy_of_a_replaced_output_is_deleted(rig):
    store = rig.open()
    output = await put(store, 1, 5000)
    await store.remote.copies.make(output)
    store.drop(output, REPLACED, report=False)
    await eventually(lambda: not rig.names())
    assert held(store) == 0
    assert await store.remote.copies.make(await put_other(store))


async def test_other_bytes_of_a_lost_output_are_not_taken_for_its_copy(rig):
    store = rig.open()
    output = await put(store, 1, 5000)
    await store.remote.copies.make(output)
    store.drop(output, DAMAGED)
    with pytest.raises(OtherRemoteOutput):
        await store.remote.copies.make(await put_other(store))


async def test_a_release_leaves_the_copy_of_a_later_commit(rig):
    """A shuffle's id is used again while the objects of its first use are listed."""
    store = rig.open()
    store.remote.share(KEY.application_id)
    objects = tier_of(store).objects
    write, listed = objects.put, objects.listed
    listing, stored, proceed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def put_last(name, data, *, new=False):
        if name == manifest_name(ATTEMPT):
            stored.set()
            await proceed.wait()
        await write(name, data, new=new)

    async def list_later(prefix):
        listing.set()
        await stored.wait()
        async for each in listed(prefix):
            yield each

    objects.put, objects.listed = put_last, list_later
    store.release_shuffle(KEY)
    await listing.wait()
    making = asyncio.ensure_future(store.remote.copies.make(await put(store, 1, 5000)))
    await stored.wait()
    await eventually(lambda: not store.remote._removals._running)
    await eventually(lambda: not tier_of(store).waiting_deletes)
    proceed.set()
    assert await making
    assert len(rig.names()) == 2


@pytest.mark.parametrize("how", ["copy", "move"])
@pytest.mark.parametrize("ends", ["shuffle", "attempts", "application", "replaced"])
async def test_what_is_uploaded_during_a_release_is_deleted(rig, how, ends):
    store = rig.open()
    output = await put(store, 1, 5000)
    objects = tier_of(store).objects
    write, arrived, proceed = objects.put, asyncio.Event(), asyncio.Event()

    async def wait(name, data, *, new=False):
        await write(name, data, new=new)
        if name == manifest_name(ATTEMPT):
            arrived.set()
            await proceed.wait()

    objects.put = wait
    upload = store.remote.copies.make if how == "copy" else store.move_to_remote
    uploading = asyncio.ensure_future(upload(output))
    await arrived.wait()
    if ends == "shuffle":
        store.release_shuffle(KEY)
    elif ends == "attempts":
        store.release_shuffle(KEY, 2)
    elif ends == "application":
        store.release_application(KEY.application_id)
    else:
        store.drop(output, REPLACED, report=False)
    proceed.set()
    if how == "copy":
        await uploading
    else:
        with pytest.raises(OutputGone):
            await uploading
    await eventually(lambda: not rig.names())
    assert held(store) == 0
    assert not store.remote.applications()


async def test_a_released_output_does_not_move(rig):
    store = rig.open()
    output = await put(store, 1, 5000)
    with output.kept():
        store.release_shuffle(KEY)
        with pytest.raises(OutputGone, match="was released, dropped or replaced"):
            await store.move_to_remote(output)
    assert not rig.names()
    assert not store.remote.applications()


@pytest.mark.parametrize("how", ["copy", "move"])
@pytest.mark.parametrize("ends", ["application", "replaced"])
async def test_a_manifest_with_other_bytes_is_not_deleted(rig, how, ends):
    first, second = rig.open(), rig.open()
    output = await put_other(second)
    arrived, proceed = hold(tier_of(second).objects, "put", lambda name: "manifest" in name)
    upload = second.remote.copies.make if how == "copy" else second.move_to_remote
    uploading = asyncio.ensure_future(upload(output))
    await arrived.wait()
    await first.remote.copies.make(await put(first, 1, 5000))
    if ends == "application":
        second.release_application(KEY.application_id)
    else:
        second.drop(output, REPLACED, report=False)
    proceed.set()
    with pytest.raises(OtherRemoteOutput):
        await uploading
    await settled(second)
    assert len(rig.names()) == 2
    assert await first.remote.uploads.find(first.lookup(*ATTEMPT))


async def test_a_repeated_deletion_does_not_meet_a_newer_manifest(rig):
    first, second = rig.open(), rig.open()
    output = await put(first, 1, 5000)
    await first.remote.copies.make(output)
    objects = tier_of(first).objects
    delete, deleted = objects.delete, asyncio.Event()

    async def unanswered(names):
        await delete(names)
        deleted.set()
        raise RemoteFailure("no answer")

    objects.delete = unanswered
    first.drop(output, REPLACED, report=False)
    await deleted.wait()
    objects.delete = delete
    await second.remote.copies.make(await put_other(second))
    tier_of(first).recover()
    await settled(first)
    assert await second.remote.uploads.find(second.lookup(*ATTEMPT))


@pytest.mark.parametrize("how", ["copy", "move"])
async def test_a_manifest_that_arrives_late_has_its_regions(rig, how):
    first, second = rig.open(), rig.open()
    output = await put(first, 1, 5000)
    objects = tier_of(first).objects
    write, late = objects.put, []

    async def unanswered(name, data, *, new=False):
        if name != manifest_name(ATTEMPT):
            return await write(name, data, new=new)
        late.append(bytes(data))
        raise RemoteFailure("no answer")

    objects.put = unanswered
    upload = first.remote.copies.make if how == "copy" else first.move_to_remote
    with pytest.raises(RemoteFailed):
        await upload(output)
    await settled(first)
    await write(manifest_name(ATTEMPT), late[0])
    found = await second.remote.find(ATTEMPT)
    assert await fetch(second, found) == content(1, 5000)
    first.release_shuffle(KEY)
    await eventually(lambda: not rig.names())


async def test_a_cancelled_upload_whose_manifest_fails_leaves_nothing(rig):
    store = rig.open()
    objects = tier_of(store).objects
    arrived, proceed = hold(objects, "put", lambda name: "manifest" in name, fails=True)
    moving = asyncio.ensure_future(store.move_to_remote(await put(store, 1, 5000)))
    await arrived.wait()
    moving.cancel()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await moving
    await eventually(lambda: not rig.names())


async def settled(store):
    """Wait until a store deletes nothing."""
    await eventually(lambda: not (store.remote._tasks or tier_of(store).waiting_deletes))


def hold(objects, method, matches, *, fails=False):
    """Let requests for some names wait, and perhaps fail; return two events."""
    request, arrived, proceed = getattr(objects, method), asyncio.Event(), asyncio.Event()

    async def wait(name, *arguments, **keys):
        if matches(name):
            arrived.set()
            await proceed.wait()
            if fails:
                raise RemoteFailure("no answer")
        return await request(name, *arguments, **keys)

    setattr(objects, method, wait)
    return arrived, proceed
