"""Which applications live, and for how long after their last client."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.taskmanager.applications import Applications


class Rig:
    def __init__(self, expiry_seconds: float) -> None:
        self.released: list[str] = []
        self.expired = asyncio.Event()
        self.applications = Applications(expiry_seconds, self._release)

    def _release(self, application_id: str) -> int:
        self.released.append(application_id)
        self.expired.set()
        return 7

    async def until_expired(self) -> None:
        async with asyncio.timeout(10):
            await self.expired.wait()


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


async def test_one_expires_and_the_others_stay(rig):
    rig.applications.connected("stays")
    rig.applications.connected("goes")
    rig.applications.disconnected("goes")
    await rig.until_expired()
    assert rig.released == ["goes"]
    assert rig.applications.snapshot() == [("stays", 1, None)]


async def test_after_close_nothing_expires():
    rig = Rig(0.001)
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    rig.applications.close()
    rig.applications.disconnected("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await rig.expired.wait()
