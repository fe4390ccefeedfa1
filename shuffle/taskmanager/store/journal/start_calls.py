"""Blocking calls of a start, each given up if its directory hangs."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import DirectoryHangs
from ..files.directory_threads import StorageThreads
from ..files.late_calls import LateCalls
from ..health.directory_probe import ProbedDirectory, probe

T = TypeVar("T")


class StartCalls:
    """Makes the blocking calls of a start, each in a thread of its own.

    A call may take long as long as its directory answers probes.

    Args:
        threads: The threads of the directories. A directory is not used again or unlocked before
            the calls that were given up there have ended.
        slow_seconds: The longest time for a probe.
    """

    def __init__(self, threads: StorageThreads, slow_seconds: float) -> None:
        self._threads = threads
        self._slow_seconds = slow_seconds

    def make(
        self, directory: Path, call: Callable[[], T], dispose: Callable[[T], None] | None = None, /
    ) -> T:
        """Make a call that accesses one directory and no other. Blocks.

        Args:
            directory: The storage directory.
            call: The call. Its thread cannot be interrupted and does not keep the process alive.
            dispose: Called in that thread with a result that comes too late.

        Raises:
            DirectoryHangs: The directory does not answer.
            Exception: The error of the call.
        """
        late, seconds = self._threads.of(directory).late, self._slow_seconds
        work = _Work(call, dispose)
        while not work.is_done(seconds):
            look = _Work(partial(probe, ProbedDirectory(directory)))
            if not look.is_done(seconds) and look.give_up(late):
                if work.give_up(late):
                    reason = f"it does not answer within slow_disk_seconds = {seconds:g}"
                    raise DirectoryHangs(directory, reason)
                break
        return work.result()


class _Work(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T], dispose: Callable[[T], None] | None = None) -> None:
        self._call = call
        self._dispose = dispose
        self._lock = threading.Lock()
        self._late: LateCalls | None = None
        self._done = threading.Event()
        self._results: list[T] = []
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="sluice-start", daemon=True).start()

    def is_done(self, seconds: float) -> bool:
        """Wait for the call; return whether it has ended."""
        return self._done.wait(seconds)

    def give_up(self, late: LateCalls) -> bool:
        """Let a late result be disposed of; return False if it is here already."""
        with self._lock:
            if self._done.is_set():
                return False
            self._late = late
            late.add(self)
            return True

    def result(self) -> T:
        """Return the result, or raise the error."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._results.pop()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._failure = error
        with self._lock:
            self._done.set()
            late = self._late
        if late is None:
            return
        try:
            if self._results and self._dispose is not None:
                self._dispose(self._results.pop())
        finally:
            late.ended(self)
