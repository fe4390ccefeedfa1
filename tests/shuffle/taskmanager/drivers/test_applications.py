"""Which applications live, and for how long after their last client."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import COPIER_ADOPTED, COPIER_IDLE
from sluice.shuffle.taskmanager.drivers.applications import Applications
from tests.support.mini_cluster import eventually
from tests.support.raises_code import raises_code


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


async def test_an_application_known_by_its_copies_only_is_kept_alive_nowhere_else():
    rig = Rig(1000)
    rig.applications.connected("a", copier=True)
    assert not rig.applications.lives("a")
    rig.applications.connected("a")
    assert rig.applications.lives("a")
    rig.applications.release("a")
    assert not rig.applications.lives("a")
    rig.applications.close()


async def test_copiers_that_come_and_go_keep_it_for_one_more_deadline():
    """Copies that fail again and again kept it forever, at both TaskManagers."""
    rig = Rig(0.02)
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    first = rig.deadline("a")
    for _ in range(3):
        rig.applications.connected("a", copier=True)
        rig.applications.disconnected("a", copier=True)
        assert rig.deadline("a") is first
    assert rig.applications.lives("a")
    await rig.until_expired()
    assert (rig.abandoned, rig.released) == (["a"], [])
    assert not rig.applications.lives("a")
    await rig.until_expired()
    assert (rig.abandoned, rig.released) == (["a"], ["a"])
    assert rig.applications.snapshot() == []
    rig.applications.close()


async def test_idle_copiers_do_not_prolong_the_last_deadline_either(rig):
    """Two TaskManagers that copied in vain kept each other's data forever."""
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    for _ in range(2):  # the deadline after the client, and the one after the first copiers
        deadline = rig.deadline("a")
        for _ in range(3):
            rig.applications.connected("a", copier=True)
            rig.applications.disconnected("a", copier=True, idle=True)
            assert rig.deadline("a") is deadline
        await rig.until_expired()
    assert (rig.abandoned, rig.released) == (["a"], ["a"])
    assert rig.applications.snapshot() == []


async def test_a_copier_with_clients_prolongs_what_comes_from_it():
    rig = Rig(1000)
    rig.applications.connected("a", copier=True)
    rig.applications.disconnected("a", copier=True)
    first = rig.deadline("a")
    rig.applications.connected("a", copier=True)
    rig.applications.disconnected("a", copier=True)
    assert rig.deadline("a") is not first
    rig.applications.close()


async def test_the_end_is_remembered_whatever_connects_before_the_last_connection_goes():
    rig = Rig(1000)
    rig.applications.connected("a")
    rig.applications.release("a")
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    rig.applications.disconnected("a")
    with raises_code(ErrorCode.PARTITION_RELEASED):
        rig.applications.require_unended("a", COPIER_IDLE)
    rig.applications.close()


async def test_the_oldest_of_too_many_ends_is_forgotten(monkeypatch):
    monkeypatch.setattr(f"{Applications.__module__}.MAX_ENDED", 2)
    rig = Rig(1000)
    for name in ("a", "b", "c"):
        rig.applications.release(name)
    rig.applications.require_unended("a", COPIER_IDLE)
    for name in ("b", "c"):
        with raises_code(ErrorCode.PARTITION_RELEASED):
            rig.applications.require_unended(name, COPIER_IDLE)
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


async def test_copiers_without_a_client_are_refused_after_the_end():
    rig = Rig(1000)
    applications = rig.applications
    idle = applications.vouching("a")
    assert idle == COPIER_IDLE
    applications.require_unended("a", idle)
    applications.release("a")
    with raises_code(ErrorCode.PARTITION_RELEASED):
        applications.require_unended("a", idle)
    applications.require_unended("a", 0)  # it has a client
    applications.connected("a")
    assert applications.vouching("a") == 0
    applications.require_unended("a", idle)
    applications.close()


async def test_the_end_of_an_application_is_forgotten_in_time(rig):
    rig.applications.connected("a")
    rig.applications.disconnected("a")
    await rig.until_expired()
    assert list(rig.applications._ended) == ["a"]
    await eventually(lambda: not rig.applications._ended)


async def test_an_adopted_application_is_copied_where_it_is_known():
    rig = Rig(1000)
    applications = rig.applications
    applications.adopt("a")
    adopted = applications.vouching("a")
    assert adopted == COPIER_IDLE | COPIER_ADOPTED
    applications.require_unended("a", adopted)
    with raises_code(ErrorCode.PARTITION_RELEASED):
        applications.require_unended("b", adopted)
    applications.connected("a")
    applications.disconnected("a")
    assert applications.vouching("a") == COPIER_IDLE
    applications.close()
