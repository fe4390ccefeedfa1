"""A TaskManager that drains answers for what it moved: receivers are asked, and may be lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import FinishPartition, OpenPartition, OutputsHeld, PartitionFinished
from sluice.shuffle.taskmanager.replicas import migration
from sluice.shuffle.taskmanager.replicas.target import Outcome, PeerTarget
from sluice.shuffle.taskmanager.store.output_index import DAMAGED
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.shuffle.taskmanager.replicas.conftest import free_address
from tests.support import wire_clients
from tests.support.copies import KEY, copying, driver, read, write
from tests.support.mini_cluster import eventually
from tests.support.remote import extent_of
from tests.support.store import write_region
from tests.support.wire_clients import consumer, read_gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.mini_cluster import MiniCluster

COUNT = 40
DATA = [b"%d" % number * (number * 50 + 1) for number in range(COUNT)]
QUICK: dict[str, Any] = {"lost_after_seconds": 0.05, "move_noted_timeout_seconds": 0.001}


def one_port() -> dict[str, Any]:
    """Settings with which a TaskManager returns to its port, and is not lost before."""
    port = free_address("127.0.0.2").port
    return QUICK | {"hosts_apart": True, "data_port": port, "lost_after_seconds": 60}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(migration, "FIRST_PAUSE_SECONDS", 0.001)


async def write_all(cluster: MiniCluster) -> None:
    for attempt, data in enumerate(DATA):
        await cluster.write(0, attempt, [[data, b"end"]])


async def unreadable(cluster: MiniCluster, alive: set[int]) -> list[int]:
    """Return the map outputs that a reader cannot get, if it begins at the drained TaskManager."""
    numbers = {str(each.address): number for number, each in enumerate(cluster.environments)}
    missing = []
    for attempt, data in enumerate(DATA):
        number = 0
        try:
            reader = await consumer(cluster[0].address)
            await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
        except RemoteError as error:
            if error.code is not ErrorCode.PARTITION_MOVED:
                raise
            number = numbers[str(error.value).split()[1]]
        finally:
            await reader.close()
        if number not in alive or await read(cluster[number], attempt, 2) != data + b"end":
            missing.append(attempt)
    return missing


def close_after(monkeypatch, cluster: MiniCluster, number: int, copies: int) -> Callable[[], bool]:
    """Stop a TaskManager after that many map outputs were copied there."""
    copy, made = PeerTarget.copy, 0

    async def counted(target: PeerTarget, *args: Any, **keys: Any) -> Outcome:
        nonlocal made
        outcome = await copy(target, *args, **keys)
        if target.name == cluster[number].taskmanager_id and outcome is Outcome.COPIED:
            made += 1
            if made == copies:
                await cluster[number].close()
        return outcome

    monkeypatch.setattr(PeerTarget, "copy", counted)
    return lambda: made >= copies


async def test_outputs_that_a_receiver_lost_during_the_move_move_again(tmp_path, monkeypatch):
    async with copying(tmp_path, 3, check=False, **QUICK) as (cluster, _):
        await write_all(cluster)
        stopped = close_after(monkeypatch, cluster, 1, 10)
        cluster[0].drain()
        await cluster[0].migrate()
        assert stopped()
        assert await unreadable(cluster, {0, 2}) == []
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.left, progress.staying) == (COUNT, 0, 0)


async def test_outputs_that_the_only_receiver_lost_stay_with_the_reason(tmp_path, monkeypatch):
    async with copying(tmp_path, 2, check=False, **QUICK) as (cluster, _):
        await write_all(cluster)
        close_after(monkeypatch, cluster, 1, 15)
        cluster[0].drain()
        await cluster[0].migrate()
        assert await unreadable(cluster, {0}) == []
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.staying) == (0, COUNT)
        assert cluster[1].taskmanager_id in progress.reason


async def test_a_receiver_at_its_quota_confirms_what_it_has(tmp_path):
    async with copying(tmp_path, 2, quota_map_outputs=COUNT, **QUICK) as (cluster, _):
        await write_all(cluster)
        cluster[0].drain()
        await cluster[0].migrate()
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.staying) == (COUNT, 0)


async def test_outputs_that_a_receiver_dropped_move_again(tmp_path, monkeypatch):
    async with copying(tmp_path, 2, **QUICK) as (cluster, links):
        await write_all(cluster)
        confirm, dropped = PeerTarget.confirm, False

        async def dropping(target: PeerTarget, *args: Any) -> tuple[Outcome, str]:
            nonlocal dropped
            if not dropped:
                dropped = True
                for output in list(cluster[1].store.map_outputs(KEY).values()):
                    cluster[1].store.drop(output, DAMAGED, report=False)
            return await confirm(target, *args)

        monkeypatch.setattr(PeerTarget, "confirm", dropping)
        cluster[0].drain()
        await cluster[0].migrate()
        assert await unreadable(cluster, {0, 1}) == []
        assert cluster[0].copies.migration.progress.moved == COUNT
        assert isinstance(await links[0].expect(OutputsHeld), OutputsHeld)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_receiver_lost_after_the_move_is_replaced_by_the_origin(tmp_path, replicas):
    async with copying(tmp_path, 2, check=False, **QUICK) as (cluster, _):
        for attempt, data in enumerate(DATA):
            await write(cluster[0], attempt, [[data, b"end"]], replicas=replicas)
        cluster[0].drain()
        await cluster[0].migrate()
        assert len(await unreadable(cluster, {0})) == COUNT  # they are read at the receiver
        await cluster[1].close()
        await eventually(lambda: cluster[0].copies.migration.progress.moved == 0)
        await eventually(lambda: not cluster[0].copies.migration.progress.active)
        assert await unreadable(cluster, {0}) == []
        progress = cluster[0].copies.migration.progress
        assert (progress.left, progress.staying) == (COUNT, COUNT)
        assert "does not answer" in progress.reason


async def drained(cluster: MiniCluster) -> None:
    """Let the first TaskManager move its map outputs."""
    await write_all(cluster)
    cluster[0].drain()
    await cluster[0].migrate()
    assert cluster[0].copies.migration.progress.moved == COUNT


async def all_moved(cluster: MiniCluster) -> None:
    """Wait until a drain is complete again."""
    await eventually(lambda: cluster[0].copies.migration.progress[:4] == (False, COUNT, 0, 0))


async def test_a_restarted_receiver_is_read_from_again(tmp_path):
    settings = one_port()
    async with copying(tmp_path, 3, check=False, **settings) as (cluster, _):
        await drained(cluster)
        made = cluster[0].counters.copies_made
        moved = cluster[0].copies.services.moved
        await cluster[1].close()
        await eventually(lambda: len(moved) < COUNT)
        assert await unreadable(cluster, {0, 2}) == []  # they are read here meanwhile
        cluster.environments[1] = await cluster.start_one(1, settings)
        await driver(cluster, 1)
        await all_moved(cluster)
        assert cluster[0].counters.copies_made == made
        assert await unreadable(cluster, {1, 2}) == []


async def test_a_lost_receiver_is_replaced_by_another(tmp_path):
    async with copying(tmp_path, 3, check=False, **QUICK) as (cluster, _):
        await drained(cluster)
        await cluster[1].close()
        await eventually(lambda: len(cluster[0].copies.services.moved.places()) == 1)
        await all_moved(cluster)
        assert await unreadable(cluster, {2}) == []


async def test_only_outputs_that_a_receiver_lost_move_again(tmp_path):
    settings: dict[str, Any] = QUICK | {"lost_after_seconds": 60}
    async with copying(tmp_path, 3, **settings) as (cluster, _):
        await drained(cluster)
        made = cluster[0].counters.copies_made
        for output in list(cluster[1].store.map_outputs(KEY).values())[:3]:
            cluster[1].store.drop(output, DAMAGED)
        await eventually(lambda: cluster[0].counters.copies_made == made + 3)
        await all_moved(cluster)
        assert cluster[0].counters.copies_made == made + 3
        assert await unreadable(cluster, {1, 2}) == []


async def adopt(cluster: MiniCluster, attempt: int) -> None:
    """Let a map output appear at the first TaskManager, as from a directory that answers late."""
    store = cluster[0].store
    region = await write_region(store, bytes(3000), [1000, 2000], key=KEY)
    output = MapOutput(KEY, attempt, 2, (region,))
    await store.commit(output)
    cluster[0]._outputs_adopted([output])


async def test_outputs_of_a_directory_that_answers_after_the_drain_move(tmp_path):
    async with copying(tmp_path, 2, **QUICK) as (cluster, _):
        await drained(cluster)
        migration = cluster[0].copies.migration
        await adopt(cluster, COUNT)
        await eventually(lambda: migration.progress[:4] == (False, COUNT + 1, 0, 0))
        cluster[0].undrain()
        await adopt(cluster, COUNT + 1)
        assert migration.progress[:4] == (False, 0, COUNT + 2, 0)


async def test_a_move_ends_when_outputs_adopted_meanwhile_have_moved(tmp_path, monkeypatch):
    async with copying(tmp_path, 2, **QUICK) as (cluster, _):
        await write_all(cluster)
        confirm, adopted = PeerTarget.confirm, False

        async def adopting(target: PeerTarget, *args: Any) -> tuple[Outcome, str]:
            nonlocal adopted
            if not adopted:
                adopted = True
                await adopt(cluster, COUNT)
            return await confirm(target, *args)

        monkeypatch.setattr(PeerTarget, "confirm", adopting)
        cluster[0].drain()
        await cluster[0].migrate()
        assert cluster[0].copies.migration.progress[:4] == (False, COUNT + 1, 0, 0)


async def test_a_move_ends_when_outputs_committed_meanwhile_have_moved(tmp_path, monkeypatch):
    async with copying(tmp_path, 2, **QUICK) as (cluster, _):
        await write_all(cluster)
        writer = await cluster.producer(0)
        writer.send(OpenPartition(0, KEY.shuffle_id, COUNT, 2))
        await wire_clients.write_region(writer, 0, 0, [b"late", b"end"])
        confirm, committed = PeerTarget.confirm, False

        async def committing(target: PeerTarget, *args: Any) -> tuple[Outcome, str]:
            nonlocal committed
            if not committed:
                committed = True
                writer.send(FinishPartition(0, len(b"lateend"), 1))
                await writer.expect(PartitionFinished)
            return await confirm(target, *args)

        monkeypatch.setattr(PeerTarget, "confirm", committing)
        cluster[0].drain()
        await cluster[0].migrate()
        assert cluster[0].copies.migration.progress[:4] == (False, COUNT + 1, 0, 0)


async def test_a_release_while_a_move_waits_does_not_end_it(tmp_path):
    async with copying(tmp_path, 2, copy_streams=1, **QUICK) as (cluster, _):
        await write_all(cluster)
        streams = cluster[0].copies.services.streams
        await streams.take("app")
        cluster[0].drain()
        moving = asyncio.ensure_future(cluster[0].migrate())
        await eventually(lambda: streams.waiting)
        cluster[0].partitions.release_shuffle(KEY, 3)
        if (written := cluster[0].store.released()) is not None:
            await written
        streams.release("app")
        await moving
        assert cluster[0].copies.migration.progress[:4] == (False, COUNT - 3, 0, 0)


async def test_nothing_moves_again_after_undrain(tmp_path):
    settings = one_port()
    async with copying(tmp_path, 2, check=False, **settings) as (cluster, _):
        await drained(cluster)
        migration = cluster[0].copies.migration
        await cluster[1].close()
        await eventually(lambda: migration.progress.staying == COUNT)
        assert list(migration.awaited())
        cluster[0].undrain()
        assert migration.progress[:4] == (False, 0, COUNT, 0)
        assert not list(migration.awaited())
        assert not len(cluster[0].copies.services.watches)
        assert await unreadable(cluster, {0}) == []


async def test_a_released_output_is_no_longer_one_that_stays(tmp_path):
    async with copying(tmp_path, 2, check=False, **QUICK) as (cluster, _):
        await drained(cluster)
        migration = cluster[0].copies.migration
        await cluster[1].close()
        await eventually(lambda: migration.progress.staying == COUNT)
        cluster[0].partitions.release_shuffle(KEY, 3)
        assert len(migration._staying) == COUNT - 3
        cluster[0].applications.release("app")
        assert len(migration._staying) == 0
        assert not list(migration.awaited())
        await eventually(lambda: not len(cluster[0].copies.services.watches))


async def test_a_damaged_output_moves_to_its_copy_or_is_lost(tmp_path):
    async with copying(tmp_path, 2, memory_tier_bytes=0, **QUICK) as (cluster, _):
        await write(cluster[0], 0, [[b"good" * 100]])
        await write(cluster[0], 1, [[b"only" * 100]], replicas=1)
        for attempt in (0, 1):
            output = cluster[0].store.lookup(KEY, attempt)
            assert output is not None
            extent = extent_of(output)
            await asyncio.to_thread(damage, extent.tier.path, extent.offset)
        cluster[0].drain()
        await cluster[0].migrate()
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.staying) == (1, 0)
        assert cluster[0].store.lost_of("app") == {KEY: [1]}
        assert await read(cluster[1], 0, 1) == b"good" * 100


def damage(path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"bad")
