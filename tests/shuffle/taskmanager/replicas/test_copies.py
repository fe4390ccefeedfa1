"""Copies between TaskManagers in one event loop, over real sockets."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    EVERY_SUBPARTITION,
    ROLE_COPIER,
    AbortPartition,
    CheckOutputs,
    FinishPartition,
    KnownTaskManager,
    OpenPartition,
    OutputsChecked,
    OutputsHeld,
    OutputsLost,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    RegionSecured,
    ReleaseAttempts,
    ReleaseShuffle,
    ReplicatePartition,
    ResumePartition,
    SecureRegion,
    ShuffleReleased,
)
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence
from sluice.shuffle.taskmanager.replicas.target import PeerTarget
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.copies import (
    KEY,
    copying,
    driver,
    drivers,
    end_application,
    holders,
    read,
    write,
)
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import Client, producer, write_map_output, write_region

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.replicas.target import Outcome

RANDOM = random.Random(21)
SMALL = [[b"a" * 10, b"", b"c" * 77]]
LARGE = [[RANDOM.randbytes(300_001), RANDOM.randbytes(7)], [b"", RANDOM.randbytes(700_000)]]
ON_DISK = {"memory_tier_bytes": 0}
SHORT: dict[str, Any] = {"application_expiry_seconds": 0.2}


@pytest.mark.parametrize("tier", [{}, ON_DISK], ids=["memory", "disk"])
@pytest.mark.parametrize("regions", [SMALL, LARGE, [[b"", b""]]], ids=["small", "large", "empty"])
async def test_a_synchronous_copy_exists_when_the_commit_is_answered(tmp_path, regions, tier):
    async with copying(tmp_path, **tier) as (cluster, links):
        await write(cluster[0], 7, regions)
        assert holders(cluster, 7) == [0, 1]
        held = await links[1].expect(OutputsHeld)
        assert held == OutputsHeld(1, [7])
        copy = cluster[1].store.lookup(KEY, 7)
        assert copy is not None
        assert (copy.origin, copy.replicas) == (cluster[0].taskmanager_id, 2)
        subpartitions = len(regions[0])
        assert await read(cluster[1], 7, subpartitions) == await read(cluster[0], 7, subpartitions)
        counters = cluster[0].counters
        assert (counters.copies_made, counters.copy_bytes_out) == (
            1,
            sum(len(part) for parts in regions for part in parts),
        )
        held_by_account = [each.accounts.of("app").held for each in cluster.environments]
        assert held_by_account[0] == held_by_account[1]


@pytest.mark.interpreted
async def test_a_copy_that_misses_the_page_cache_is_read_ahead_once(tmp_path, monkeypatch):
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(DiskTier, "will_need", lambda self, places: advised.extend(places))
    monkeypatch.setattr(DiskTier, "read_cached", lambda self, offset, buffers: False)
    async with copying(tmp_path, memory_tier_bytes=0) as (cluster, _):
        await write(cluster[0], 7, LARGE)
        assert holders(cluster, 7) == [0, 1]
    assert sum(length for _, length in advised) == sum(len(part) for ps in LARGE for part in ps)


async def test_a_copy_is_released_with_its_shuffle(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True) as cluster:
        links = await drivers(cluster)
        await write(cluster[0], 7, SMALL)
        for link in links:
            link.send(ReleaseShuffle(1))
            released = await link.expect(ShuffleReleased)
            assert released == ShuffleReleased(1, 87)
        assert holders(cluster, 7) == []
        # No connection between the two is left, and nobody is watched.
        await eventually(lambda: len(cluster[0].copies.services.watches) == 0)
        assert len(cluster[0].copies.services.connections) == 0


async def test_a_new_driver_is_notified_of_the_copies(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True) as cluster:
        first = await driver(cluster, 0)
        for attempt in range(3):
            await write(cluster[0], attempt, SMALL)
        late = await driver(cluster, 1)
        held = await late.expect(OutputsHeld)
        assert isinstance(held, OutputsHeld)
        assert (held.shuffle_id, sorted(held.map_attempt_ids)) == (1, [0, 1, 2])
        end_application([first, late])


async def test_a_commit_without_another_taskmanager_is_copied_later(tmp_path, caplog):
    async with mini_cluster(tmp_path, hosts_apart=True) as cluster:
        await write(cluster[0], 7, SMALL)
        assert cluster[0].counters.commits_without_copies == 1
        assert "no other TaskManager is known" in caplog.text
        assert f"map output 7 of shuffle {KEY.shuffle_id} of {KEY.application_id}" in caplog.text
        assert holders(cluster, 7) == [0]
        links = await drivers(cluster)
        await eventually(lambda: holders(cluster, 7) == [0, 1])
        end_application(links)


async def test_a_taskmanager_on_the_same_host_gets_no_copy(tmp_path):
    async with copying(tmp_path, hosts_apart=False) as (cluster, _):
        await write(cluster[0], 7, SMALL)
        assert holders(cluster, 7) == [0]


async def test_three_replicas_are_on_three_hosts(tmp_path):
    async with copying(tmp_path, 4) as (cluster, _):
        for attempt in range(6):
            await write(cluster[0], attempt, SMALL, replicas=3)
            assert len(holders(cluster, attempt)) == 3


async def test_a_taskmanager_that_drains_is_skipped(tmp_path):
    async with copying(tmp_path, 3) as (cluster, _):
        cluster[1].drain()
        for attempt in range(6):
            await write(cluster[0], attempt, SMALL)
            assert holders(cluster, attempt) == [0, 2]


async def test_configured_taskmanagers_get_copies_without_a_driver(tmp_path):
    async with mini_cluster(tmp_path, 1, hosts_apart=True) as cluster:
        names = (str(cluster[0].address),)
        settings = {"hosts_apart": True, "taskmanagers": (*names, "127.0.0.9:1")}
        cluster.environments.append(await cluster.start_one(1, settings))
        writer = await producer(cluster[1].address)
        replicate = ReplicatePartition(0, 2, True)
        await write_map_output(writer, 1, 7, SMALL, replicate=replicate)
        assert holders(cluster, 7) == [0, 1]
        # While the writer's application lives at the origin, it lives at the holder.
        assert cluster[0].applications.knows("app")
        await writer.close()
        end_application([await cluster.driver(0), await cluster.driver(1)])


async def test_broadcast_regions_are_copied_once(tmp_path):
    async with copying(tmp_path) as (cluster, _):
        writer = await producer(cluster[0].address)
        writer.send(OpenPartition(0, 1, 7, 3))
        writer.send(ReplicatePartition(0, 2, True))
        await write_region(writer, 0, 0, [b"x" * 999], first=EVERY_SUBPARTITION)
        writer.send(FinishPartition(0, 999, 1))
        await writer.expect(PartitionFinished)
        await writer.close()
        assert await read(cluster[1], 7, 3) == b"x" * 2997


async def test_copies_are_made_although_the_producer_vanishes(tmp_path):
    """The producer goes away while it waits; its map output is committed and copied."""
    async with copying(tmp_path) as (cluster, _):
        writer = await producer(cluster[0].address)
        replicate = ReplicatePartition(0, 2, True)
        task = asyncio.ensure_future(write_map_output(writer, 1, 7, LARGE, replicate=replicate))
        await eventually(lambda: cluster[0].store.lookup(KEY, 7) is not None)
        writer.vanish()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: holders(cluster, 7) == [0, 1])


class Held:
    """Holds all copies until a test releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = begun, may_go_on = asyncio.Event(), asyncio.Event()
        copy = PeerTarget.copy

        async def hold(target: PeerTarget, *args: Any, **keys: Any) -> Outcome:
            begun.set()
            await may_go_on.wait()
            return await copy(target, *args, **keys)

        monkeypatch.setattr(PeerTarget, "copy", hold)


