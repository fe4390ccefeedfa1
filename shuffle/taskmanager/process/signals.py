"""Receives the signals of the process, and ends it at its deadline even if other threads hang.

A thread of its own waits for the signals, so that they are handled even if the event loop is stuck.
The first SIGTERM or SIGINT begins the stop, unless a supervisor has asked for it before. A second
one ends the process at once, and so does the deadline of the stop: a timer of the kernel sends a
signal to the same thread.

The process then ends without waiting for its threads, because a thread in a disk access that does
not return cannot be ended. That is safe at any time, like SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from . import output

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ..config.taskmanager_config import TaskManagerConfig

logger = logging.getLogger(__name__)

FAILURE: Final = 1

STORAGE_SECONDS: Final = 10.0
"""Time that threads get to end their writes when everything else has ended."""

_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_SIGNALS: Final = frozenset({*_STOPS, signal.SIGHUP, signal.SIGALRM})


def closing_seconds(config: TaskManagerConfig) -> float:
    """Return the time that a stop may take after its drain."""
    return config.transport.close_timeout_seconds + STORAGE_SECONDS


class ProcessSignals:
    """Waits for the signals of the process, from :meth:`start` to the end of the process.

    Args:
        stop_seconds: Time that a stop may take, from its signal; :meth:`end_within` changes it.
    """

    def __init__(self, stop_seconds: float) -> None:
        self._stop_seconds = stop_seconds
        self._lock = threading.Lock()
        """Protects the fields below."""
        self._stops = False
        self._receiver: _Receiver | None = None

    def start(self) -> None:
        """Begin to wait.

        Call it in the main thread before other threads start: they inherit its mask, and a thread
        that does not block the signals could receive one.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # When the interpreter stops the thread, the kernel's own actions end the process.
        atexit.register(signal.pthread_sigmask, signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=self._run, name="sluice-signals", daemon=True).start()

    def notify(
        self,
        loop: asyncio.AbstractEventLoop,
        on_stop: Callable[[], None],
        on_reload: Callable[[], None],
    ) -> None:
        """Set the functions to call on an event loop.

        Args:
            loop: The loop.
            on_stop: Called once after the first SIGTERM or SIGINT, which may have come already.
            on_reload: Called after each later SIGHUP.
        """
        with self._lock:
            self._receiver = _Receiver(loop, on_stop, on_reload)
            if self._stops:
                loop.call_soon(on_stop)

    def stop(self) -> None:
        """Begin the stop as the first SIGTERM does, unless it has begun. Thread safe."""
        with self._lock:
            is_first, self._stops = not self._stops, True
            receiver = self._receiver
        if is_first:
            self.end_within(self._stop_seconds)
            if receiver is not None:
                _call(receiver.loop, receiver.on_stop)

    def end_within(self, seconds: float) -> None:
        """End the process after a time, even if it is not done. Replaces an earlier time."""
        signal.setitimer(signal.ITIMER_REAL, min(seconds, threading.TIMEOUT_MAX))

    def _run(self) -> None:
        # Not `_stops`: a supervisor's request may be received before the first signal.
        has_come = False
        while True:
            number = signal.sigwait(_SIGNALS)
            if number == signal.SIGALRM:
                end_process("stopping took longer than it may; committed data is safe")
            logger.info("%s received", signal.Signals(number).name)
            if number == signal.SIGHUP:
                with self._lock:
                    receiver = self._receiver
                if receiver is not None:
                    _call(receiver.loop, receiver.on_reload)
            elif has_come:
                end_process("a second signal ends the process at once; committed data is safe")
            else:
                has_come = True
                self.stop()


class _Receiver(NamedTuple):
    loop: asyncio.AbstractEventLoop
    on_stop: Callable[[], None]
    on_reload: Callable[[], None]


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function)


def end_process(reason: str) -> NoReturn:
    """End the process without waiting for its threads."""
    logger.warning("%s", reason)
    output.last_lines()
    os._exit(FAILURE)
