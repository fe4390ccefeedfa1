"""Orphans of the remote tier: what is removed, and above all what is not."""

import os
import time

from sluice.shuffle.taskmanager.store.remote.remote_sweep import RemoteSweep
from tests.support.mini_cluster import eventually
from tests.support.remote import (
    REMOTE_ONLY,
    both_places,
    directory_place,
    extent_of,
    extent_of_region,
    open_store,
    tier_of,
)
from tests.support.store import KEY, config, content, fetch, put, write_region

ORPHAN_SECONDS = 1000
OLD = 10 * ORPHAN_SECONDS


class Rig:
    """Some TaskManagers that share a remote directory, whose files get old when a test says so."""

    def __init__(self, directory, place):
        self.directory = directory
        self.place = place
        self.stores = {}

    def open(self, name, *applications):
        settings = REMOTE_ONLY | self.place.settings | {"remote_part_bytes": 5 * 1024 * 1024}
        store = open_store(config(self.directory / name, **settings))
        sweep = RemoteSweep(tier_of(store), lambda: applications, ORPHAN_SECONDS)
        self.stores[name] = store
        return store, sweep

    def age(self):
        """Let everything that is there become old."""
        then = time.time() - OLD
        for name in self.place.names():
            os.utime(self.place.top / name, (then, then))

    async def close(self):
        for store in self.stores.values():
            await store.close()


@both_places
async def test_own_orphans_go_when_they_are_old(tmp_path, place):
    rig = Rig(tmp_path, place)
    store, sweep = rig.open("one", KEY.application_id)
    kept = await put(store, 1, 100)
    await write_region(store, content(2, 100), [100])
    await store.close()
    store, sweep = rig.open("one", KEY.application_id)
    await sweep.run()
    assert len(rig.place.data()) == 2  # young
    rig.age()
    under_way = await write_region(store, content(3, 100), [100])
    rig.age()
    await sweep.run()
    assert tier_of(store).removed_orphans == 1
    assert sorted(rig.place.data()) == sorted(
        [extent_of(store.lookup(KEY, 1)).name, extent_of_region(under_way).name]
    )
    assert await fetch(store, store.lookup(KEY, kept.map_attempt_id)) == content(1, 100)
    await rig.close()


@both_places
async def test_another_taskmanager_touches_nothing_of_a_living_one_or_a_living_application(
    tmp_path, place
):
    rig = Rig(tmp_path, place)
    one, sweep_one = rig.open("one", KEY.application_id)
    output = await put(one, 1, 100)
    await write_region(one, content(2, 100), [100])
    await one.move_to_remote(output)
    _, sweep_two = rig.open("two")
    rig.age()
    await sweep_one.touch()  # the application's mark is old, and the TaskManager lives
    two_names = [name for name in rig.place.data() if name.startswith("regions/")]
    await sweep_two.run()
    assert [name for name in rig.place.data() if name.startswith("regions/")] == two_names

    await one.move_to_remote(output)
    rig.age()
    await sweep_one.run()  # the application lives
    before = rig.place.data()
    await sweep_two.run()
    assert rig.place.data() == before
    await rig.close()


@both_places
async def test_all_of_an_application_goes_that_nobody_has_known_for_long(tmp_path, place):
    rig = Rig(tmp_path, place)
    one, _ = rig.open("one")
    other = KEY._replace(application_id="other")
    for key in (KEY, other):
        await one.move_to_remote(await put(one, 1, 100, key=key))
    await one.close()
    rig.age()
    _, sweep = rig.open("two", "other")
    await sweep.run()
    assert {name.split("/")[1 if name.startswith("moved") else 2] for name in rig.place.data()} == {
        "other"
    }
    rig.age()
    _, sweep = rig.open("three")
    await sweep.run()
    assert rig.place.data() == []
    await sweep.run()
    assert [name for name in rig.place.names() if name.startswith("applications")] == []
    await rig.close()


@both_places
async def test_the_watch_sweeps_and_deletes_what_an_outage_left(tmp_path, place):
    settings = REMOTE_ONLY | place.settings
    store = open_store(config(tmp_path, **settings))
    await write_region(store, content(2, 100), [100])
    await store.close()
    then = time.time() - OLD
    for name in place.names():
        os.utime(place.top / name, (then, then))
    again = open_store(
        config(tmp_path, **settings, remote_orphan_seconds=1, health_check_seconds=0.05)
    )
    again.watch(lambda lost: None)
    await eventually(lambda: not place.data())
    await again.close()


async def test_files_of_uploads_that_broke_off_go_when_they_are_old(tmp_path, object_store):
    place = directory_place(tmp_path)
    rig = Rig(tmp_path, place)
    store, sweep = rig.open("one", KEY.application_id)
    name = extent_of(await put(store, 1, 100)).name
    others = ("taskmanagers/ab#2", "applications/app#3", "regions/gone/app/00#4")
    for unfinished in (f"{name}#1", "moved/app-1/0/1/ab-0#7", *others):
        path = rig.place.top / unfinished
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a part")
    await sweep.run()
    assert len([each for each in rig.place.names() if "#" in each]) == 5
    rig.age()
    await sweep.run()
    # An object that is live here may be under way.
    assert [each for each in rig.place.names() if "#" in each] == [f"{name}#1"]
    store.release_shuffle(KEY)
    await eventually(lambda: not tier_of(store)._live)
    await sweep.run()
    assert rig.place.data() == []
    await rig.close()


async def test_uploads_of_a_killed_process_go_at_the_next_start(tmp_path, object_store):
    place = directory_place(tmp_path)
    rig = Rig(tmp_path, place)
    store, sweep = rig.open("one", KEY.application_id)
    below = rig.place.top / "regions" / store.taskmanager_id / KEY.application_id
    below.mkdir(parents=True)
    (below / f"{1:016x}#1").write_bytes(b"a part")
    writer = store.begin_region(KEY, 0, [13 * 1024 * 1024])
    await writer.write(0, [memoryview(content(1, 11 * 1024 * 1024))])  # under way
    await eventually(lambda: len(rig.place.data()) == 2)
    await sweep.run()
    assert [each for each in rig.place.data() if each.endswith(f"{1:016x}#1")] == []
    await writer.write(11 * 1024 * 1024, [memoryview(bytes(2 * 1024 * 1024))])
    await writer.flush()
    writer.abort()
    await rig.close()
