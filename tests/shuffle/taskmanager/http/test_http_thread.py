"""The thread of the HTTP port: its share of time, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.http.http_thread import (
    BURST_SECONDS,
    LONGEST_REST_SECONDS,
    MAX_EVENTS,
    HttpThread,
    Pace,
    PacedSelector,
)

SHARE = 0.05
BURST = 0.2


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_work_stays_within_its_share(pieces):
    """Whatever the pieces are: beyond the burst and the last piece, the share is kept."""
    pace = Pace(SHARE, BURST)
    worked = passed = rest = 0.0
    for piece in pieces:
        worked += piece
        passed += rest + piece
        rest = pace.rest(piece, rest + piece)
        while rest == LONGEST_REST_SECONDS:  # what is owed beyond it
            passed += rest
            rest = pace.rest(0.0, rest)
        assert 0 <= rest < LONGEST_REST_SECONDS
        assert worked <= BURST + SHARE * (passed + rest) + 1e-6


def test_work_within_the_burst_is_not_delayed():
    pace = Pace(SHARE, BURST)
    assert [pace.rest(BURST / 4, 0.0) for _ in range(4)] == [0.0] * 4
    assert pace.rest(0.001, 0.0) == pytest.approx(0.001 / SHARE)


def test_a_burst_comes_back_with_time_and_does_not_grow():
    pace = Pace(SHARE, BURST)
    pace.rest(BURST, 0.0)
    assert pace.rest(0.0, BURST / SHARE) == 0.0
    assert pace.rest(BURST, 0.0) == 0.0
    assert pace.rest(0.0, 1000.0) == 0.0
    assert pace.rest(2 * BURST, 0.0) == LONGEST_REST_SECONDS


def test_work_that_is_forgiven_is_not_counted():
    pace = Pace(SHARE, BURST)
    pace.forgive(5.0)
    assert pace.rest(5.0, 0.0) == 0.0


def test_every_socket_gets_its_turn():
    """Although a turn looks at few of those that are always ready."""
    pairs = [socket.socketpair() for _ in range(3 * MAX_EVENTS + 1)]
    selector = PacedSelector()
    try:
        for near, far in pairs:
            selector.register(near, 1)
            far.send(b"x")
        seen: set[int] = set()
        for _ in range(len(pairs)):
            ready = selector.select(0)
            assert 0 < len(ready) <= MAX_EVENTS
            seen.update(key.fd for key, _ in ready)
        assert seen == {near.fileno() for near, _ in pairs}
        new, other = socket.socketpair()
        pairs.append((new, other))
        selector.register(new, 1)
        other.send(b"x")
        assert new.fileno() in {key.fd for key, _ in selector.select(0)}
        selector.unregister(new)
    finally:
        selector.close()
        for pair in pairs:
            for end in pair:
                end.close()


async def test_it_serves_in_a_thread_of_its_own_until_it_is_closed():
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def serving():
        seen.append(threading.current_thread().name)
        yield
        seen.append("left")

    thread = HttpThread(serving)
    await thread.start()
    assert seen == ["sluice-http"]
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    thread.call_soon(lambda: loop.call_soon_threadsafe(done.set))
    await done.wait()
    await thread.close()
    assert seen == ["sluice-http", "left"]
    await thread.close()
    thread.call_soon(lambda: seen.append("after its end"))
    assert len(seen) == 2


async def test_the_thread_does_not_rest_for_the_work_of_its_start():
    @contextlib.asynccontextmanager
    async def serving():
        until = time.thread_time() + 2 * BURST_SECONDS
        while time.thread_time() < until:
            pass
        yield

    thread = HttpThread(serving)
    await thread.start()
    loop = asyncio.get_running_loop()
    rests = loop.create_future()

    def tell():
        if thread._selector.paced:
            loop.call_soon_threadsafe(rests.set_result, thread._selector.pace.rest(0, 0))
        else:
            thread.call_soon(tell)

    thread.call_soon(tell)
    assert await rests == 0
    await thread.close()


async def test_an_error_at_the_start_is_that_of_the_start():
    @contextlib.asynccontextmanager
    async def serving():
        raise OSError("in use")
        yield

    thread = HttpThread(serving)
    with pytest.raises(OSError, match="in use"):
        await thread.start()
    await thread.close()


async def test_closing_without_a_start_or_with_an_unawaited_start():
    @contextlib.asynccontextmanager
    async def serving():
        yield

    await HttpThread(serving).close()
    thread = HttpThread(serving)
    thread.start().cancel()
    await thread.close()
