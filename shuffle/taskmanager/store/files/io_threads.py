"""Threads for blocking calls, bounded in number and safe against cancellation.

Calls wait in a :class:`~sluice.transport.fair_queue.FairQueue`. A thread that finishes a call takes
the next one itself, so that the threads stay busy while the event loop is busy. If a thread is
free, a call starts at once.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from .....transport.fair_queue import OWN_FLOW, FairQueue, Flow

P = ParamSpec("P")
T = TypeVar("T")

CALL_COST: Final = 64 * 1024
"""Cost of a call in addition to its bytes, so small calls cannot starve large ones. A thread moves
about this many bytes in the time of an empty call."""


class IoThreads:
    """A few threads that make the blocking calls of an event loop.

    Args:
        count: Maximum number of threads.
        name: Prefix of their names.
    """

    __slots__ = ("_busy", "_count", "_executor", "_lock", "_queue")

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = threading.Lock()
        """Protects the fields below, for a few microseconds at a time."""
        self._busy = 0
        self._queue: FairQueue[_Call] = FairQueue()

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return len(self._queue)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call of the TaskManager's own in a thread and wait for it.

        Cancellation: a running call is not interrupted, because the thread may use the caller's
        buffers; CancelledError is raised when it has ended. So the buffers can always be reused
        when this returns or raises. The wait lasts as long as one disk access. A call that has not
        started is withdrawn.
        """
        return await self.run_for(OWN_FLOW, 0, lambda: call(*args, **kwargs))

    async def run_for(self, flow: Flow, size_bytes: int, function: Callable[[], T]) -> T:
        """Run a blocking call of a connection in a thread, like :meth:`run`.

        Args:
            flow: The flow in whose turn it runs.
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
        """Wait for all running and queued calls, and end the threads. Blocks."""
        self._executor.shutdown()

    def _work(self) -> None:
        """Make calls in turn until none waits. Runs in a thread."""
        while (call := self._next()) is not None:
            call.make()

    def _next(self) -> "_Call | None":
        """Return the next call, or None to end the thread's work."""
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
        done: Gets the result, unless its waiter is canceled.
    """

    __slots__ = ("_ended", "_function", "_loop", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        self._loop = loop
        self._function: Callable[[], object] | None = function
        self._ended = False
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
        """Wait until the thread is done, even if canceled, and drop the result."""
        while not self._ended:
            self.done = self._loop.create_future()
            try:
                await self.done
            except asyncio.CancelledError:
                continue  # canceled again: the thread still uses the buffers
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
    except BaseException as error:  # noqa: BLE001 - the waiter raises it
        return None, error
