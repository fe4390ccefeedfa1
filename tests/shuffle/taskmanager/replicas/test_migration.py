"""A TaskManager that drains moves its map outputs to others, and sends readers there."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    FinishPartition,
    MoveNoted,
    OpenPartition,
    OutputsHeld,
    OutputsMoved,
    PartitionFinished,
)
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.replicas import migration
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.certificates import Authority
from tests.support.copies import (
    KEY,
    copying,
    driver,
    end_application,
    holders,
    read,
    write,
)
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import consumer, open_gate, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

DATA = [random.Random(n).randbytes(n * 9_000 + 7) for n in range(8)]
ON_DISK = {"memory_tier_bytes": 0}


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(migration, "FIRST_PAUSE_SECONDS", 0.001)


async def write_all(cluster: MiniCluster, index: int = 0) -> None:
    for attempt, data in enumerate(DATA):
        await cluster.write(index, attempt, [[data, b"end"]])


async def note_moves(link: Client, count: int = len(DATA)) -> dict[int, TaskManagerPlace]:
    """Acknowledge moves as a driver does; return the new places."""
    places: dict[int, TaskManagerPlace] = {}
    while len(places) < count:
        message = await link.expect(OutputsMoved)
        assert isinstance(message, OutputsMoved)
        place = TaskManagerPlace(message.taskmanager_id, message.host, message.port)
        places |= dict.fromkeys(message.map_attempt_ids, place)
        link.send(MoveNoted(message.move))
    return places


async def leave(
    cluster: MiniCluster, link: Client, count: int = len(DATA)
) -> dict[int, TaskManagerPlace]:
    """Let the first TaskManager move its map outputs; return the new places."""
    cluster[0].drain()
    noting = asyncio.ensure_future(note_moves(link, count))
    await cluster[0].migrate()
    return await noting


async def refusal(cluster: MiniCluster, index: int, attempt: int) -> RemoteError:
    """Return the error of a reader at a TaskManager."""
    reader = await consumer(cluster[index].address)
    with pytest.raises(RemoteError) as refused:
        await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
    await reader.close()
    return refused.value


@pytest.mark.parametrize("tier", [{}, ON_DISK], ids=["memory", "disk"])
async def test_all_map_outputs_move_and_readers_follow(tmp_path, tier):
    async with copying(tmp_path, 3, **tier) as (cluster, links):
        await write_all(cluster)
        places = await leave(cluster, links[0])
        others = {each.taskmanager_id: number for number, each in enumerate(cluster.environments)}
        assert {others[place.taskmanager_id] for place in places.values()} == {1, 2}
        for attempt, data in enumerate(DATA):
            place = places[attempt]
            assert await read(cluster[others[place.taskmanager_id]], attempt, 2) == data + b"end"
            moved = await refusal(cluster, 0, attempt)
            assert (moved.code, moved.retryable) == (ErrorCode.PARTITION_MOVED, True)
            assert moved.value == str(place)
            assert moved.map_attempt_id == attempt
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.left, progress.staying) == (8, 0, 0)
        assert str(progress) == "8 map outputs moved, 0 left"
        assert cluster[0].counters.map_outputs_moved == 8
        await cluster[0].wait_idle()


async def test_released_map_outputs_do_not_stay(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await write_all(cluster)
        for shuffle_id in (2, 3):
            await cluster.write(0, 1, [[b"a"]], shuffle_id=shuffle_id)
        move = cluster[0].copies.migration
        cluster[0].drain()
        assert (await move.run()).staying == len(DATA) + 2
        assert move.progress.reason == "no other TaskManager is known"
        cluster[0].partitions.release_shuffle(KEY._replace(shuffle_id=2))
        assert move.progress.staying == len(DATA) + 1
        cluster[0].applications.release("app")
        assert (move.progress.staying, move.progress.reason) == (0, "")


async def test_an_existing_copy_is_enough(tmp_path):
    async with copying(tmp_path, 3) as (cluster, links):
        await write(cluster[0], 7, [[b"a" * 1000, b"b"]])
        (holder,) = set(holders(cluster, 7)) - {0}
        made = cluster[0].counters.copies_made
        assert (await leave(cluster, links[0], 1))[7].taskmanager_id == cluster[
            holder
        ].taskmanager_id
        assert cluster[0].counters.copies_made == made
        assert cluster[0].counters.copies_found == 1


async def test_a_reader_partway_through_a_map_output_is_redirected(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        data = random.Random(7).randbytes(2_000_000)
        await cluster.write(0, 7, [[data, b"end"]])
        reader = await cluster.consumer(0)
        gate = open_gate(reader, 1, [(reader.ack, [7])], 0, 2, credit=1)
        while not await gate.read_one(give_credit=0):
            pass
        await leave(cluster, links[0], 1)
        with pytest.raises(RemoteError) as moved:
            await gate.read_all()
        assert moved.value.code is ErrorCode.PARTITION_MOVED
        await asyncio.wait_for(cluster[0].wait_idle(), 20)
        assert await read(cluster[1], 7, 2) == data + b"end"


async def test_a_move_without_a_driver_is_announced_to_a_late_one(tmp_path):
    async with mini_cluster(tmp_path, 2, hosts_apart=True) as cluster:
        await write_all(cluster)
        first = await driver(cluster, 0)
        await eventually(lambda: cluster[0].copies.services.known.places_of("app"))
        keeps_alive = await cluster.driver(0)
        first.vanish()
        await first.until_lost()
        await leave(cluster, keeps_alive)
        late = await driver(cluster, 0)
        places = await note_moves(late)
        assert set(places) == set(range(8))
        end_application([late, await cluster.driver(1)])


async def test_an_acknowledgment_of_a_move_has_a_deadline(tmp_path, caplog):
    async with copying(tmp_path, move_noted_timeout_seconds=0.01) as (cluster, _):
        await write_all(cluster)
        cluster[0].drain()
        await cluster[0].migrate()
        assert "did not acknowledge a move within 0.01 s" in caplog.text
        assert (await refusal(cluster, 0, 3)).code is ErrorCode.PARTITION_MOVED


async def test_map_outputs_without_a_target_stay_with_the_reason(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await write_all(cluster)
        cluster[1].drain()
        cluster[0].drain()
        await cluster[0].migrate()
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.staying) == (0, 8)
        assert "SHUTTING_DOWN" in progress.reason
        assert "8 stay: " in str(progress)
        # It is not asked for each of many map outputs.
        assert cluster[0].counters.copies_failed < 3 * len(DATA)
        assert await read(cluster[0], 3, 2) == DATA[3] + b"end"
        # With room elsewhere the next attempt moves them.
        cluster[1].undrain()
        await leave(cluster, links[0])
        assert cluster[0].copies.migration.progress.left == 0


@pytest.mark.usefixtures("object_store")
@pytest.mark.parametrize("is_full", [False, True])
async def test_a_move_to_the_remote_tier_needs_a_taskmanager(tmp_path, monkeypatch, is_full):

    async def move(store: ShuffleStore, output: MapOutput) -> None:
        raise SluiceError("the bucket is full")

    remote = str(tmp_path / "objects")
    async with mini_cluster(tmp_path, 1, check=False, remote=remote) as cluster:
        await write_all(cluster)
        if is_full:
            monkeypatch.setattr(ShuffleStore, "move_to_remote", move)
        cluster[0].drain()
        await cluster[0].migrate()
        progress = cluster[0].copies.migration.progress
        assert progress.staying == len(DATA)
        reason = "the bucket is full" if is_full else "no other TaskManager is known to serve it"
        assert reason in progress.reason


async def test_map_outputs_finished_during_a_move_move_too(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        writer = await producer(cluster[0].address)
        writer.send(OpenPartition(0, 1, 9, 1))
        await eventually(lambda: cluster[0].is_writing)
        cluster[0].drain()
        migrating = asyncio.ensure_future(cluster[0].migrate())
        noting = asyncio.ensure_future(note_moves(links[0], 1))
        writer.send(FinishPartition(0, 0, 0))
        await writer.expect(PartitionFinished)
        await migrating
        await noting
        assert holders(cluster, 9) == [0, 1]
        await writer.close()


async def test_moved_map_outputs_are_served_after_undrain(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await write_all(cluster)
        await leave(cluster, links[0])
        cluster[0].undrain()
        held = await links[0].expect(OutputsHeld)
        assert isinstance(held, OutputsHeld)
        assert sorted(held.map_attempt_ids) == list(range(8))
        assert await read(cluster[0], 3, 2) == DATA[3] + b"end"


async def test_a_move_can_be_cancelled_at_any_time(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await write_all(cluster)
        cluster[0].drain()
        for turns in (0, 1, 2, 5, 10, 20, 50):
            migrating = asyncio.ensure_future(cluster[0].migrate())
            for _ in range(turns):
                await asyncio.sleep(0)
            migrating.cancel()
            await asyncio.gather(migrating, return_exceptions=True)
        noting = asyncio.ensure_future(note_moves(links[0], len(DATA) + 1))  # until it is canceled
        await cluster[0].migrate()
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)
        for attempt, data in enumerate(DATA):
            assert holders(cluster, attempt) == [0, 1]
            assert await read(cluster[1], attempt, 2) == data + b"end"


async def test_map_outputs_move_over_tls_to_the_only_host(tmp_path, authority):
    async with copying(tmp_path, hosts_apart=False, **authority.settings()) as (cluster, links):
        await write_all(cluster)
        await leave(cluster, links[0])
        assert all(holders(cluster, attempt) == [0, 1] for attempt in range(len(DATA)))


async def test_a_shuffle_released_during_its_move_is_forgotten(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await write_all(cluster)
        cluster[0].drain()
        migrating = asyncio.ensure_future(cluster[0].migrate())
        message = await links[0].expect(OutputsMoved)
        cluster[0].partitions.release_shuffle(KEY)
        assert isinstance(message, OutputsMoved)
        links[0].send(MoveNoted(message.move))
        await migrating
        assert len(cluster[0].partitions.moved) == 0


async def test_moves_are_not_announced_to_other_applications(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        other = await cluster.driver(0, "other")
        await write_map_output(await cluster.producer(0), 1, 7, [[b"a"]])
        await leave(cluster, links[0], 1)
        with pytest.raises(TimeoutError):
            await other.receive(timeout=0.01)


@pytest.mark.usefixtures("object_store")
async def test_refused_map_outputs_move_to_the_remote_tier(tmp_path):
    async with copying(tmp_path, check=False, remote=str(tmp_path / "objects")) as (cluster, links):
        await write_all(cluster)
        cluster[1].drain()
        places = await leave(cluster, links[0])
        assert {place.taskmanager_id for place in places.values()} == {cluster[1].taskmanager_id}
        assert cluster[0].copies.migration.progress.staying == 0
        assert (await refusal(cluster, 0, 3)).code is ErrorCode.PARTITION_MOVED
        await cluster[0].close()
        for attempt, data in enumerate(DATA):
            assert await read(cluster[1], attempt, 2) == data + b"end"
