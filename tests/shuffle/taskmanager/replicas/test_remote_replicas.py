"""Copies in the remote tier of committed map outputs: TaskManagers in one loop."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    OutputsLost,
    OutputsRemote,
    ReleaseApplication,
    ReleaseAttempts,
    ReleaseShuffle,
    ReplicateToRemote,
    ShuffleReleased,
)
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.objects.remote_marker import RemoteMarker
from sluice.shuffle.taskmanager.store.objects.remote_objects import RemoteObjects
from sluice.shuffle.taskmanager.store.tiers.slot_allocator import occupied_bytes
from tests.support.copies import KEY, read
from tests.support.damage import damage
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import producer, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

pytestmark = [
    pytest.mark.asyncio(loop_factories=["uvloop"]),
    pytest.mark.usefixtures("object_store"),
]

DATA = [b"first", b"", b"third" * 5_000]
CONTENT = b"".join(DATA)


async def write(
    environment: NetworkEnvironment, map_attempt_id: int, *, synchronous: bool = True
) -> None:
    client = await producer(environment.address)
    replicate = ReplicateToRemote(0, synchronous)
    await write_map_output(client, KEY.shuffle_id, map_attempt_id, [DATA], replicate=replicate)
    await client.close()


async def told(client: Client, count: int) -> set[int]:
    """Return the map attempts that a driver has been told of, when there are as many."""
    found: set[int] = set()
    while len(found) < count:
        message = await client.expect(OutputsRemote)
        assert isinstance(message, OutputsRemote)
        found.update(message.map_attempt_ids)
    return found


def objects(top: Path) -> list[str]:
    """Return the names of the objects of map outputs."""
    return sorted(
        os.path.relpath(os.path.join(directory, name), top)
        for directory, _, names in os.walk(top / "moved")  # empty directories go meanwhile
        for name in names
    )


def failing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let uploads fail while the list has a member."""
    is_failing = [True]
    put = RemoteObjects.put

    async def fail(self: Any, *args: Any, **keys: Any) -> None:
        if is_failing:
            raise RemoteFailure("injected")
        await put(self, *args, **keys)

    monkeypatch.setattr(RemoteObjects, "put", fail)
    return is_failing


@pytest.mark.parametrize("synchronous", [False, True])
async def test_another_taskmanager_serves_the_copy(tmp_path, synchronous):
    top = tmp_path / "objects"
    async with mini_cluster(tmp_path, 2, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0)
        await write(cluster[0], 7, synchronous=synchronous)
        if synchronous:
            assert len(objects(top)) == 2
        assert await told(driver, 1) == {7}
        assert cluster[0].copies.status().short_of_remote == 0
        assert cluster[0].counters.remote_copies_made == 1
        assert cluster[0].counters.remote_copy_bytes == len(CONTENT)
        assert await read(cluster[1], 7, 3) == CONTENT
        assert cluster[1].store.map_outputs(KEY)[7].is_moved


async def test_outputs_without_their_copy_are_copied_after_a_start(tmp_path, monkeypatch):
    top = tmp_path / "objects"
    is_failing = failing(monkeypatch)
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        await write(cluster[0], 7)
        assert cluster[0].counters.commits_without_copies == 1
        assert cluster[0].copies.status().short_of_remote == 1
        assert not objects(top)
    is_failing.clear()
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0)
        assert await told(driver, 1) == {7}
        assert len(objects(top)) == 2
    # The next start finds the copy, and uploads nothing.
    before = objects(top)
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0)
        assert await told(driver, 1) == {7}
        assert objects(top) == before
        assert cluster[0].counters.remote_copies_made == 0


async def test_a_failed_remote_tier_is_tried_again(tmp_path, monkeypatch):
    is_failing = failing(monkeypatch)
    remote = str(tmp_path / "objects")
    async with mini_cluster(
        tmp_path, 1, check=False, remote=remote, health_check_seconds=0.1
    ) as cluster:
        driver = await cluster.driver(0)
        await write(cluster[0], 7, synchronous=False)
        await eventually(lambda: cluster[0].counters.remote_copies_failed)
        assert cluster[0].copies.status().short_of_remote == 1
        is_failing.clear()
        assert await told(driver, 1) == {7}
        assert cluster[0].copies.status().short_of_remote == 0