async def unanswered(client: Client, number: int) -> None:
    """Check that something else is answered, and nothing before it."""
    client.send(OpenPartition(number, KEY.shuffle_id, 1000 + number, 1))
    message, _ = await client.receive()
    assert message == PartitionOpened(number)


@pytest.mark.parametrize("end", ["copied", "deadline", "released"])
async def test_a_resumed_commit_waits_for_its_copies(tmp_path, monkeypatch, end):
    seconds = 0.5 if end == "deadline" else 600
    async with copying(tmp_path, synchronous_timeout_seconds=seconds) as (cluster, links):
        held = Held(monkeypatch)
        first = await cluster.producer(0)
        first.send(OpenPartition(0, KEY.shuffle_id, 7, 1))
        await write_region(first, 0, 0, [b"abc"])
        first.send(SecureRegion(0, 0))
        first.send(ReplicatePartition(0, 2, True))
        await first.expect(RegionSecured)
        first.send(FinishPartition(0, 3, 1))
        await held.begun.wait()
        first.vanish()
        await first.until_lost()
        second = await cluster.producer(0)
        second.send(ResumePartition(5, KEY.shuffle_id, 7, 1))
        await unanswered(second, 1)
        assert cluster[0].is_writing
        if end == "copied":
            held.may_go_on.set()
        elif end == "released":
            links[0].send(ReleaseShuffle(KEY.shuffle_id))
        resumed = await second.expect(PartitionResumed)
        if end == "released":
            assert resumed == PartitionResumed(5, 0, 0, False)
        else:
            assert resumed == PartitionResumed(5, 1, 3, True)
            assert (holders(cluster, 7) == [0, 1]) is (end == "copied")
            # From now on there is nothing to wait for.
            second.send(ResumePartition(6, KEY.shuffle_id, 7, 1))
            await second.expect(PartitionResumed)
        held.may_go_on.set()
        await second.close()


