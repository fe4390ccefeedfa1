"""Makes blocking calls at the same time, and does not wait for those that hang."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_CALLS: Final = 32
"""Calls at a time."""

T = TypeVar("T")


def call_all(calls: Sequence[Callable[[], T]], timeout_seconds: float) -> list[T | None]:
    """Make calls in threads, at most ``MAX_CALLS`` at a time.

    Args:
        calls: The calls, which must not raise and not return None.
        timeout_seconds: Time for each of them.

    Returns:
        Their results in the same order; None for a call that has not ended in time.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    for number in range(len(calls)):
        waiting.put(number)

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            results.put((number, calls[number]()))

    # Daemon threads: a resolver or a disk may hang longer than any timeout, and the program ends.
    for _ in range(min(len(calls), MAX_CALLS)):
        threading.Thread(target=work, name="sluice-call", daemon=True).start()
    found: list[T | None] = [None] * len(calls)
    rounds = -(-len(calls) // MAX_CALLS)
    deadline = time.monotonic() + rounds * timeout_seconds
    for _ in calls:
        try:
            number, result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[number] = result
    return found