async def test_a_damaged_output_gets_no_copy_and_is_dropped(tmp_path, monkeypatch):
    is_failing = failing(monkeypatch)
    remote = str(tmp_path / "objects")
    async with mini_cluster(
        tmp_path, 1, check=False, remote=remote, health_check_seconds=0.1
    ) as cluster:
        await write(cluster[0], 7)
        await damage(cluster[0], 7)
        is_failing.clear()
        await eventually(lambda: cluster[0].partitions.damage.dropped == 1)
        assert cluster[0].store.lookup(KEY, 7) is None
        await eventually(lambda: not objects(tmp_path / "objects"))


async def damaged(cluster: MiniCluster) -> None:
    """Damage the map output of the first TaskManager, and let that find it."""
    await damage(cluster[0], 7)
    output = cluster[0].store.lookup(KEY, 7)
    assert output is not None
    assert await cluster[0].partitions.damage.verify(output)
    assert cluster[0].store.lookup(KEY, 7) is None


async def lost_and_remote(client: Client) -> list[str]:
    """Return what a driver is told until a map output is lost."""
    kinds: list[str] = []
    while "OutputsLost" not in kinds:
        message, _ = await client.receive()
        assert isinstance(message, OutputsLost | OutputsRemote)
        assert message.map_attempt_ids == [7]
        kinds.append(type(message).__name__)
    return kinds


async def test_the_copy_of_a_damaged_output_is_announced_first(tmp_path):
    """Else the driver runs its map task again."""
    async with mini_cluster(tmp_path, 1, check=False, remote=str(tmp_path / "objects")) as cluster:
        before = await cluster.driver(0)
        await write(cluster[0], 7)
        assert await told(before, 1) == {7}
        await damaged(cluster)
        assert await lost_and_remote(before) == ["OutputsRemote", "OutputsLost"]
        after = await cluster.driver(0)
        assert (await lost_and_remote(after))[-2:] == ["OutputsRemote", "OutputsLost"]
        assert await read(cluster[0], 7, 3) == CONTENT  # from its copy


async def test_a_copy_found_after_damage_is_charged_once(tmp_path):
    top = tmp_path / "objects"
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        await write(cluster[0], 7)
        once = held(cluster[0])
        await damaged(cluster)
        assert held(cluster[0]) == once
        assert await read(cluster[0], 7, 3) == CONTENT
        assert held(cluster[0]) == once
        driver = await cluster.driver(0)
        assert await told(driver, 1) == {7}
        driver.send(ReleaseShuffle(KEY.shuffle_id))
        await driver.expect(ShuffleReleased)
        await eventually(lambda: not held(cluster[0]) and not objects(top))


@pytest.mark.parametrize("is_found", [False, True])
async def test_a_copy_survives_damage_while_it_is_made(tmp_path, monkeypatch, is_found):
    """The bytes that were sent are intact, and the only ones."""
    top = tmp_path / "objects"
    arrived, proceed = asyncio.Event(), asyncio.Event()
    confirm = RemoteMarker.require_stored

    async def wait(self: Any, name: str) -> None:
        await confirm(self, name)
        if name.endswith("/manifest"):
            arrived.set()
            await proceed.wait()

    monkeypatch.setattr(RemoteMarker, "require_stored", wait)
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0)
        await write(cluster[0], 7, synchronous=False)
        await arrived.wait()
        await damaged(cluster)
        if is_found:
            assert await read(cluster[0], 7, 3) == CONTENT
        proceed.set()
        assert await told(driver, 1) == {7}
        assert await read(cluster[0], 7, 3) == CONTENT
        await eventually(lambda: not cluster[0].copies.replication.waiting)
        assert len(objects(top)) == 2
        assert held(cluster[0]) == occupied_bytes(len(CONTENT))


async def test_an_output_of_a_late_directory_gets_its_copy(tmp_path, monkeypatch):
    is_failing = failing(monkeypatch)
    remote = str(tmp_path / "objects")
    async with mini_cluster(
        tmp_path, 1, check=False, remote=remote, health_check_seconds=0.1
    ) as cluster:
        driver = await cluster.driver(0)
        await write(cluster[0], 7)
        output = cluster[0].store.lookup(KEY, 7)
        assert output is not None
        cluster[0].copies.lost({KEY: [7]})  # as if its directory did not answer
        is_failing.clear()
        cluster[0]._outputs_adopted([output])
        assert await told(driver, 1) == {7}


async def test_a_driver_that_connects_later_is_told(tmp_path):
    async with mini_cluster(tmp_path, 1, check=False, remote=str(tmp_path / "objects")) as cluster:
        for attempt in (1, 2, 3):
            await write(cluster[0], attempt)
        driver = await cluster.driver(0)
        assert await told(driver, 3) == {1, 2, 3}


