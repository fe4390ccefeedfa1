"""The queue of a local pool, and the requests of tasks."""

import asyncio

import pytest

from sluice.shuffle.memory import NetworkBufferTimeout, PoolDestroyed
from sluice.shuffle.memory.segment import MemorySegment, SegmentMapping
from sluice.shuffle.memory.segment_queue import (
    ExclusiveRequest,
    ListenerHandle,
    SegmentQueue,
    SegmentRequest,
)
from tests.shuffle.memory.rig import declining, keeping

LONG_SECONDS = 30.0  # never reached: the tested event comes first
SHORT_SECONDS = 0.01


@pytest.fixture
def segments() -> list[MemorySegment]:
    return list(SegmentMapping(2, 64).segments)


@pytest.mark.parametrize(("listener", "kept"), [(keeping, True), (declining, False)])
def test_a_listener_is_called_once_and_says_whether_it_keeps(segments, listener, kept):
    queue = SegmentQueue("p")
    offered: list[MemorySegment | None] = []
    handle = ListenerHandle(queue.listeners, listener(offered))
    assert list(queue.listeners) == [handle]
    assert handle.is_waiting
    assert queue.call(handle, segments[0]) is kept
    assert not handle.is_waiting
    assert queue.call(handle, segments[1]) is False
    assert offered == segments[:1]


def test_a_cancelled_listener_leaves_the_queue_and_is_not_called(segments):
    queue = SegmentQueue("p")
    offered: list[MemorySegment | None] = []
    handle = ListenerHandle(queue.listeners, keeping(offered))
    handle.cancel()
    handle.cancel()
    assert not queue.listeners
    assert queue.call(handle, segments[0]) is False
    assert offered == []


def test_a_listener_that_raises_has_declined_and_is_logged(segments, caplog):
    queue = SegmentQueue("gate 3")

    def fail(segment: MemorySegment | None) -> bool:
        raise RuntimeError("boom")

    assert queue.call(ListenerHandle(queue.listeners, fail), segments[0]) is False
    assert "gate 3" in caplog.text
    assert "boom" in caplog.text


async def test_clear_wakes_the_tasks_and_dismiss_calls_the_listeners_in_order():
    queue = SegmentQueue("p")
    order: list[tuple[str, MemorySegment | None]] = []

    def add(name: str) -> None:
        def note(segment: MemorySegment | None) -> bool:
            order.append((name, segment))
            return False

        ListenerHandle(queue.listeners, note)

    add("first")
    add("second")
    turn, cancelled = queue.add_task(), queue.add_task()
    cancelled.cancel()
    waiting = queue.clear()
    assert (len(queue.listeners), len(queue.tasks), order) == (0, 0, [])
    assert turn.done()
    assert turn.result() is None
    queue.dismiss(waiting)
    assert order == [("first", None), ("second", None)]


async def test_a_served_request_returns_its_segment(segments):
    recycled: list[MemorySegment] = []
    request = SegmentRequest("p", LONG_SECONDS, recycled.append)
    assert not request.is_settled
    assert request.accept(segments[0])
    assert request.is_settled
    assert not request.accept(segments[1])
    assert await request.wait() is segments[0]
    assert recycled == []


async def test_a_request_cancelled_after_it_was_served_recycles_its_segment(segments):
    recycled: list[MemorySegment] = []
    request = SegmentRequest("p", LONG_SECONDS, recycled.append)
    task = asyncio.ensure_future(request.wait())
    await asyncio.sleep(0)
    assert request.accept(segments[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recycled == segments[:1]


async def test_a_request_cancelled_before_it_is_served_declines(segments):
    recycled: list[MemorySegment] = []
    request = SegmentRequest("p", LONG_SECONDS, recycled.append)
    task = asyncio.ensure_future(request.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert request.is_settled
    assert not request.accept(segments[0])
    assert recycled == []


async def test_a_request_raises_when_its_pool_is_destroyed():
    request = SegmentRequest("gate 4", LONG_SECONDS, lambda segment: None)
    task = asyncio.ensure_future(request.wait())
    await asyncio.sleep(0)
    assert not request.accept(None)
    with pytest.raises(PoolDestroyed, match="gate 4"):
        await task


async def test_a_request_that_expires_names_the_pool_and_the_numbers(segments):
    request = SegmentRequest("gate 4", SHORT_SECONDS, lambda segment: None)
    with pytest.raises(NetworkBufferTimeout, match="gate 4") as caught:
        await request.wait()
    assert (caught.value.required, caught.value.available) == (1, 0)
    assert not request.accept(segments[0])


async def test_an_exclusive_request_that_expires_says_how_many_segments_were_free():
    calls: list[str] = []

    def expired() -> int:
        calls.append("expired")
        return 3

    request = ExclusiveRequest(5, "pool", SHORT_SECONDS, lambda segments: None, expired)
    assert request.count == 5
    with pytest.raises(NetworkBufferTimeout, match="pool") as caught:
        await request.wait()
    assert (caught.value.required, caught.value.available, calls) == (5, 3, ["expired"])


async def test_an_exclusive_request_returns_its_segments(segments):
    request = ExclusiveRequest(2, "pool", LONG_SECONDS, lambda back: None, lambda: 0)
    request.serve(segments)
    assert await request.wait() == segments
