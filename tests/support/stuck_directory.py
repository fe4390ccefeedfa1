"""A directory that hangs and answers again, in the process of the test.

A call that touches a file below the directory waits in its thread until the directory answers. The
event loop must never make such a call: there it fails the test.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from tests.support.hanging_disk import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

PATIENCE_SECONDS = 60


class StuckDirectory:
    """A directory, or the files in it whose names begin with words, that can hang.

    Args:
        monkeypatch: Replaces the calls of this process.
        directory: The directory.
        prefixes: Beginnings of the names of the files that hang.
        calls: The calls that hang.

    Attributes:
        touched_in_loop: Calls that the event loop made meanwhile.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        directory: Path,
        prefixes: tuple[str, ...] = ("",),
        calls: tuple[str, ...] = CALLS,
    ) -> None:
        self.touched_in_loop: list[str] = []
        self._below = tuple(str(directory / each) for each in prefixes)
        self._answers = threading.Event()
        self._answers.set()
        self._held = threading.Semaphore(0)
        self._readlink = os.readlink
        for name in calls:
            if name != "close":
                monkeypatch.setattr(os, name, self._hanging(name, getattr(os, name)))

    def hang(self) -> None:
        """Let calls wait from now on."""
        self._answers.clear()

    def answer(self) -> None:
        """Let the calls go on."""
        self._answers.set()

    async def holds(self, calls: int = 1) -> None:
        """Wait until a number of further calls wait, not counting those of probes."""
        for _ in range(calls):
            assert await asyncio.to_thread(self._held.acquire, timeout=PATIENCE_SECONDS)

    def _hanging(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def made(file: Any, *rest: Any, **named: Any) -> Any:
            if not self._answers.is_set() and self._is_below(file):
                if name == "preadv" and len(rest) == 3:
                    raise BlockingIOError  # the page cache does not have it
                thread = threading.current_thread()
                if thread is threading.main_thread():
                    self.touched_in_loop.append(name)
                else:
                    if not thread.name.startswith("sluice-health"):
                        self._held.release()
                    assert self._answers.wait(PATIENCE_SECONDS)
            return call(file, *rest, **named)

        return made

    def _is_below(self, file: Any) -> bool:
        try:
            path = self._readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
        except OSError:
            return False
        return os.fspath(path).startswith(self._below)
