"""Threads for blocking calls, bounded in number and safe against cancellation.

Calls wait for their turn in a :class:`~.fair_queue.FairQueue`. A thread that has finished a call
takes the next one itself, so that the threads stay busy while the event loop is busy. As long as a
thread is free, a call starts at once.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from .fair_queue import OWN_FLOW, FairQueue, Flow

P = ParamSpec("P")
T = TypeVar("T")

CALL_COST: Final = 64 * 1024
"""Cost of a call beside its bytes. A thread moves about that much in the time of an empty call, and
so small calls cannot take the threads from large ones."""


class IoThreads:
    """A few threads that make the blocking calls of an event loop.

    Args:
        count: Most threads.
        name: Prefix of their names.
    """

    __slots__ = ("_busy", "_count", "_executor", "_lock", "_queue")

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = threading.Lock()
        """Guards all that follows, for a few microseconds at a time."""
        self._busy = 0
        self._queue: FairQueue[_Call] = FairQueue()

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return len(self._queue)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call of the TaskManager's own in a thread and wait for it.

        Cancellation: a call that has begun is not interrupted, because the thread may be using the
        caller's buffers; CancelledError is raised when it has ended. So buffers may be reused as
        soon as this returns or raises, in every case. The wait is as long as the operating system
        takes for one disk access. A call that has not begun is withdrawn.
        """
        return await self.run_for(OWN_FLOW, 0, lambda: call(*args, **kwargs))

    async def run_for(self, flow: Flow, size_bytes: int, function: Callable[[], T]) -> T:
        """Run a blocking call of a connection in a thread and wait for it, as :meth:`run` does.

        Args:
            flow: Whose turn it takes.
            size_bytes: Bytes that it moves.
            function: The call.
        """
        call = _Call(asyncio.get_running_loop(), function)
        with self._lock:
            self._queue.add(flow, size_bytes + CALL_COST, call)
            is_free = self._busy < self._count
            self._busy += is_free
        if is_free:
            self._executor.submit(self._work)
        try:
            result: T = await call.done
        except asyncio.CancelledError:
            with self._lock:
                withdrawn = self._queue.withdraw(flow, call)
            if not withdrawn:
                await call.until_ended()
            raise
        finally:
            del call  # an error's traceback has this frame, and would refer to itself
        return result

    def end(self) -> None:
        """Wait for the calls under way and those that wait, and end the threads. Blocks."""
        self._executor.shutdown()

    def _work(self) -> None:
        """Make the calls whose turn it is, until none waits. Runs in a thread."""
        while (call := self._next()) is not None:
            call.make()

    def _next(self) -> "_Call | None":
        """Return the call whose turn it is; None ends the thread's work."""
        with self._lock:
            call = self._queue.take()
            if call is None:
                self._busy -= 1
                if self._busy == 0:
                    self._queue.forget_idle()
        return call


class _Call:
    """One blocking call.

    Attributes:
        done: Gets the outcome, unless its waiter is cancelled.
    """

    __slots__ = ("_ended", "_function", "_loop", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        self._loop = loop
        self._function: Callable[[], object] | None = function
        self._ended = False
        self.done: asyncio.Future[Any] = loop.create_future()

    def make(self) -> None:
        """Make the call in this thread, and tell the loop the outcome."""
        function, self._function = self._function, None
        if function is None:
            raise RuntimeError("the call was made before")
        result, failure = _outcome(function)
        del function  # and with it the caller's buffers, before it hears that they are free
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._tell, result, failure)
        del self, failure  # an error's traceback has this frame, and would refer to itself

    async def until_ended(self) -> None:
        """Wait until the thread is done, also if that is cancelled. The outcome is dropped."""
        while not self._ended:
            self.done = self._loop.create_future()
            try:
                await self.done
            except asyncio.CancelledError:
                continue  # cancelled again: the thread still has the buffers
            except BaseException:  # noqa: BLE001 - its waiter raises CancelledError instead
                return

    def _tell(self, result: object, failure: BaseException | None) -> None:
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
    except BaseException as error:  # noqa: BLE001 - it is the waiter's
        return None, error
