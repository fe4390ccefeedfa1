"""A place where tasks of a Spark job stop until the test lets them go on.

Tasks connect to a Unix socket of the test, say which point of the job they have reached and which
executor runs them, and wait for an answer. So a test knows that "the map stage is over" because a
reduce task said so, and nothing sleeps or asks again and again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

WAIT_SECONDS = 150.0
"""How long a task waits at most; longer than any step of a test may take."""

RELEASED = b"go\n"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A task that has reached a point of its job."""

    point: str
    executor_pid: int
    """Process id of the JVM that runs the task."""


class Barrier:
    """The test's side; a context manager that lets everybody go at its end.

    Args:
        path: Path of the socket, at most 107 bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._arrivals: list[Arrival] = []
        self._waiting: list[tuple[str, socket.socket]] = []
        self._open: set[str] = set()
        self._all_open = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._accept, name="barrier", daemon=True)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10.0)
        self._listener.close()

    def wait(self, prefix: str, count: int, timeout_seconds: float = 90.0) -> list[Arrival]:
        """Wait until ``count`` tasks have reached points whose names begin with ``prefix``.

        Raises:
            TimeoutError: Fewer came; the message says which.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                found = [each for each in self._arrivals if each.point.startswith(prefix)]
                if len(found) >= count:
                    return found
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    raise TimeoutError(f"{count} of {prefix} wanted, arrived: {self._arrivals}")

    def release(self, *points: str) -> None:
        """Let those go who wait at these points, now and later; without names: everybody."""
        with self._changed:
            self._open.update(points)
            self._all_open = self._all_open or not points
            self._let_go()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down
                return
            connection.settimeout(10.0)
            with contextlib.suppress(OSError, ValueError):  # a task that was killed meanwhile
                point, pid = connection.makefile().readline().split()
                with self._changed:
                    self._arrivals.append(Arrival(point, int(pid)))
                    self._waiting.append((point, connection))
                    self._let_go()
                    self._changed.notify_all()

    def _let_go(self) -> None:
        still = []
        for point, connection in self._waiting:
            if not (self._all_open or point in self._open):
                still.append((point, connection))
                continue
            with connection, contextlib.suppress(OSError):
                connection.sendall(RELEASED)
        self._waiting = still


def stop_at(path: str | None, point: str) -> None:
    """Called by a task: says that it has reached ``point`` and waits until it may go on.

    Args:
        path: The barrier's socket; None when nobody waits, then this does nothing.
        point: A name without spaces.

    Raises:
        RuntimeError: The barrier was closed, or nobody answered in time.
    """
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_SECONDS)
        connection.connect(path)
        connection.sendall(f"{point} {jvm_pid()}\n".encode())
        if connection.recv(len(RELEASED)) != RELEASED:
            raise RuntimeError(f"the test is gone while a task waits at {point}")


def jvm_pid() -> int:
    """Process id of the JVM above this Python worker (worker, perhaps its forking parent, JVM)."""
    pid = os.getpid()
    while pid > 1:
        fields = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":\t", 1) for line in fields if ":\t" in line)
        if status["Name"] == "java":
            return pid
        pid = int(status["PPid"])
    raise RuntimeError("no JVM is above this process")
