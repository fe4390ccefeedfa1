"""Blocking calls of a start, each given up if its directory hangs."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import DirectoryHangs
from ..health.directory_probe import ProbedDirectory, probe

T = TypeVar("T")


def while_it_answers(
    directory: Path,
    slow_seconds: float,
    call: Callable[[], T],
    dispose: Callable[[T], None] | None = None,
) -> T:
    """Make a call that may take long, as long as its directory answers probes. Blocks.

    Args:
        directory: The directory that the call accesses.
        slow_seconds: The longest time for a probe.
        call: The call. Its thread cannot be interrupted and does not keep the process alive.
        dispose: Called in that thread with a result that comes too late.

    Raises:
        DirectoryHangs: A probe got no answer.
        Exception: The error of the call.
    """
    work = _Work(call, dispose)
    while not work.is_done(slow_seconds):
        if not _Work(partial(probe, ProbedDirectory(directory))).is_done(slow_seconds):
            if work.give_up():
                reason = f"it does not answer within slow_disk_seconds = {slow_seconds:g}"
                raise DirectoryHangs(directory, reason)
            break
    return work.result()


class _Work(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T], dispose: Callable[[T], None] | None = None) -> None:
        self._call = call
        self._dispose = dispose
        self._lock = threading.Lock()
        self._given_up = False
        self._done = threading.Event()
        self._results: list[T] = []
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="sluice-start", daemon=True).start()

    def is_done(self, seconds: float) -> bool:
        """Wait for the call; return whether it has ended."""
        return self._done.wait(seconds)

    def give_up(self) -> bool:
        """Let a late result be disposed of; return False if it is here already."""
        with self._lock:
            self._given_up = not self._done.is_set()
            return self._given_up

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
            is_late = self._given_up
        if is_late and self._results and self._dispose is not None:
            self._dispose(self._results.pop())
