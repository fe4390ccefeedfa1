"""Threads for blocking calls, bounded in number and safe against cancellation.

Calls wait in a :class:`~sluice.transport.fair_queue.FairQueue`. A thread that finishes a call takes
the next one itself, so that the threads stay busy while the event loop is busy. If a thread is
free, a call starts at once.

A call to a disk that hangs may never end. :meth:`IoThreads.abandon` fails all calls at once. What a
running call uses stays in use until its thread has ended.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from .....transport.fair_queue import OWN_FLOW, FairQueue, Flow

P = ParamSpec("P")
T = TypeVar("T")

CALL_COST: Final = 64 * 1024
"""Cost of a call in addition to its bytes, so small calls cannot starve large ones. A thread moves
about this many bytes in the time of an empty call."""

SLOWEST_CALL_BYTES: Final = 4 * 1024 * 1024
"""A call may take the time limit of its disk, and as long again for each of these many bytes."""


class WaitingCall(NamedTuple):
    """A call whose caller waits.

    Attributes:
        application_id: The application; empty: the TaskManager itself.
        began_at: When it was queued, as of ``time.monotonic()``.
        is_running: Whether a thread makes it, or it waits for one.
    """

    application_id: str
    began_at: float
    is_running: bool


class Used(Protocol):
    """A buffer, an extent or a file that a call uses. Both methods run in the event loop."""

    def retain(self) -> object:
        """Keep it: the call was abandoned, and its thread still uses it."""

    def release(self) -> None:
        """Free it: the thread of the abandoned call has ended."""


class IoThreads:
    """A few threads that make the blocking calls of an event loop.

    Args:
        count: Maximum number of threads.
        name: Prefix of their names.
    """

    __slots__ = (
        "_at_end",
        "_behind",
        "_busy",
        "_calls",
        "_count",
        "_executor",
        "_idle",
        "_lock",
        "_queue",
        "_refusal",
        "_running",
    )

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._executor: Executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._calls = 0
        """Calls whose callers wait."""
        self._idle: asyncio.Future[None] | None = None
        self._refusal: Callable[[], Exception] | None = None
        """Makes the error of each call while the threads are abandoned."""
        self._lock = threading.Lock()
        """Protects the fields below, for a few microseconds at a time."""
        self._busy = 0
        self._queue: FairQueue[_Call] = FairQueue()
        self._behind: deque[_Call] = deque()
        """Calls that wait until no other call does."""
        self._running: set[_Call] = set()
        self._at_end: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return len(self._queue)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call of the TaskManager's own in a thread and wait for it.

        Raises:
            Exception: The error of the call, or that of :meth:`abandon`.

        Cancellation: a running call is not interrupted, because the thread may use the caller's
        buffers; CancelledError is raised when it has ended or is abandoned. So buffers can be
        reused when this returns or raises, except for those of an abandoned call. The wait lasts
        as long as one disk access. A call that has not started is withdrawn.
        """
        return await self.run_for(OWN_FLOW, 0, lambda: call(*args, **kwargs))

    async def run_for(
        self,
        flow: Flow,
        size_bytes: int,
        function: Callable[[], T],
        uses: Sequence[Used] = (),
        *,
        behind: bool = False,
    ) -> T:
        """Run a blocking call of a connection in a thread, like :meth:`run`.

        Args:
            flow: The flow in whose turn it runs.
            size_bytes: Bytes that it moves.
            function: The call.
            uses: The buffers, extents and files that the call uses and its caller frees. If the
                call is abandoned while it runs, they are retained until its thread has ended.
            behind: Whether to run it only when no other call waits. Its caller bounds their number.
        """
        if self._refusal is not None:
            raise self._refusal()
        call = _Call(asyncio.get_running_loop(), function, size_bytes, uses, flow.application_id)
        with self._lock:
            if behind:
                self._behind.append(call)
            else:
                self._queue.add(flow, size_bytes + CALL_COST, call)
            is_free = self._busy < self._count
            self._busy += is_free
        if is_free:
            self._executor.submit(self._work)
        self._calls += 1
        try:
            result: T = await call.done
        except asyncio.CancelledError:
            with self._lock:
                if behind and call in self._behind:
                    self._behind.remove(call)
                    withdrawn = True
                else:
                    withdrawn = not behind and self._queue.withdraw(flow, call)
            if not withdrawn:
                await call.until_ended()
            raise
        finally:
            del call  # an error's traceback has this frame, and would refer to itself
            self._calls -= 1
            if self._idle is not None and not self._calls and not self._idle.done():
                self._idle.set_result(None)
        return result

    # ---- a disk that hangs -----------------------------------------------------------------------

    def abandon(self, refusal: Callable[[], Exception]) -> None:
        """Fail all calls, and each later one, until :meth:`resume`.

        Calls that wait are withdrawn. The threads of running calls cannot be interrupted.

        Args:
            refusal: Makes the error of a call.
        """
        self._refusal = refusal
        waiting: list[_Call] = []
        with self._lock:
            while (call := self._take()) is not None:
                waiting.append(call)
            running = list(self._running)
        for call in waiting:
            call.fail(refusal(), is_running=False)
        for call in running:
            call.fail(refusal(), is_running=True)

    def resume(self) -> bool:
        """Accept calls again if no abandoned one still runs; return whether calls are accepted."""
        if self._refusal is not None:
            with self._lock:
                if self._running:
                    return False
            self._refusal = None
        return True

    @property
    def is_abandoned(self) -> bool:
        """Whether calls are refused."""
        return self._refusal is not None

    def calls(self) -> list[WaitingCall]:
        """Return the calls of applications, for status: those that run, and the queued ones."""
        with self._lock:
            running = list(self._running)
            queued = [*self._queue.items(), *self._behind]
        return [
            WaitingCall(each.application_id, each.began_at, is_running)
            for calls, is_running in ((running, True), (queued, False))
            for each in calls
            if each.application_id
        ]

    def count_time(self, seconds: float, limit_seconds: float) -> bool:
        """Count time for the running calls; return whether one of them takes too long.

        The owner counts time, and not a clock, because a call is not late while the whole process
        is stopped.

        Args:
            seconds: Time since the last call of this method.
            limit_seconds: Longest time that a small call may take.
        """
        with self._lock:
            running = list(self._running)
        return any([call.is_late(seconds, limit_seconds) for call in running])

    # ---- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for all calls, then end the threads. Abandoned calls are not waited for.

        Cancellation: safe; the threads do not end.
        """
        if self._calls:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self.end()

    def end(self) -> None:
        """Wait for all running and queued calls unless abandoned, and end the threads. Blocks."""
        self._executor.shutdown(wait=self._refusal is None)

    def when_idle(self, function: Callable[[], None]) -> None:
        """Call a function when no call runs: now, or in the thread whose call ends last."""
        with self._lock:
            is_busy = bool(self._running)
            if is_busy:
                self._at_end.append(function)
        if not is_busy:
            function()

    def _work(self) -> None:
        """Make calls in turn until none waits. Runs in a thread."""
        call: _Call | None = None
        while (call := self._next(call)) is not None:
            call.make()

    def _take(self) -> "_Call | None":
        """Remove and return the call whose turn it is, or None. The caller has the lock."""
        call = self._queue.take()
        return self._behind.popleft() if call is None and self._behind else call

    def _next(self, ended: "_Call | None") -> "_Call | None":
        """Return the next call, or None to end the thread's work.

        Args:
            ended: The call that this thread has just made.
        """
        at_end: list[Callable[[], None]] = []
        with self._lock:
            if ended is not None:
                self._running.discard(ended)
                if self._at_end and not self._running:
                    at_end, self._at_end = self._at_end, at_end
            call = self._take()
            if call is None:
                self._busy -= 1
                if self._busy == 0:
                    self._queue.forget_idle()
            else:
                self._running.add(call)
        for function in at_end:
            function()
        return call


class _Call:
    """One blocking call.

    Attributes:
        application_id: The application; empty: the TaskManager itself.
        began_at: When it was queued, as of ``time.monotonic()``.
        done: Gets the result, unless its waiter is canceled.
    """

    __slots__ = (
        "_abandoned",
        "_ended",
        "_function",
        "_loop",
        "_seconds",
        "_size_bytes",
        "_uses",
        "application_id",
        "began_at",
        "done",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], object],
        size_bytes: int,
        uses: Sequence[Used],
        application_id: str = "",
    ) -> None:
        self.application_id = application_id
        self.began_at = monotonic()
        self._loop = loop
        self._function: Callable[[], object] | None = function
        self._size_bytes = size_bytes
        self._uses = uses
        self._seconds: float | None = None
        self._ended = False
        self._abandoned = False
        self.done: asyncio.Future[Any] = loop.create_future()

    def make(self) -> None:
        """Make the call in this thread, and send the result to the loop."""
        function, self._function = self._function, None
        if function is None:
            raise RuntimeError("the call was made before")
        result, failure = _outcome(function)
        del function  # and its buffers, before the caller is notified that they are free
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(self._tell, result, failure)
        del self, failure  # an error's traceback has this frame, and would refer to itself

    async def until_ended(self) -> None:
        """Wait until the thread is done or abandoned, even if canceled, and drop the result."""
        while not self._ended:
            self.done = self._loop.create_future()
            try:
                await self.done
            except asyncio.CancelledError:
                continue  # canceled again: the thread still uses the buffers
            except BaseException:  # noqa: BLE001 - its waiter raises CancelledError instead
                return

    def fail(self, error: Exception, *, is_running: bool) -> None:
        """Fail the call, and keep what its thread still uses."""
        if self._ended:
            return
        self._ended = True
        self._abandoned = is_running
        if not self.done.done():
            self.done.set_exception(error)
        if is_running:
            for each in self._uses:
                each.retain()

    def is_late(self, seconds: float, limit_seconds: float) -> bool:
        """Count time for a running call; return whether it takes too long."""
        # Not counted at first sight: it may have begun a moment ago.
        self._seconds = 0.0 if self._seconds is None else self._seconds + seconds
        return self._seconds >= limit_seconds * (1 + self._size_bytes // SLOWEST_CALL_BYTES)

    def _tell(self, result: object, failure: BaseException | None) -> None:
        if self._abandoned:
            uses, self._uses = self._uses, ()
            for each in uses:
                each.release()
            return
        self._ended = True
        if self.done.done():  # cancelled
            return
        if failure is None:
            self.done.set_result(result)
        else:
            self.done.set_exception(failure)


def _outcome(function: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Return the result of a function, or None and its error."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - the waiter raises it
        return None, error
