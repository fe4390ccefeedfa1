"""Child processes whose output is kept and awaited line by line, and which always end.

A thread per process copies its output to a log file and wakes those who wait for a line, so a start
is noticed when it happens, without polling.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import Self

TAIL_LINES = 25
"""Lines of output shown in an error."""


def stop_on_termination() -> None:
    """Make SIGTERM unwind the program as Ctrl-C does, so that its child processes are ended."""

    def unwind(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, unwind)


class ProcessFailed(RuntimeError):
    """A child process ended or stayed silent; the message has the end of its output."""


class ManagedProcess:
    """A child process in a process group of its own, so that its descendants end with it.

    Args:
        name: Name of the process in errors.
        command: Program and arguments.
        log_path: File that receives standard output and standard error.
        environment: The whole environment of the child.
        directory: Working directory of the child.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._output_ended = False
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        if self._process.stdout is None:
            raise ProcessFailed(f"{name}: its output cannot be read")
        self._reader = threading.Thread(
            target=self._copy_output, args=(self._process.stdout,), name=f"log-{name}", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the child has not ended."""
        return self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless when the child has ended."""
        self._process.send_signal(number)

    def wait_for_line(
        self, pattern: re.Pattern[str], timeout_seconds: float, since: int = 0
    ) -> re.Match[str]:
        """Wait for a line of output that matches, after the first ``since`` lines.

        Raises:
            ProcessFailed: The output ended or the time ran out first.
        """
        deadline = time.monotonic() + timeout_seconds
        seen = since
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    match = pattern.search(line)
                    if match is not None:
                        return match
                seen = max(seen, len(self.lines))
                if self._output_ended:
                    raise ProcessFailed(self.describe(f"ended before it wrote {pattern.pattern!r}"))
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    raise ProcessFailed(
                        self.describe(
                            f"did not write {pattern.pattern!r} within {timeout_seconds:g} s"
                        )
                    )

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the end of the child and return its exit code.

        Raises:
            ProcessFailed: It still runs after ``timeout_seconds``.
        """
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(self.describe(f"still runs after {timeout_seconds:g} s")) from None

    def stop(self, timeout_seconds: float = 15.0) -> None:
        """Ask the child to end, then end its whole process group; harmless when it has ended."""
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_seconds)
        # The group outlives its leader as long as a member lives: executors of a worker, say.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout_seconds)
        self._reader.join(timeout_seconds)

    def tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.lines[-TAIL_LINES:])

    def describe(self, what: str) -> str:
        """Return ``what`` happened, with the exit code, if any, and the end of the output."""
        code = self._process.poll()
        state = "" if code is None else f" (exit code {code})"
        return f"{self.name} {what}{state}; the end of its output:\n{self.tail()}"

    def _copy_output(self, output: IO[bytes]) -> None:
        with output, self.log_path.open("ab", buffering=0) as log:
            for raw in output:
                log.write(raw)
                with self._changed:
                    self.lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._output_ended = True
            self._changed.notify_all()
