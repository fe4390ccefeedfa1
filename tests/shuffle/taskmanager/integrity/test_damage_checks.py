"""Reports of damaged data: nothing is believed, what is damaged goes, and hostile reports cost
little."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import OutputsLost, ReportDamage
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, SubpartitionRange
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.integrity import damage_checks
from sluice.shuffle.taskmanager.integrity.damage_checks import CHECK_BYTES
from tests.support.copies import KEY, copying, write
from tests.support.damage import damage
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import read_gate

if TYPE_CHECKING:
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

TIERS = pytest.mark.parametrize("tier", [{}, {"memory_tier_bytes": 0}], ids=["memory", "disk"])
ON_DISK: dict[str, Any] = {"memory_tier_bytes": 0}
REGIONS = [[b"left" * 5000, b"right" * 5000], [b"", b"more" * 5000]]
BOTH = SubpartitionRange(KEY, 0, 2)
MAX_WAITING = 4


def report(client: Client, *map_attempt_ids: int, start: int = 0, end: int = 2) -> None:
    """Send a report about map outputs of the client's own TaskManager."""
    ack = client.ack
    place = ack.taskmanager_id, ack.advertised_host, ack.data_port
    client.send(ReportDamage(1, start, end, *place, list(map_attempt_ids)))


async def read_error(client: Client, map_attempt_id: int) -> RemoteError:
    with pytest.raises(RemoteError) as failed:
        await read_gate(client, 1, [(client.ack, [map_attempt_id])], 0, 2)
    return failed.value


def results(cluster: MiniCluster, number: int = 0) -> dict[str, int]:
    return dict(cluster[number].partitions.damage.results)


@TIERS
async def test_a_damaged_output_is_lost_and_its_readers_are_told(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, **tier) as cluster:
        await cluster.write(0, 7, REGIONS)
        link = await cluster.driver(0)
        await damage(cluster[0], 7)
        client = await cluster.consumer(0)
        report(client, 7)
        error = await read_error(client, 7)  # it waits for the verdict
        assert error.code is ErrorCode.STORAGE_UNAVAILABLE
        assert error.map_attempt_id == 7
        assert "was damaged in storage, and has been dropped" in str(error)
        assert await link.expect(OutputsLost) == OutputsLost(1, [7])
        assert results(cluster) == {"damaged": 1}


@TIERS
async def test_a_damaged_output_comes_back_from_its_copy(tmp_path, tier):
    async with copying(tmp_path, 2, **tier) as (cluster, _):
        for holder, attempt in ((0, 7), (1, 8)):  # the origin, and the one with the copy
            await write(cluster[0], attempt, REGIONS)
            before = cluster[holder].store.lookup(KEY, attempt)
            await damage(cluster[holder], attempt)
            client = await cluster.consumer(holder)
            report(client, attempt)
            store = cluster[holder].store
            await eventually(lambda: store.lookup(KEY, attempt) not in (None, before))  # noqa: B023
            assert store.statistics().repaired_map_outputs == 1
            (content,) = await read_gate(client, 1, [(client.ack, [attempt])], 1, 2)
            assert content == REGIONS[0][1] + REGIONS[1][1]


async def test_a_restart_does_not_bring_a_damaged_output_back(tmp_path):
    async with mini_cluster(tmp_path, 1, **ON_DISK) as cluster:
        await cluster.write(0, 7, REGIONS)
        await damage(cluster[0], 7)
        assert await cluster[0].partitions.damage.verify(stored(cluster, 7))
        released = cluster[0].store.released()
        if released is not None:
            await released
        await cluster[0].close()
        cluster.environments[0] = await cluster.start_one(0, ON_DISK)
        assert cluster[0].store.lookup(KEY, 7) is None


def stored(cluster: MiniCluster, map_attempt_id: int) -> Any:
    return cluster[0].store.lookup(KEY, map_attempt_id)


# ---- reports are not trusted ---------------------------------------------------------------------


async def test_an_intact_output_stays_and_further_reports_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(damage_checks, "LONGEST_PAUSE_SECONDS", 1000.0)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        await cluster.write(0, 8, REGIONS)
        client = await cluster.consumer(0)
        report(client, 7, 8)
        await eventually(lambda: results(cluster) == {"intact": 2})
        report(client, 7, 8)
        sources = [(client.ack, [7])]
        assert await read_gate(client, 1, sources, 0, 1) == [REGIONS[0][0]]
        assert results(cluster) == {"intact": 2, "refused": 2}
        assert cluster[0].partitions.damage.waiting == 0


