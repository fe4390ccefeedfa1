"""Blocking calls on virtual time.

A strand is one blocking call. One thread runs at a time: the leader, which runs the loop and calls
new strands directly. When a strand waits for a disk, its thread blocks and another thread leads.
When its time has come, the leader blocks, and the thread of the strand resumes and leads. So the
order of steps depends on the seed only, and a call that does not wait needs no other thread.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
import traceback
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.loop import SimulatedLoop


class Strand:
    """One blocking call.

    Args:
        context: Its context.
    """

    __slots__ = ("context", "wakes")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.wakes: _thread.LockType | None = None
        """Released when it resumes; None before it has waited."""


class Strands:
    """All strands of a simulation.

    Args:
        loop: Resumes them.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._idle: list[_thread.LockType] = []
        """Locks of the threads that can lead: released when one does."""
        self.current: Strand | None = None
        """The strand that runs now; None: the loop runs."""

    def start(self, function: Callable[[], object]) -> None:
        """Run a function in a strand, in the current context, soon."""
        self._loop.call_soon(self._begin, function, copy_context())

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the current strand."""
        strand = self._require()
        self._loop.call_later(seconds, self.resume, strand)
        self._pause(strand)

    def wait(self, waiters: list[Strand] | deque[Strand]) -> None:
        """Wait until :meth:`wake` is called for the list; the current strand is appended to it."""
        strand = self._require()
        waiters.append(strand)
        self._pause(strand)

    def wait_for(self, waiters: list[Strand], seconds: float) -> None:
        """Wait like :meth:`wait`, but not longer than a time."""
        strand = self._require()

        def give_up() -> None:
            waiters.remove(strand)
            self.resume(strand)

        timer = self._loop.call_later(seconds, give_up)
        self.wait(waiters)
        timer.cancel()

    def wake(self, waiters: list[Strand] | deque[Strand]) -> None:
        """Resume all strands of a list, and empty it."""
        for strand in waiters:
            self._loop.call_soon(self.resume, strand, context=strand.context.copy())
        waiters.clear()

    def resume(self, strand: Strand) -> None:
        """Let the thread of a strand lead, and stop until this one leads again.

        Called by the loop only.
        """
        if strand.wakes is None:
            raise RuntimeError("the strand does not wait")
        leads = _thread.allocate_lock()
        leads.acquire()
        self._idle.append(leads)
        strand.wakes.release()
        leads.acquire()

    def _begin(self, function: Callable[[], object], context: Context) -> None:
        """Run a strand to its end. Called by the loop only."""
        self.current = Strand(context)
        asyncio._set_running_loop(None)
        try:
            context.run(function)
        except BaseException:  # noqa: BLE001 - the callers' own errors have been taken
            traceback.print_exc(file=sys.stderr)
        asyncio._set_running_loop(self._loop)
        self.current = None

    def _pause(self, strand: Strand) -> None:
        """Let another thread lead until :meth:`resume`. Called by the strand itself."""
        self.current = None
        wakes = strand.wakes
        if wakes is None:
            wakes = strand.wakes = _thread.allocate_lock()
            wakes.acquire()
        if self._idle:
            self._idle.pop().release()
        else:
            _thread.start_new_thread(self._loop.lead, ())
        wakes.acquire()
        self.current = strand

    def _require(self) -> Strand:
        if self.current is None:
            raise RuntimeError("the event loop would block")
        return self.current


class Result:
    """The result of a call of an executor, as ``concurrent.futures.Future`` has it."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands
        self._waiters: list[Strand] = []
        self._outcome: tuple[Any, BaseException | None] | None = None

    def make(self, function: Callable[[], object]) -> None:
        """Run the call."""
        try:
            self._outcome = function(), None
        except BaseException as error:  # noqa: BLE001 - the waiter raises it
            self._outcome = None, error
        self._strands.wake(self._waiters)

    def result(self) -> Any:
        """Wait for the call; return its result or raise its error."""
        while self._outcome is None:
            self._strands.wait(self._waiters)
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class SimulatedEvent:
    """Stands for ``threading.Event``.

    Attributes:
        strands: Set before a simulation runs.
    """

    strands: Strands

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Strand] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and resume those who wait."""
        self._is_set = True
        self.strands.wake(self._waiters)

    def wait(self, seconds: float) -> bool:
        """Wait until it is set or a time has passed; return whether it is set."""
        if not self._is_set:
            self.strands.wait_for(self._waiters, seconds)
        return self._is_set


class SimulatedThread:
    """Stands for ``threading.Thread``: a strand."""

    def __init__(self, target: Callable[[], object], name: str, *, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        """Begin soon."""
        SimulatedEvent.strands.start(self._target)


class SimulatedThreading:
    """Stands for the module ``threading``."""

    Event = SimulatedEvent
    Thread = SimulatedThread
    Lock = staticmethod(_thread.allocate_lock)


class SimulatedExecutor:
    """Stands for ``ThreadPoolExecutor``: its threads are strands.

    Args:
        max_workers: Most calls that run at a time.
    """

    strands: Strands
    """Set before a simulation runs."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "") -> None:
        self._most = max_workers
        self._name = thread_name_prefix
        self._running = 0
        self._queue: deque[Callable[[], None]] = deque()
        self._enders: list[Strand] = []

    def __enter__(self) -> SimulatedExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def submit(self, function: Callable[..., Any], *args: Any, **named: Any) -> Result:
        """Queue a call."""
        result = Result(self.strands)
        self._queue.append(lambda: result.make(lambda: function(*args, **named)))
        if self._running < self._most:
            self._running += 1
            self.strands.start(self._work)
        return result

    def map(self, function: Callable[..., Any], *inputs: Any) -> Iterator[Any]:
        """Call a function with each of the inputs; return the results in order."""
        results = [self.submit(function, *each) for each in zip(*inputs, strict=False)]
        return (each.result() for each in results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all calls."""
        if cancel_futures:
            self._queue.clear()
        while wait and self._running:
            self.strands.wait(self._enders)

    def _work(self) -> None:
        while self._queue:
            self._queue.popleft()()
        self._running -= 1
        if not self._running:
            self.strands.wake(self._enders)
