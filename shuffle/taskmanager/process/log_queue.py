"""A bounded queue between the threads of a process and its standard error.

A write to standard error may block: the log driver behind a pipe hangs, a terminal is stopped with
Ctrl-S, a disk does not answer. Only the queue's own thread waits for it. If the queue is full,
lines are dropped and counted.
"""

import io
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""About five thousand lines."""

MAX_WRITE_BYTES: Final = 4096
"""Bytes of one write, unless a single line is longer. Pipes take that much at once or not at all
(PIPE_BUF), so a process that ends while its output is stuck leaves no half line."""

_ENCODING: Final = "utf-8"
_ERRORS: Final = "backslashreplace"


class LogQueue:
    """Writes lines to a file descriptor from a thread of its own.

    The thread starts with the first line and is a daemon thread: it never keeps the process alive.
    When the queue is full, lines are dropped until half of it is written. A line then says how many
    are missing.

    Args:
        fd: Where to write; stays open.
        max_bytes: Maximum size of the queued lines.
        describe: Returns the line that says how many lines were dropped.
    """

    def __init__(
        self,
        fd: int,
        describe: Callable[[int], str],
        max_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self.fd = fd
        self.dropped_lines = 0
        """Lines that were dropped so far: there was no room, or they could not be written."""
        self.due: Callable[[], float | None] | None = None
        """Called in the thread after each write. It may add lines, and returns the seconds after
        which to call it again; None: when there are lines."""
        self.on_failed: Callable[[OSError], None] | None = None
        """Called in the thread when a write fails after one that did not."""
        self._describe = describe
        self._max_bytes = max_bytes
        # Re-entrant: the collector may run a finalizer that logs while this thread has the lock.
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._unreported = 0
        """Lines dropped since the last line that reported some; not 0: lines are dropped."""
        self._writing = False
        self._woken = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> None:
        """Queue whole lines, or drop and count them; never blocks."""
        data = text.encode(_ENCODING, _ERRORS)
        if self._closing:
            self.dropped_lines += text.count("\n")
            return
        with self._changed:
            if self._unreported or self._queued_bytes + len(data) > self._max_bytes:
                lines = text.count("\n")
                self._unreported += lines
                self.dropped_lines += lines
            else:
                self._append(data)
            self.wake()

    def wake(self) -> None:
        """Have the thread call :attr:`due`."""
        with self._changed:
            self._woken = True
            self._start()
            self._changed.notify_all()

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until everything is written or the time is over; return whether it is. Blocks."""
        with self._changed:
            return self._changed.wait_for(self._is_drained, timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Wait as :meth:`drain` does, and end the thread, unless it is stuck. Blocks.

        Later lines are dropped. :meth:`put` then does not take the lock: a thread that the
        interpreter stopped at its end may hold it.
        """
        drained = self.drain(timeout_seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if drained and self._thread is not None:
            self._thread.join(timeout_seconds)

    def _is_drained(self) -> bool:
        return not (self._lines or self._writing or self._unreported)

    def _append(self, data: bytes) -> None:
        self._lines.append(data)
        self._queued_bytes += len(data)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sluice-log", daemon=True)
            # Threads inherit the mask. Signals of the process are for other threads.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        failing = False
        while True:
            again = None if self.due is None else self.due()
            with self._changed:
                self._report_dropped()
                if self._is_drained():
                    self._changed.notify_all()
                    if self._closing:
                        return
                    if not self._woken:
                        self._changed.wait(again)
                self._woken = False
                batch = self._next_batch()
            error = _write(self.fd, batch)
            if error is not None and not failing and self.on_failed is not None:
                self.on_failed(error)
            if batch:
                failing = error is not None
            with self._changed:
                self._writing = False
                if error is not None:
                    self.dropped_lines += batch.count(b"\n")

    def _report_dropped(self) -> None:
        if self._unreported and self._queued_bytes <= self._max_bytes // 2:
            unreported, self._unreported = self._unreported, 0
            self._append(self._describe(unreported).encode(_ENCODING, _ERRORS))

    def _next_batch(self) -> bytes:
        batch = b""
        while self._lines and (not batch or len(batch) + len(self._lines[0]) <= MAX_WRITE_BYTES):
            batch += self._lines.popleft()
        self._queued_bytes -= len(batch)
        self._writing = bool(batch)
        return batch


class QueuedStream(io.TextIOBase):
    """A text stream that replaces standard error and puts whole lines into a :class:`LogQueue`.

    Python itself writes there, too: warnings, errors of threads and finalizers, usage.
    """

    encoding = _ENCODING
    errors = _ERRORS

    def __init__(self, queue: LogQueue) -> None:
        self._queue = queue
        self.as_line: Callable[[str], str] | None = None
        """Makes the log line, with its end, of a line that is written; None: it is as written."""
        self._lock = threading.RLock()
        self._begun = ""

    def fileno(self) -> int:
        """Return the file descriptor behind the queue."""
        return self._queue.fd

    def isatty(self) -> bool:
        """Return whether a terminal is behind the queue."""
        return os.isatty(self._queue.fd)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Queue text up to its last line end; the rest waits for its line end. Never blocks."""
        with self._lock:
            whole, end, rest = (self._begun + text).rpartition("\n")
            if len(rest) > MAX_WRITE_BYTES:
                whole, end, rest = whole + end + rest, "\n", ""
            self._begun = rest
            if end and self.as_line is not None:
                self._queue.put("".join(map(self.as_line, whole.split("\n"))))
            elif end:
                self._queue.put(whole + end)
        return len(text)


def _write(fd: int, data: bytes) -> OSError | None:
    """Write everything, or stop at an error and return it. Blocks."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another process has made the open file non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
        except OSError as error:  # the reader is gone, or the disk is full
            return error
    return None
