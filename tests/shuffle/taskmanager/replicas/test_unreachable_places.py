"""Unreachable TaskManagers: each is recorded at one place, until it answers there."""

from __future__ import annotations

from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence
from sluice.shuffle.taskmanager.replicas.unreachable_places import UnreachablePlaces


def place(taskmanager_id: str, port: int) -> TaskManagerPlace:
    return TaskManagerPlace(taskmanager_id, "127.0.0.1", port)


async def test_an_absent_place_is_away_until_it_is_forgotten():
    absent = UnreachablePlaces(60.0)
    absent.record(place("a", 1))
    assert absent.presence(place("a", 1)) is Presence.AWAY
    absent.forget(place("a", 1))
    assert absent.presence(place("a", 1)) is Presence.UNKNOWN


async def test_another_place_of_a_taskmanager_is_not_absent():
    absent = UnreachablePlaces(60.0)
    absent.record(place("a", 1))
    absent.forget(place("a", 2))
    assert absent.presence(place("a", 2)) is Presence.UNKNOWN
    assert absent.presence(place("a", 1)) is Presence.AWAY


async def test_a_driver_that_names_many_places_fills_no_memory():
    absent = UnreachablePlaces(60.0)
    for port in range(1, 1000):
        absent.record(place("a", port))
    assert len(absent) == 1