async def test_a_producer_may_abort_its_wait_for_a_commit(tmp_path, monkeypatch):
    async with copying(tmp_path, max_partitions_per_connection=2) as (cluster, _):
        held = Held(monkeypatch)
        writing = asyncio.ensure_future(write(cluster[0], 7, SMALL))
        await held.begun.wait()
        client = await cluster.producer(0)
        client.send(ResumePartition(5, KEY.shuffle_id, 7, 1))
        client.send(AbortPartition(5))
        assert (await client.receive())[0] == PartitionAborted(5)
        for number in (5, 6):
            client.send(ResumePartition(number, KEY.shuffle_id, 7, 1))
        client.send(ResumePartition(7, KEY.shuffle_id, 7, 1))
        with pytest.raises(RemoteError) as refused:
            await client.expect(PartitionResumed)
        assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
        held.may_go_on.set()
        answers = [await client.expect(PartitionResumed) for _ in range(2)]
        assert set(answers) == {PartitionResumed(number, 1, 87, True) for number in (5, 6)}
        await writing


async def test_a_number_waits_for_one_commit_only(tmp_path, monkeypatch):
    async with copying(tmp_path) as (cluster, _):
        held = Held(monkeypatch)
        writing = asyncio.ensure_future(write(cluster[0], 7, SMALL))
        await held.begun.wait()
        client = await cluster.producer(0)
        for _ in range(2):
            client.send(ResumePartition(5, KEY.shuffle_id, 7, 1))
        lost = await client.until_lost()
        assert isinstance(lost, RemoteError)
        assert lost.code is ErrorCode.CHANNEL_IN_USE
        held.may_go_on.set()
        await writing


