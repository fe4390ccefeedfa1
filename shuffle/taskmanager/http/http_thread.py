"""A thread with an event loop for HTTP, limited to a small share of a core.

Threads of one interpreter take turns, so a busy HTTP thread would slow the data path down: each
time that the data loop wakes up, it waits until the other thread lets go. Therefore the loop of
this thread

- rests after a turn when it has used more than its share of time, and
- takes few events a turn, so that a turn is short.

A client that floods the HTTP port gets its answers late; the data path is not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

CPU_SHARE: Final = 0.02
"""Share of one processor core that the thread may use over time."""

BURST_SECONDS: Final = 0.1
"""Processor time that it may use at once: tens of scrapes."""

LONGEST_REST_SECONDS: Final = 0.1
"""Longest rest; what is owed beyond it is rested for later."""

MAX_EVENTS: Final = 2
"""Sockets handled in one turn."""


class Pace:
    """Computes how long a thread rests so that its work stays within a share of time.

    Args:
        share: Share of time.
        burst_seconds: Work that may be done at once after a long rest.
    """

    def __init__(self, share: float = CPU_SHARE, burst_seconds: float = BURST_SECONDS) -> None:
        self._share = share
        self._burst_seconds = burst_seconds
        self._allowed_seconds = burst_seconds

    def forgive(self, worked_seconds: float) -> None:
        """Do not count work that is bounded otherwise."""
        self._allowed_seconds += worked_seconds

    def rest(self, worked_seconds: float, passed_seconds: float) -> float:
        """Return how long to rest.

        Args:
            worked_seconds: Processor time since the last call.
            passed_seconds: Time since the last call, rest included.
        """
        allowed = self._allowed_seconds + passed_seconds * self._share - worked_seconds
        self._allowed_seconds = min(allowed, self._burst_seconds)
        return min(max(0.0, -allowed / self._share), LONGEST_REST_SECONDS)


class PacedSelector(selectors.DefaultSelector):
    """The selector of an event loop that rests between its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.paced = False
        """Whether the loop rests; False before its start and after its end."""
        self.pace = Pace()
        self._turn = 0
        self._served: dict[int, int] = {}
        """The last turn of each socket that had one."""
        self._worked = time.thread_time()
        self._passed = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Rest if that is due, then wait for events and return a few of them."""
        worked, passed = time.thread_time(), time.monotonic()
        rest = self.pace.rest(worked - self._worked, passed - self._passed)
        self._worked, self._passed = worked, passed
        if not self.paced:
            self.pace = Pace()
        elif rest:
            time.sleep(rest)
        ready = super().select(timeout)
        if len(ready) <= MAX_EVENTS:
            return ready
        # Those that are left out are reported again in the next turn. A new connection goes first.
        self._turn += 1
        ready.sort(key=lambda event: self._served.get(event[0].fd, 0))
        chosen = ready[:MAX_EVENTS]
        for key, _ in chosen:
            self._served[key.fd] = self._turn
        return chosen

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget a socket."""
        key = super().unregister(fileobj)
        self._served.pop(key.fd, None)
        return key


class HttpThread:
    """Runs an HTTP server in a thread, from :meth:`start` to :meth:`close`.

    It is a daemon thread, so that a process whose stop takes too long can end nevertheless.

    Args:
        serving: Returns a context in which HTTP is served; entered and left in the thread.
    """

    def __init__(self, serving: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._serving = serving
        self._selector = PacedSelector()
        self._thread = threading.Thread(target=self._run, name="sluice-http", daemon=True)
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closing = False
        self._stop: Callable[[], object] | None = None

    def start(self) -> asyncio.Future[None]:
        """Start the thread.

        Returns:
            A future that completes when HTTP is served, or fails if it cannot be.

        Raises:
            RuntimeError: The operating system cannot start a thread.
        """
        self._caller = asyncio.get_running_loop()
        started = self._started = self._caller.create_future()
        self._ended = self._caller.create_future()
        try:
            self._thread.start()
        except RuntimeError:
            self._ended = None  # no thread runs, so close() must not wait for one
            raise
        return started

    def forgive(self, worked_seconds: float) -> None:
        """Do not make the thread rest for work that is bounded otherwise; called in the thread."""
        self._selector.pace.forgive(worked_seconds)

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call a function in the thread, if it still runs."""
        if self._stop is not None:
            _soon(self._loop, work)

    async def close(self) -> None:
        """Stop serving and wait for the end of the thread. May be called at any time, and twice."""
        self._closing = True
        self._selector.paced = False
        if self._ended is None:
            self._selector.close()
            return
        if self._stop is not None:
            _soon(self._loop, self._stop)
        await asyncio.shield(self._ended)
        self._thread.join()  # only returns from its function now

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._main())
        except BaseException as raised:  # noqa: BLE001
            error = raised
        finally:
            _soon(self._caller, self._tell, self._started, error)
            _soon(self._caller, self._tell, self._ended, None)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(self._selector)

    async def _main(self) -> None:
        stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stop = stop.set
        if self._closing:
            return
        async with self._serving():
            _soon(self._caller, self._tell, self._started, None)
            await asyncio.sleep(0)  # one turn, in which the selector discards the time of the start
            self._selector.paced = not self._closing
            await stop.wait()

    @staticmethod
    def _tell(future: asyncio.Future[None], error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *given: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(work, *given)
