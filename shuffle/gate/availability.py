"""Waiting for a gate: several waiters, each cancelled on its own, and how long they waited."""

import asyncio
import time


class Availability:
    """Wakes whoever waits for something to read.

    It holds no state of its own: whoever is woken looks again, and waits again if another one was
    faster. A waiter is a future of its own, so that cancelling one does not touch the others.
    """

    __slots__ = ("_idle_seconds", "_idle_since", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # a set that keeps their order
        self._idle_seconds = 0.0
        self._idle_since = 0.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    @property
    def idle_seconds(self) -> float:
        """Time during which at least one waited, up to now."""
        if not self._waiters:
            return self._idle_seconds
        return self._idle_seconds + time.monotonic() - self._idle_since

    async def wait(self) -> None:
        """Wait for the next :meth:`wake`.

        Cancellation: safe, without effect on other waiters.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiters:
            # Not the loop's time: uvloop counts in milliseconds, and most waits are shorter.
            self._idle_since = time.monotonic()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before it was woken
                del self._waiters[waiter]
                if not self._waiters:
                    self._idle_seconds += time.monotonic() - self._idle_since

    def wake(self) -> None:
        """Wake all who wait, in their order; they look for themselves what there is."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._idle_seconds += time.monotonic() - self._idle_since
