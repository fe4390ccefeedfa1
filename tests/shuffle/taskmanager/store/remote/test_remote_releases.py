"""Released shuffles whose objects in the remote tier another TaskManager may have written."""

import asyncio
from pathlib import Path

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.objects.remote_names import manifest_name
from sluice.shuffle.taskmanager.store.remote import remote_releases
from tests.support.mini_cluster import eventually
from tests.support.remote import directory_place, open_store, tier_of
from tests.support.store import config

KEY = ShuffleKey("app", 1)


class Rig:
    """A store, and the listings that it makes."""

    def __init__(self, directory: Path):
        self.place = directory_place(directory)
        self.store = open_store(config(directory, **self.place.settings))
        self.store.remote.share("app")
        self.store.remote.share("other")
        self.listed: list[str] = []
        self.proceed = asyncio.Event()
        objects = tier_of(self.store).objects
        listed = objects.listed

        async def watched(prefix):
            self.listed.append(prefix)
            await self.proceed.wait()
            async for each in listed(prefix):
                yield each

        objects.listed = watched

    def put(self, *attempts, key=KEY):
        for attempt in attempts:
            path = self.place.top / manifest_name(MapAttemptKey(key, attempt))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def left(self):
        return {int(name.split("/")[3]) for name in self.place.data()}

    @property
    def waiting(self):
        return len(self.store.remote._removals)


@pytest.fixture
async def rig(tmp_path, object_store):
    rig = Rig(tmp_path)
    yield rig
    await rig.store.close()


@pytest.mark.parametrize(
    ("ends", "left"), [((3, 2), {3}), ((2, 3), {3}), ((None, 2), set()), ((2, None), set())]
)
async def test_a_release_never_narrows_one_that_waits(rig, ends, left):
    rig.put(1, 2, 3)
    rig.store.release_shuffle(KEY._replace(shuffle_id=9), 1)  # it is being listed
    await eventually(lambda: rig.listed)
    for end in ends:
        rig.store.release_shuffle(KEY, end)
    assert rig.waiting == 1
    rig.proceed.set()
    await eventually(lambda: rig.left() == left)
    assert len(rig.listed) == 2


async def test_applications_take_turns(rig):
    for shuffle in range(5):
        rig.store.release_shuffle(ShuffleKey("app", shuffle))
    await eventually(lambda: rig.listed)
    rig.store.release_shuffle(ShuffleKey("other", 7))
    rig.proceed.set()
    await eventually(lambda: len(rig.listed) == 6)
    assert rig.listed.index("moved/other/7") == 2


@pytest.mark.interpreted
async def test_an_application_with_many_releases_displaces_no_other(rig, monkeypatch):
    monkeypatch.setattr(remote_releases, "MAX_RELEASES", 4)
    for shuffle in range(9):
        rig.store.release_shuffle(ShuffleKey("app", shuffle))
    await eventually(lambda: rig.listed)
    for shuffle in range(2):
        rig.store.release_shuffle(ShuffleKey("other", shuffle))
    assert rig.waiting == 4
    rig.proceed.set()
    await eventually(lambda: not rig.waiting and len(rig.listed) == 5)
    assert {"moved/other/0", "moved/other/1"} < set(rig.listed)


async def test_a_repeated_release_with_a_bound_lists_nothing(rig):
    rig.proceed.set()
    rig.put(1, 2)
    for _ in range(3):
        rig.store.release_shuffle(KEY, 2)
        await eventually(lambda: not rig.waiting and rig.left() == {2})
    assert rig.listed == ["moved/app/1"]
    rig.store.release_shuffle(KEY, 3)
    await eventually(lambda: not rig.left())
    assert len(rig.listed) == 2


async def test_a_shuffle_whose_id_is_used_again_is_listed_again(rig):
    rig.proceed.set()
    for _ in range(2):
        rig.put(1)
        rig.store.release_shuffle(KEY)
        await eventually(lambda: not rig.left())
    assert len(rig.listed) == 2


async def test_the_end_of_an_application_forgets_its_releases(rig):
    for shuffle in range(3):
        rig.store.release_shuffle(ShuffleKey("app", shuffle))
    await eventually(lambda: rig.listed)
    rig.store.release_application("app")
    assert rig.waiting == 0


async def test_a_failed_listing_does_not_stop_the_others(rig):
    objects = tier_of(rig.store).objects
    listed = objects.listed

    async def failing(prefix):
        if prefix.endswith("/0"):
            raise RemoteFailure("injected")
        async for each in listed(prefix):
            yield each

    objects.listed = failing
    rig.proceed.set()
    rig.put(1)
    rig.store.release_shuffle(KEY._replace(shuffle_id=0))
    rig.store.release_shuffle(KEY)
    await eventually(lambda: not rig.left())


async def test_applications_with_one_release_each_are_left_one_by_one(rig, monkeypatch):
    monkeypatch.setattr(remote_releases, "MAX_RELEASES", 3)
    for number in range(5):
        rig.store.remote.share(f"app-{number}")
        rig.store.remote.released(ShuffleKey(f"app-{number}", 1), None)
    assert rig.waiting <= 3
    rig.proceed.set()
    await eventually(lambda: not rig.waiting)
    assert len(rig.listed) >= 3