async def test_a_report_with_one_damaged_output_is_true(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "FIRST_PAUSE_SECONDS", 1000.0)
    async with mini_cluster(tmp_path, 1) as cluster:
        for attempt in range(3):
            await cluster.write(0, attempt, REGIONS)
        await damage(cluster[0], 1)
        client = await cluster.consumer(0)
        report(client, 0, 1, 2)
        await eventually(lambda: results(cluster) == {"intact": 2, "damaged": 1})
        assert stored(cluster, 1) is None
        report(client, 0, 1)  # sent before the reader knew that it is dropped
        await eventually(lambda: results(cluster) == {"intact": 3, "damaged": 1, "unknown": 1})
        report(client, 2)
        await eventually(lambda: results(cluster)["intact"] == 4)


async def test_a_report_is_not_false_because_another_one_came_first(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "FIRST_PAUSE_SECONDS", 1000.0)
    async with mini_cluster(tmp_path, 1) as cluster:
        for attempt in range(3):
            await cluster.write(0, attempt, REGIONS)
        await damage(cluster[0], 0)
        checks = cluster[0].partitions.damage
        checks.report(BOTH, [0])
        checks.report(BOTH, [0, 1])
        await checks.settle(KEY, [0, 1], asyncio.get_running_loop().time() + 60)
        checks.report(BOTH, [2])
        await checks.settle(KEY, [2], asyncio.get_running_loop().time() + 60)
        assert results(cluster) == {"damaged": 1, "repeated": 1, "intact": 2}


async def test_false_reports_do_not_silence_another_application(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "FIRST_PAUSE_SECONDS", 1000.0)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        liar = await cluster.consumer(0, "liar")
        report(liar, 7)  # of its own application, which has nothing
        await eventually(lambda: results(cluster) == {"unknown": 1})
        await damage(cluster[0], 7)
        report(await cluster.consumer(0), 7)
        await eventually(lambda: cluster[0].store.lookup(KEY, 7) is None)
        assert results(cluster) == {"unknown": 1, "damaged": 1}


async def test_only_regions_with_the_reported_subpartitions_are_verified(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        await damage(cluster[0], 7, region=1)
        client = await cluster.consumer(0)
        report(client, 7, start=0, end=1)
        await eventually(lambda: results(cluster) == {"intact": 1})
        assert cluster[0].store.lookup(KEY, 7) is not None


async def test_the_queue_of_an_application_is_bounded_and_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "MAX_WAITING", MAX_WAITING)
    async with mini_cluster(tmp_path, 1) as cluster:
        for attempt in range(MAX_WAITING + 2):
            await cluster.write(0, attempt, [[b"x"]])
        checks = cluster[0].partitions.damage
        account = cluster[0].accounts.of("app")
        before = account.amount(Resource.METADATA_BYTES)
        checks.report(BOTH, range(MAX_WAITING + 2))
        assert checks.waiting == MAX_WAITING
        assert account.amount(Resource.METADATA_BYTES) == before + MAX_WAITING * CHECK_BYTES
        checks.report(BOTH, [0])
        assert results(cluster) == {"refused": 2, "repeated": 1}
        await checks.settle(KEY, range(MAX_WAITING), asyncio.get_running_loop().time() + 60)
        assert account.amount(Resource.METADATA_BYTES) == before
        assert checks.waiting == 0


async def test_the_bytes_of_a_queue_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "MAX_WAITING_BYTES", 25)
    async with mini_cluster(tmp_path, 1) as cluster:
        for attempt in range(3):
            await cluster.write(0, attempt, [[b"x" * (10, 20, 10)[attempt]]])
        checks = cluster[0].partitions.damage
        checks.report(BOTH, range(3))
        assert checks.waiting == 2
        assert results(cluster) == {"refused": 1}
        await checks.settle(KEY, range(3), asyncio.get_running_loop().time() + 60)
        monkeypatch.setattr(damage_checks, "MAX_WAITING_BYTES", 5)
        cluster[0].partitions.damage._applications.clear()  # the report was false
        checks.report(BOTH, [1])
        assert checks.waiting == 1, "one alone may be longer"
        await checks.settle(KEY, [1], asyncio.get_running_loop().time() + 60)


