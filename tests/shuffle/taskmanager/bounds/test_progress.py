"""Deadlines for progress, look by look: the test is the timer."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sluice.shuffle.taskmanager.bounds.progress import OURS, Mark, ProgressWatch

TIMEOUT_SECONDS = 100.0


class Watched:
    """Things by name, each with its mark, and a loop whose clock stands still."""

    def __init__(self, timeout_seconds: float | None = TIMEOUT_SECONDS) -> None:
        self.marks: dict[str, Mark] = {}
        self.late: list[str] = []
        self.ended = 0
        self.watch = ProgressWatch(
            timeout_seconds, lambda: self.marks.items(), self.take_back, self.end
        )
        self.spared: set[str] = set()

    def take_back(self, name: str) -> None:
        self.late.append(name)
        if name not in self.spared:
            del self.marks[name]

    def end(self) -> None:
        self.ended += 1

    def look(self) -> list[str]:
        """Let the time pass; return what is late."""
        self.late.clear()
        self.watch.look()
        return list(self.late)


@pytest.fixture
async def watched():
    made = Watched()
    yield made
    made.watch.close()


async def test_a_thing_that_does_not_move_is_late_once(watched):
    watched.marks["a"] = 1
    watched.watch.watch()
    assert watched.look() == ["a"]
    assert watched.look() == []
    assert watched.ended == 1  # nothing is left to watch
    assert not watched.watch.is_watching


async def test_a_thing_that_moves_is_never_late(watched):
    numbers = itertools.count()
    watched.marks["a"] = next(numbers)
    watched.watch.watch()
    for _ in range(5):
        watched.marks["a"] = next(numbers)
        assert watched.look() == []
    assert watched.look() == ["a"]


async def test_a_thing_that_waits_for_this_side_is_never_late(watched):
    watched.marks["a"] = OURS
    watched.watch.watch()
    assert [watched.look() for _ in range(4)] == [[]] * 4
    assert watched.watch.is_watching
    watched.marks["a"] = 1
    assert watched.look() == []  # its turn has begun since the look before
    assert watched.look() == ["a"]


async def test_a_thing_that_comes_between_two_looks_has_its_whole_time(watched):
    watched.marks["a"] = 1
    watched.watch.watch()
    watched.marks["b"] = 1
    assert watched.look() == ["a"]
    assert watched.look() == ["b"]


async def test_a_thing_that_goes_is_forgotten(watched):
    watched.marks["a"] = 1
    watched.watch.watch()
    del watched.marks["a"]
    assert watched.look() == []
    assert watched.ended == 1
    watched.marks["a"] = 1  # another one of that name
    watched.watch.watch()
    assert watched.look() == ["a"]


async def test_a_late_thing_that_is_spared_is_watched_on(watched):
    watched.marks["a"] = 1
    watched.spared.add("a")
    watched.watch.watch()
    assert [watched.look() for _ in range(3)] == [["a"], [], ["a"]]
    assert watched.watch.is_watching


async def test_nothing_is_kept_of_a_thing_that_is_forgotten(watched):
    watched.marks["a"] = 1
    watched.watch.watch()
    watched.watch.forget("a")
    watched.watch.forget("a")
    assert watched.watch._seen == {}
    assert watched.look() == []  # another one of that name has its whole time
    assert watched.look() == ["a"]


async def test_nothing_is_watched_without_things_or_without_a_deadline(watched):
    assert not watched.watch.is_watching
    unlimited = Watched(None)
    unlimited.marks["a"] = 1
    unlimited.watch.watch()
    assert not unlimited.watch.is_watching
    assert unlimited.look() == []


async def test_time_in_which_the_process_did_not_run_does_not_count(watched, monkeypatch):
    watched.marks["a"] = 1
    watched.watch.watch()
    loop = asyncio.get_running_loop()
    awake = loop.time()
    with monkeypatch.context() as asleep:
        asleep.setattr(watched.watch, "_due", awake - TIMEOUT_SECONDS)
        assert watched.look() == []
    assert watched.look() == ["a"]


async def test_a_watch_that_a_late_thing_closes_stays_closed():
    watched = Watched()
    watch = ProgressWatch(
        TIMEOUT_SECONDS, lambda: [("a", 1), ("b", 1)], lambda thing: watch.close()
    )
    watch.watch()
    watch.look()
    assert not watch.is_watching
    watched.watch.close()


async def test_the_timer_of_the_loop_looks():
    late = asyncio.Event()
    watch = ProgressWatch(0.01, lambda: [("a", 1)], lambda thing: late.set())
    watch.watch()
    async with asyncio.timeout(20):
        await late.wait()
    watch.close()
