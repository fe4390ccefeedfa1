"""The marker in a remote directory shows whether the directory is still the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.store.errors import RemoteFailed
from tests.support.mini_cluster import eventually
from tests.support.remote import REMOTE_ONLY, open_store, tier_of
from tests.support.store import KEY, config, content, fetch, put

pytestmark = pytest.mark.usefixtures("object_store")


class Mount:
    """A remote directory that is unmounted and mounted again, as far as a store can see."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.top = directory / "remote"
        self._mounted = directory / "mounted"
        self._bare = directory / "bare"
        self._bare.mkdir(0o700)

    def open(self, **changes: Any) -> Any:
        settings = REMOTE_ONLY | {"remote": str(self.top), "health_check_seconds": 0.01} | changes
        return open_store(config(self.directory, **settings))

    def unmount(self) -> None:
        self.top.rename(self._mounted)
        self._bare.rename(self.top)

    def mount(self) -> None:
        self.top.rename(self._bare)
        self._mounted.rename(self.top)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


async def marked(store: Any) -> None:
    """Watch a store, until its remote directory has its marker."""
    store.watch(lambda lost: None)
    marker = Path(str(tier_of(store).place).removeprefix("file://"))
    await eventually((marker / "taskmanagers" / store.taskmanager_id).exists)


@pytest.mark.parametrize("length", [1000, 13 * 1024 * 1024], ids=["small", "parts"])
async def test_an_unmounted_directory_acknowledges_nothing(mount, length):
    store = mount.open(remote_part_bytes=5 * 1024 * 1024)
    await marked(store)
    kept = await put(store, 1, 1000)
    mount.unmount()
    with pytest.raises(RemoteFailed, match="not mounted") as refused:
        await put(store, 2, length)
    assert refused.value.code is ErrorCode.STORAGE_UNAVAILABLE
    assert refused.value.retryable
    assert not tier_of(store).healthy
    mount.mount()
    await eventually(lambda: tier_of(store).healthy)
    assert await fetch(store, kept) == content(1, 1000)
    await put(store, 2, length)
    assert await fetch(store, store.lookup(KEY, 2)) == content(2, length)
    await store.close()


async def test_probes_do_not_mark_an_unmounted_directory(mount):
    store = mount.open()
    lost: dict[Any, Any] = {}
    store.watch(lost.update)
    kept = await put(store, 1, 1000)
    tier = tier_of(store)
    await eventually(lambda: tier.objects.requests > 3)
    mount.unmount()
    tier.fail("the test wants it probed often")
    before = tier.objects.requests
    await eventually(lambda: tier.objects.requests > before + 5)
    assert not tier.healthy
    with pytest.raises(RemoteFailed, match="not mounted"):
        await fetch(store, kept)
    assert not lost
    assert not any(path.is_file() for path in mount.top.rglob("*"))
    mount.mount()
    await eventually(lambda: tier.healthy)
    await store.close()


async def test_the_marker_of_an_earlier_start_does_not_count(mount):
    store = mount.open()
    await marked(store)
    await store.close()
    mount.unmount()
    again = mount.open()  # started without the mount: nothing shows that
    await marked(again)
    await again.close()
    mount.mount()
    third = mount.open()
    await marked(third)
    await put(third, 1, 1000)
    mount.unmount()
    with pytest.raises(RemoteFailed, match="not mounted"):
        await put(third, 2, 1000)
    await third.close()


async def test_a_moved_output_is_not_recorded_in_an_unmounted_directory(mount):
    store = mount.open(memory_tier_bytes=1024 * 1024)
    await marked(store)
    output = await put(store, 1, 1000)
    mount.unmount()
    with pytest.raises(RemoteFailed, match="not mounted"):
        await store.move_to_remote(output)
    tier_of(store).recover()
    with pytest.raises(RemoteFailed, match="not mounted"):
        await store.remote.find(MapAttemptKey(KEY, 5))
    await store.close()


async def test_an_emptied_directory_is_used_again(mount):
    store = mount.open()
    await marked(store)
    await put(store, 1, 1000)
    for each in mount.top.iterdir():
        shutil.rmtree(each)
    output = await put(store, 2, 1000)
    assert await fetch(store, output) == content(2, 1000)
    await store.close()