async def test_a_quota_of_metadata_bounds_the_reports(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        account = cluster[0].accounts.of("app")
        limits = list(account._limits)
        limits[Resource.METADATA_BYTES] = account.amount(Resource.METADATA_BYTES)
        account.set_limits(tuple(limits))
        cluster[0].partitions.damage.report(BOTH, [7])
        assert results(cluster) == {"refused": 1}


async def test_applications_take_turns(tmp_path):
    other = ShuffleKey("other", 1)
    async with mini_cluster(tmp_path, 1) as cluster:
        checks = cluster[0].partitions.damage
        order: list[MapAttemptKey] = []

        async def verify(output: Any, regions: Any = None, pace: Any = None) -> bool:
            order.append(MapAttemptKey(output.key, output.map_attempt_id))
            return True

        checks.verify = verify  # type: ignore[method-assign]
        for attempt in range(3):
            await cluster.write(0, attempt, [[b"x"]])
        await write_as(cluster, "other")
        checks.report(BOTH, range(3))
        checks.report(SubpartitionRange(other, 0, 1), [0])
        await checks.settle(KEY, range(3), asyncio.get_running_loop().time() + 60)
        assert [each.shuffle.application_id for each in order] == ["app", "other", "app", "app"]


async def test_a_report_that_is_being_checked_is_not_forgotten(tmp_path, monkeypatch):
    """Otherwise its verdict is lost as soon as another application sends a report."""
    monkeypatch.setattr(damage_checks, "FIRST_PAUSE_SECONDS", 100.0)
    monkeypatch.setattr(damage_checks, "LONGEST_PAUSE_SECONDS", 100.0)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> bool:
        begun.set()
        await go_on.wait()
        return False

    monkeypatch.setattr(damage_checks, "is_damaged", slow)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        await write_as(cluster, "other")
        checks = cluster[0].partitions.damage
        checks.report(BOTH, [7])
        await begun.wait()
        checks.report(SubpartitionRange(ShuffleKey("other", 1), 0, 1), [0])
        go_on.set()
        await checks.settle(KEY, [7], asyncio.get_running_loop().time() + 60)
        checks.report(BOTH, [7])
        assert results(cluster)["refused"] == 1


async def write_as(cluster: MiniCluster, application_id: str) -> None:
    from tests.support.wire_clients import write_map_output

    client = await cluster.producer(0, application_id)
    await write_map_output(client, 1, 0, [[b"x"]])


# ---- cancellation and the end --------------------------------------------------------------------


async def test_a_wait_can_be_cancelled_and_ends_at_its_deadline(tmp_path, monkeypatch):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> bool:
        begun.set()
        await go_on.wait()
        return False

    monkeypatch.setattr(damage_checks, "is_damaged", slow)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        checks = cluster[0].partitions.damage
        checks.report(BOTH, [7])
        await begun.wait()
        now = asyncio.get_running_loop().time()
        await checks.settle(KEY, [7], now)
        waiting = asyncio.create_task(checks.settle(KEY, [7], now + 600))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert checks.waiting == 1
        go_on.set()
        await checks.settle(KEY, [7], now + 600)
        assert results(cluster) == {"intact": 1}


async def test_the_end_cancels_the_checks(tmp_path, monkeypatch):
    begun = asyncio.Event()

    async def endless(*args: Any) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(damage_checks, "is_damaged", endless)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        await cluster.write(0, 8, REGIONS)
        checks = cluster[0].partitions.damage
        checks.report(BOTH, [7, 8])
        await begun.wait()
        await checks.close()
        assert checks.waiting == 0
        assert stored(cluster, 7) is not None
        checks.report(BOTH, [7])
        assert results(cluster) == {"unknown": 1}


async def test_a_bug_in_one_check_does_not_stop_the_others(tmp_path, monkeypatch, caplog):
    async def broken(*args: Any) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(damage_checks, "is_damaged", broken)
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        await cluster.write(0, 8, REGIONS)
        checks = cluster[0].partitions.damage
        checks.report(BOTH, [7, 8])
        await checks.settle(KEY, [7, 8], asyncio.get_running_loop().time() + 60)
        assert checks.waiting == 0
    assert "a bug" in caplog.text
