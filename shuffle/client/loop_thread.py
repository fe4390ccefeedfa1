"""An event loop in a thread of its own, for callers without asyncio."""

import asyncio
import concurrent.futures
import importlib.util
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ...transport.errors import ConnectionLost, DeadlineExceeded
from ...transport.loop import run
from ..errors import InvalidRequest

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads, on uvloop if that is installed.

    The thread is a daemon thread, so a process that forgets to close it can end nevertheless.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._ready: Final[concurrent.futures.Future[asyncio.AbstractEventLoop]] = (
            concurrent.futures.Future()
        )
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False

    def start(self, timeout_seconds: float) -> None:
        """Start the thread and wait until its loop runs.

        Raises:
            DeadlineExceeded: The loop did not run in time.
        """
        self._thread.start()
        try:
            self._ready.result(timeout_seconds)
        except concurrent.futures.TimeoutError:
            raise _late("The client's event loop did not start in time", timeout_seconds) from None

    def call(self, work: Coroutine[Any, Any, T], timeout_seconds: float, what: str) -> T:
        """Run a coroutine on the loop and wait for it.

        Args:
            work: The coroutine. It is cancelled at the deadline, and when the wait is interrupted.
            timeout_seconds: Longest wait.
            what: Names the work in errors.

        Raises:
            DeadlineExceeded: The coroutine took longer.
            ConnectionLost: The loop has ended.
            InvalidRequest: The caller is the loop itself, which would wait for ever.
            SluiceError: The coroutine raised it.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequest(
                f"{what} on the event loop's own thread would wait for ever",
                remedy="Call it from another thread; a handler of task events must not wait",
            )
        if self._closed or not self._thread.is_alive():
            work.close()
            raise ConnectionLost("The client is closed", value=what)
        future = asyncio.run_coroutine_threadsafe(work, self._ready.result(0))
        try:
            return future.result(timeout_seconds)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # the coroutine itself raised it
            raise _late(f"Not done in time: {what}", timeout_seconds, _BACK_PRESSURE) from None
        finally:
            future.cancel()  # no effect if it is done; otherwise the wait was interrupted

    def close(self, timeout_seconds: float) -> None:
        """Stop the loop, which cancels the coroutines on it, and the thread. Idempotent.

        Raises:
            DeadlineExceeded: The thread did not end in time.
        """
        self._closed = True
        if self._thread.is_alive():
            stop = self._stop
            if stop is not None:
                self._ready.result(0).call_soon_threadsafe(stop.set)
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                raise _late("The client's event loop did not end in time", timeout_seconds)

    def _run(self) -> None:
        has_uvloop = importlib.util.find_spec("uvloop") is not None
        try:
            run(self._main(), "uvloop" if has_uvloop else "asyncio")
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                return
            raise

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()


_BACK_PRESSURE: Final = (
    "Back pressure may last: see which readers are slow, or raise timeout_seconds"
)


def _late(problem: str, timeout_seconds: float, remedy: str = "") -> DeadlineExceeded:
    return DeadlineExceeded(problem, limit=f"{timeout_seconds} s", remedy=remedy)