async def test_a_wrong_place_does_not_affect_other_applications(tmp_path):
    async with mini_cluster(tmp_path, 2, hosts_apart=True, lost_after_seconds=0.3) as cluster:
        links = await drivers(cluster)
        stranger = await driver(cluster, 0, "stranger")
        wrong = KnownTaskManager(cluster[1].taskmanager_id, "127.0.0.9", 9)
        stranger.send(wrong)
        stranger.send(ReleaseShuffle(1))
        await stranger.expect(ShuffleReleased)
        for attempt in range(3):
            await write(cluster[0], attempt, SMALL)
            assert holders(cluster, attempt) == [0, 1]
        watches = cluster[0].copies.services.watches
        other = TaskManagerPlace(cluster[1].taskmanager_id, *cluster[1].address)
        await eventually(lambda: watches.presence(other) is Presence.PRESENT)
        end_application([*links, stranger])


async def test_a_copy_of_a_released_shuffle_is_refused(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        links[1].send(ReleaseShuffle(1))
        await links[1].expect(ShuffleReleased)
        await write(cluster[0], 7, SMALL)
        assert holders(cluster, 7) == [0]
        assert "PARTITION_RELEASED" in cluster[0].copies.services.placement.last_refusal


async def test_a_late_release_keeps_outputs_written_again(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await write(cluster[0], 7, SMALL)
        for link in links:
            link.send(ReleaseAttempts(1, 8))
            assert await link.expect(ShuffleReleased) == ShuffleReleased(1, 87)
        await write(cluster[0], 8, SMALL)
        assert (holders(cluster, 7), holders(cluster, 8)) == ([], [0, 1])
        late = await producer(cluster[0].address)
        with pytest.raises(RemoteError, match="was released"):
            await write_map_output(late, 1, 6, SMALL)
        await late.close()
        links[0].send(CheckOutputs(5, 1, [6, 7, 8]))
        assert await links[0].expect(OutputsLost) == OutputsLost(1, [6, 7])
        assert await links[0].expect(OutputsChecked) == OutputsChecked(5)
        links[0].send(CheckOutputs(6, 1, [8]))
        assert await links[0].expect(OutputsChecked) == OutputsChecked(6)


async def test_copies_expire_with_the_last_client(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True, **SHORT) as cluster:
        links = await drivers(cluster)
        for attempt in range(2):
            await write(cluster[attempt], attempt, SMALL)
            assert holders(cluster, attempt) == [0, 1]
        # Each has a connection to the other one, on which it made its copy.
        assert [len(each.copies.services.connections) for each in cluster.environments] == [1, 1]
        for link in links:
            link.vanish()
        await eventually(lambda: not any(holders(cluster, attempt) for attempt in range(2)))
        assert [each.applications.expired_total for each in cluster.environments] == [1, 1]


async def test_a_copy_lives_as_long_as_clients_of_its_origin(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True, **SHORT) as cluster:
        links = await drivers(cluster)
        await write(cluster[0], 7, SMALL)
        links[1].vanish()
        # The deadline of a holder without a client passes, and it holds the copy nonetheless.
        await eventually(lambda: not cluster[1].applications.lives("app"))
        assert holders(cluster, 7) == [0, 1]
        links[0].vanish()
        await eventually(lambda: not holders(cluster, 7))


async def test_copying_does_not_keep_an_application_alive(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True, **SHORT) as cluster:
        first = await cluster.driver(1)
        keeper = await Client.connect(cluster[0].address, ROLE_COPIER, "app")
        await write(cluster[0], 7, SMALL, synchronous=False)
        assert holders(cluster, 7) == [0]
        await eventually(lambda: not cluster[0].applications.lives("app"))
        # Only now it learns of another one.
        place = TaskManagerPlace(cluster[1].taskmanager_id, *cluster[1].address)
        cluster[0].copies.replication.known("app", place)
        await eventually(lambda: holders(cluster, 7) == [0, 1])
        await eventually(lambda: len(cluster[0].copies.services.connections) == 0)
        first.vanish()
        await keeper.close()
        await eventually(lambda: not holders(cluster, 7))
