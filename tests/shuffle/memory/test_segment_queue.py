"""The queue of a local pool, and the requests of tasks."""

from sluice.shuffle.memory.segment import MemorySegment
from sluice.shuffle.memory.segment_queue import (
    ListenerHandle,
    SegmentQueue,
)


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