@pytest.mark.parametrize(
    ("release", "left"),
    [
        (ReleaseShuffle(KEY.shuffle_id), set()),
        (ReleaseAttempts(KEY.shuffle_id, 2), {"2"}),
        (ReleaseApplication(), set()),
    ],
    ids=["shuffle", "attempts", "application"],
)
@pytest.mark.parametrize("who", ["origin", "other"])
async def test_any_taskmanager_releases_the_copies(tmp_path, release, left, who):
    top = tmp_path / "objects"
    async with mini_cluster(tmp_path, 2, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0 if who == "origin" else 1)
        for attempt in (1, 2):
            await write(cluster[0], attempt)
        assert {each.split("/")[3] for each in objects(top)} == {"1", "2"}
        driver.send(release)
        await eventually(lambda: {each.split("/")[3] for each in objects(top)} == left)
        if who == "origin" and not left:
            await eventually(lambda: not held(cluster[0]))


def held(environment: NetworkEnvironment) -> int:
    """Return the bytes of the remote tier charged to the application."""
    return environment.accounts.of("app").amount(Resource.REMOTE_TIER_BYTES)


async def test_a_copy_is_charged_to_its_application(tmp_path):
    async with mini_cluster(tmp_path, 1, check=False, remote=str(tmp_path / "objects")) as cluster:
        await write(cluster[0], 1)
        assert held(cluster[0]) >= len(CONTENT)
        driver = await cluster.driver(0)
        driver.send(ReleaseShuffle(KEY.shuffle_id))
        await driver.expect(ShuffleReleased)
        assert held(cluster[0]) == 0


@pytest.mark.parametrize("key", ["quota_remote_tier_bytes", "remote_quota_bytes"])
async def test_a_copy_over_a_quota_is_not_made(tmp_path, key):
    top = tmp_path / "objects"
    quota = {key: 30_000}
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top), **quota) as cluster:
        await write(cluster[0], 1)
        await write(cluster[0], 2)
        assert cluster[0].copies.status().short_of_remote == 1
        assert {each.split("/")[3] for each in objects(top)} == {"1"}
        assert await read(cluster[0], 2, 3) == CONTENT


async def test_a_missing_remote_tier_is_logged(tmp_path, caplog):
    async with mini_cluster(tmp_path, 1, check=False) as cluster:
        await write(cluster[0], 1)
        assert cluster[0].copies.status().short_of_remote == 1
        assert "takes no copy of map output 1 of shuffle 1 of app" in caplog.text
        assert "[storage] remote" in caplog.text


async def test_a_released_map_output_leaves_no_upload(tmp_path, monkeypatch):
    top = tmp_path / "objects"
    arrived, proceed = asyncio.Event(), asyncio.Event()
    put = RemoteObjects.put

    async def wait(self: Any, name: str, *args: Any, **keys: Any) -> None:
        if name.endswith("/manifest"):
            arrived.set()
            await proceed.wait()
        await put(self, name, *args, **keys)

    monkeypatch.setattr(RemoteObjects, "put", wait)
    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        driver = await cluster.driver(0)
        await write(cluster[0], 1, synchronous=False)
        await arrived.wait()
        driver.send(ReleaseShuffle(KEY.shuffle_id))
        await driver.expect(ShuffleReleased)
        proceed.set()
        await eventually(lambda: not objects(top) and not cluster[0].copies.replication.waiting)
        assert held(cluster[0]) == 0


async def test_a_close_during_the_upload_leaves_no_part(tmp_path, monkeypatch):
    top = tmp_path / "objects"
    arrived = asyncio.Event()

    async def hang(self: Any, *args: Any, **keys: Any) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with mini_cluster(tmp_path, 1, check=False, remote=str(top)) as cluster:
        with monkeypatch.context() as patched:
            patched.setattr(
                "sluice.shuffle.taskmanager.store.remote.output_uploads.OutputUploads._copy", hang
            )
            await write(cluster[0], 1, synchronous=False)
            await arrived.wait()
            await cluster[0].copies.replication.close()
        assert not objects(top)
        assert held(cluster[0]) == 0


async def test_an_unreadable_copy_is_not_found_elsewhere(tmp_path):
    """Nothing in the remote tier: a reader at another TaskManager gets the usual error."""
    async with mini_cluster(
        tmp_path, 2, check=False, remote=str(tmp_path / "o"), partition_request_timeout_seconds=0.1
    ) as cluster:
        with pytest.raises(RemoteError) as caught:
            await read(cluster[1], 7, 3)
        assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
