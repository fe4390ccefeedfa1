"""A watched TaskManager is present, away, lost, and back."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import taskmanager_watch
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence, TaskManagerWatch
from sluice.transport.address import Address
from sluice.transport.errors import ConnectFailed
from tests.support.mini_cluster import eventually

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

    def __init__(self, lost_after_seconds: float, place: TaskManagerPlace | None) -> None:
        self.is_there = False
        self.place = PLACE
        self.legs: list[FakeLeg] = []
        self.changes: list[Presence] = []
        self.watch = TaskManagerWatch(
            ADDRESS,
            place,
            self.connect,  # type: ignore[arg-type]
            lost_after_seconds,
            self.changed,
        )

    async def connect(self, watch: TaskManagerWatch) -> FakeLeg:
        if not self.is_there:
            raise ConnectFailed("nobody is there")
        self.legs.append(FakeLeg(self.place))
        return self.legs[-1]

    def changed(self, watch: TaskManagerWatch, before: Presence) -> None:
        self.changes.append(watch.presence)


@pytest.fixture
async def make_rig(monkeypatch):
    """Make watches with short pauses; close them twice at the end."""
    monkeypatch.setattr(taskmanager_watch, "FIRST_PAUSE_SECONDS", 0.001)
    rigs: list[Rig] = []

    def make(lost_after_seconds: float, place: TaskManagerPlace | None = PLACE) -> Rig:
        rigs.append(Rig(lost_after_seconds, place))
        return rigs[-1]

    yield make
    for rig in rigs * 2:
        await rig.watch.close()


async def test_a_present_taskmanager_leaves_and_comes_back(make_rig):
    rig = make_rig(600)
    rig.is_there = True
    await rig.watch.answer()
    assert rig.watch.place == PLACE
    rig.legs[0].close()
    await eventually(lambda: len(rig.legs) == 2)
    await eventually(lambda: len(rig.changes) == 3)
    assert rig.changes == [Presence.PRESENT, Presence.AWAY, Presence.PRESENT]


async def test_an_absent_taskmanager_is_lost_and_can_come_back(make_rig):
    rig = make_rig(0.02)
    await rig.watch.answer()
    assert rig.watch.presence is Presence.AWAY
    await eventually(lambda: rig.watch.presence is Presence.LOST)
    rig.is_there = True
    await eventually(lambda: rig.watch.presence is Presence.PRESENT)
    assert rig.changes == [Presence.AWAY, Presence.LOST, Presence.PRESENT]


async def test_another_taskmanager_at_the_address_is_refused(make_rig, caplog):
    rig = make_rig(0.02)
    rig.is_there = True
    rig.place = PLACE._replace(taskmanager_id="other")
    await eventually(lambda: rig.changes == [Presence.AWAY, Presence.LOST])
    assert "Another TaskManager answers" in caplog.text


async def test_a_configured_taskmanager_that_starts_later_is_present_at_once(make_rig):
    rig = make_rig(600, None)
    await rig.watch.answer()
    assert rig.watch.presence is Presence.AWAY
    rig.is_there = True
    await eventually(lambda: rig.watch.presence is Presence.PRESENT)
    assert rig.watch.place == PLACE


async def test_a_given_place_stays_as_it_is(make_rig):
    rig = make_rig(600)
    rig.is_there = True
    rig.place = PLACE._replace(host="another name of the host")
    await rig.watch.answer()
    assert (rig.watch.presence, rig.watch.place) == (Presence.PRESENT, PLACE)


async def test_another_taskmanager_replaces_a_lost_configured_one(make_rig, caplog):
    rig = make_rig(0.2, None)
    rig.is_there = True
    await rig.watch.answer()
    assert rig.watch.place == PLACE
    rig.place = PLACE._replace(taskmanager_id="other")
    rig.legs[0].close()
    await eventually(lambda: rig.watch.place == rig.place)
    assert rig.changes == [Presence.PRESENT, Presence.AWAY, Presence.LOST, Presence.PRESENT]
    # Logged once, and not with each attempt.
    assert len(rig.legs) > 2
    assert caplog.text.count("Another TaskManager answers") <= 1


async def test_closing_a_watch_ends_the_wait_for_its_answer(make_rig):
    rig = make_rig(600)

    async def never(address: Address) -> FakeLeg:
        await asyncio.Event().wait()
        raise AssertionError

    rig.watch._connect = never
    waiting = asyncio.ensure_future(rig.watch.answer())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    await rig.watch.close()
    await asyncio.wait_for(waiting, 10)


async def test_a_closed_watch_reports_no_changes(make_rig):
    rig = make_rig(0.02)
    await rig.watch.answer()
    await rig.watch.close()
    rig.is_there = True
    await asyncio.sleep(0.05)
    assert rig.changes == [Presence.AWAY]
