"""Which applications live, and for how long after their last client."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.taskmanager.drivers.applications import Applications


class Rig:
    def __init__(self, expiry_seconds: float) -> None:
        self.released: list[str] = []
        self.expired = asyncio.Event()
        self.abandoned: list[str] = []
        self.applications = Applications(expiry_seconds, self._release, self._on_abandoned)

    def _on_abandoned(self, application_id: str) -> None:
        self.abandoned.append(application_id)
        self.expired.set()

    def _release(self, application_id: str) -> int:
        self.released.append(application_id)
        self.expired.set()
        return 7

    def deadline(self, application_id: str) -> asyncio.TimerHandle | None:
        return self.applications._applications[application_id].expiry

    async def until_expired(self) -> None:
        async with asyncio.timeout(10):
            await self.expired.wait()
        self.expired.clear()


@pytest.fixture
async def rig():
    rig = Rig(0.02)
    yield rig
    rig.applications.close()


async def test_the_deadline_starts_with_the_last_connection(rig):
    rig.applications.connected("a")
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.applications.disconnected("a")
    ((name, connections, left),) = rig.applications.snapshot()
    assert (name, connections) == ("a", 0)
    assert 0 < left <= 0.021
    await rig.until_expired()
    assert rig.released == ["a"]
    assert rig.applications.expired_total == 1
    assert rig.applications.snapshot() == []


async def test_an_application_that_ended_goes_with_its_last_connection(rig):
    rig.applications.connected("a")
    rig.applications.connected("a")
    assert rig.applications.release("a") == 7
    rig.applications.disconnected("a")
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.released.clear()
    rig.applications.disconnected("a")
    assert rig.applications.snapshot() == []
    assert rig.released == ["a"]  # once more, for what came after the end
    assert rig.applications.expired_total == 0


async def test_a_new_connection_stops_the_deadline():
    rig = Rig(1000)
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    rig.applications.connected("a")
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.applications.close()


async def test_an_adopted_application_has_its_deadline_running(rig):
    rig.applications.adopt("old")
    rig.applications.adopt("old")
    await rig.until_expired()
    assert rig.released == ["old"]


async def test_adopting_one_that_is_connected_starts_no_deadline():
    rig = Rig(1000)
    rig.applications.connected("a")
    rig.applications.adopt("a")
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.applications.close()


async def test_after_close_nothing_expires():
    rig = Rig(0.001)
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    rig.applications.close()
    rig.applications.disconnected("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await rig.expired.wait()


async def test_another_taskmanager_keeps_it_and_this_one_does_so_nowhere(rig):
    rig.applications.connected("a")
    rig.applications.connected("a", copier=True)
    assert rig.applications.lives("a")
    rig.applications.disconnected("a")
    await rig.until_expired()
    assert (rig.abandoned, rig.released) == (["a"], [])
    assert not rig.applications.lives("a")
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.applications.disconnected("a", copier=True)
    assert not rig.applications.lives("a")
    await rig.until_expired()
    assert (rig.abandoned, rig.released) == (["a"], ["a"])
    assert rig.applications.snapshot() == []


async def test_what_comes_from_another_taskmanager_only_is_kept_alive_nowhere_else():
    rig = Rig(1000)
    rig.applications.connected("a", copier=True)
    assert not rig.applications.lives("a")
    rig.applications.connected("a")
    assert rig.applications.lives("a")
    rig.applications.release("a")
    assert not rig.applications.lives("a")
    rig.applications.close()


async def test_the_last_connection_of_all_starts_the_whole_deadline_anew():
    rig = Rig(1000)
    rig.applications.connected("a")
    rig.applications.connected("a", copier=True)
    rig.applications.disconnected("a")
    first = rig.deadline("a")
    assert first is not None
    ((_, connections, left),) = rig.applications.snapshot()
    assert connections == 1
    assert left is not None
    rig.applications.disconnected("a", copier=True)
    second = rig.deadline("a")
    assert second is not None
    assert second is not first
    assert first.cancelled()
    ((_, connections, left),) = rig.applications.snapshot()
    assert connections == 0
    assert left is not None
    assert left > 999
    rig.applications.close()


async def test_an_application_that_ended_goes_with_its_last_copier(rig):
    rig.applications.connected("a")
    rig.applications.connected("a", copier=True)
    rig.applications.release("a")
    rig.applications.disconnected("a")
    assert rig.released == ["a"]
    assert rig.applications.snapshot() == [("a", 1, None)]
    rig.applications.disconnected("a", copier=True)
    assert rig.released == ["a", "a"]
    assert rig.applications.snapshot() == []
