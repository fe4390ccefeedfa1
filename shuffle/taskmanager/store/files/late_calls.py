"""Blocking calls of a start that were given up, and whose threads still run.

Such a thread may touch its directory at any time until it ends. So the directory is not used
again, and not unlocked, before.
"""

import threading
from collections.abc import Callable


class LateCalls:
    """The given-up calls of one directory. Its methods may run in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[object] = set()
        self._at_end: list[Callable[[], None]] = []

    @property
    def are_running(self) -> bool:
        """Whether a call still runs."""
        return bool(self._running)

    def add(self, call: object) -> None:
        """Record a call that is given up while it runs."""
        with self._lock:
            self._running.add(call)

    def ended(self, call: object) -> None:
        """Record the end of a call, in its thread."""
        at_end: list[Callable[[], None]] = []
        with self._lock:
            self._running.discard(call)
            if not self._running:
                at_end, self._at_end = self._at_end, at_end
        for function in at_end:
            function()

    def when_idle(self, function: Callable[[], None]) -> None:
        """Call a function when no call runs: now, or in the thread whose call ends last."""
        with self._lock:
            is_busy = bool(self._running)
            if is_busy:
                self._at_end.append(function)
        if not is_busy:
            function()
