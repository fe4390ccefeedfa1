"""Watching a TaskManager: there, away, lost and back."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import taskmanager_watch
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence, TaskManagerWatch
from sluice.shuffle.taskmanager.replicas.replication import RateLimit
from sluice.transport.address import Address
from sluice.transport.errors import ConnectFailed
from tests.support.mini_cluster import eventually, mini_cluster

PLACE = TaskManagerPlace("tm", "127.0.0.1", 7337)
ADDRESS = Address("127.0.0.1", 7337)


class FakeLeg:
    """A connection that a test ends."""

    def __init__(self, place: TaskManagerPlace) -> None:
        self.place = place
        self.ended = asyncio.Event()

    async def until_ended(self, ping_seconds: float) -> None:
        await self.ended.wait()

    def close(self) -> None:
        self.ended.set()


class Rig:
    """A watch whose connections succeed while a test says so."""

    def __init__(self, lost_after_seconds: float, taskmanager_id: str = "tm") -> None:
        self.is_there = False
        self.there_only: Address | None = None
        self.place = PLACE
        self.legs: list[FakeLeg] = []
        self.attempts: list[Address] = []
        self.changes: list[Presence] = []
        self.addresses = [ADDRESS]
        self.watch = TaskManagerWatch(
            lambda: self.addresses,
            taskmanager_id,
            self.connect,  # type: ignore[arg-type]
            lost_after_seconds,
            self.changed,
        )

    async def connect(self, address: Address) -> FakeLeg:
        self.attempts.append(address)
        if not self.is_there or (self.there_only or address) != address:
            raise ConnectFailed("nobody is there")
        self.legs.append(FakeLeg(self.place))
        return self.legs[-1]

    def changed(self, watch: TaskManagerWatch, before: Presence) -> None:
        self.changes.append(watch.presence)


@pytest.fixture(autouse=True)
def hurry(monkeypatch) -> None:
    monkeypatch.setattr(taskmanager_watch, "FIRST_PAUSE_SECONDS", 0.001)


async def test_one_that_is_there_goes_and_comes_back():
    rig = Rig(600)
    rig.is_there = True
    await rig.watch.first_answer()
    assert rig.watch.place == PLACE
    rig.legs[0].close()
    await eventually(lambda: len(rig.legs) == 2)
    await eventually(lambda: len(rig.changes) == 3)
    assert rig.changes == [Presence.PRESENT, Presence.AWAY, Presence.PRESENT]
    await rig.watch.close()


async def test_one_that_stays_away_is_lost_and_may_come_back_all_the_same():
    rig = Rig(0.02)
    await rig.watch.first_answer()
    assert rig.watch.presence is Presence.AWAY
    await eventually(lambda: rig.watch.presence is Presence.LOST)
    rig.is_there = True
    await eventually(lambda: rig.watch.presence is Presence.PRESENT)
    assert rig.changes == [Presence.AWAY, Presence.LOST, Presence.PRESENT]
    await rig.watch.close()


async def test_the_one_that_answers_has_the_id_where_none_is_known():
    rig = Rig(600, "")
    rig.is_there = True
    await rig.watch.first_answer()
    assert rig.watch.taskmanager_id == "tm"
    await rig.watch.close()


async def test_another_one_at_the_address_is_not_it(caplog):
    rig = Rig(0.02)
    rig.is_there = True
    rig.place = PLACE._replace(taskmanager_id="other")
    await eventually(lambda: rig.changes == [Presence.AWAY, Presence.LOST])
    assert "Another TaskManager answers" in caplog.text
    await rig.watch.close()


async def test_it_is_looked_for_wherever_it_may_be():
    rig = Rig(600)
    elsewhere = Address("127.0.0.1", 7338)
    rig.addresses.append(elsewhere)
    rig.there_only = elsewhere
    rig.is_there = True
    await rig.watch.first_answer()
    assert rig.changes == [Presence.PRESENT]  # it was away nowhere
    assert rig.attempts == [ADDRESS, elsewhere]
    rig.legs[0].close()
    await eventually(lambda: len(rig.legs) == 2)
    assert rig.attempts[2:] == [elsewhere]  # where it was
    rig.addresses.clear()  # nobody who named it is left
    rig.legs[1].close()
    await eventually(lambda: len(rig.legs) == 3)
    assert rig.attempts[3:] == [elsewhere]
    await rig.watch.close()
    await rig.watch.close()


async def test_another_one_takes_the_place_of_one_of_the_settings_that_is_lost(caplog):
    rig = Rig(0.02, "")
    rig.is_there = True
    await rig.watch.first_answer()
    rig.place = PLACE._replace(taskmanager_id="other")
    rig.legs[0].close()
    await eventually(lambda: rig.watch.taskmanager_id == "other")
    assert rig.changes == [Presence.PRESENT, Presence.AWAY, Presence.LOST, Presence.PRESENT]
    assert rig.watch.place == rig.place
    # Told once, and not with each attempt.
    assert len(rig.legs) > 2
    assert caplog.text.count("Another TaskManager answers") <= 1
    await rig.watch.close()


async def test_nobody_waits_for_the_answer_to_a_watch_that_is_closed():
    rig = Rig(600)

    async def never(address: Address) -> FakeLeg:
        await asyncio.Event().wait()
        raise AssertionError

    rig.watch._connect = never  # type: ignore[assignment]
    waiting = asyncio.ensure_future(rig.watch.first_answer())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    await rig.watch.close()
    await asyncio.wait_for(waiting, 10)


async def test_a_real_one_is_watched_until_it_ends(tmp_path):
    async with mini_cluster(tmp_path, 2) as cluster:
        changes: list[Presence] = []
        watch = TaskManagerWatch(
            lambda: [cluster[-1].address],
            "",
            cluster[0]._connector.watch,
            600,
            lambda watch, before: changes.append(watch.presence),
        )
        await watch.first_answer()
        assert watch.place == TaskManagerPlace(cluster[1].taskmanager_id, *cluster[1].address)
        await cluster.environments.pop().close()
        await eventually(lambda: changes == [Presence.PRESENT, Presence.AWAY])
        await watch.close()


async def test_the_first_bytes_pass_at_once_and_the_next_ones_wait_for_them():
    limit = RateLimit(1000)
    await limit.take(10)
    await limit.take(10)  # ten milliseconds behind the first ones
    waiting = asyncio.ensure_future(limit.take(10**9))
    later = asyncio.ensure_future(limit.take(1))
    await waiting
    for _ in range(10):
        await asyncio.sleep(0)
    assert not later.done()  # a million seconds
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
