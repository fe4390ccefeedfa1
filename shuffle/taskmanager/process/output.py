"""Standard error of the daemon: the log, and the output of Python and libraries.

No thread waits until standard error is read, see :mod:`log_queue`. Refused connections cannot fill
a disk with log lines, see :mod:`repeats`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from typing import Final

from .log_queue import LogQueue, QueuedStream
from .repeats import Repeats

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

STREAM_LOGGER: Final = "stderr"
"""Logger of the JSON lines with what Python itself writes to standard error."""

LAST_LINES_SECONDS: Final = 0.5
"""Time for the last lines at the end of the process if standard error is not read."""

_formatter = logging.Formatter(LOG_FORMAT)
_queue: LogQueue | None = None
_handler: logging.Handler | None = None
_process: int | None = None


def redirect() -> None:
    """Put a queue in front of standard error, to the end of the process. Idempotent.

    A stream without a file descriptor, as in tests, stays: writing to it does not block. Standard
    streams that were closed become the null device: sockets must not get their descriptors, which
    libuv refuses to close.
    """
    global _queue
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)  # gets the lowest descriptor that is free
    if _queue is not None or sys.stderr is None:
        return
    try:
        fd = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return
    sys.stderr.flush()
    _queue = LogQueue(fd, _describe_dropped)
    sys.stderr = QueuedStream(_queue)
    atexit.register(last_lines)


def start_logging(level: str, log_format: str = "text", process: int | None = None) -> None:
    """Write the log to standard error, unless it has a handler already.

    Args:
        level: Minimum log level, one of ``log_level``.
        log_format: One of ``log_format``.
        process: Index of this process among those that write to the same log; None: it is alone.
    """
    global _handler, _process
    if logging.root.handlers:
        return
    _process = process
    _handler = logging.StreamHandler(sys.stderr) if _queue is None else LogHandler(_queue)
    logging.basicConfig(handlers=[_handler])
    change(level, log_format)


def change(level: str, log_format: str | None = None) -> None:
    """Change the minimum log level, and the format unless it is None, from now on. Thread safe.

    In a process whose log is not of :func:`start_logging`, as with an embedded TaskManager, only
    the level of Sluice's own loggers changes.
    """
    global _formatter
    if _handler is None:
        logging.getLogger(__name__.partition(".")[0]).setLevel(level.upper())
        return
    logging.root.setLevel(level.upper())
    if log_format is None:
        return
    if log_format == "json":
        from .json_log import JsonFormatter  # most daemons log text

        _formatter = JsonFormatter(_process)
    else:
        name = "%(name)s" if _process is None else f"process {_process}: %(name)s"
        _formatter = logging.Formatter(LOG_FORMAT.replace("%(name)s", name))
    _handler.setFormatter(_formatter)
    if isinstance(sys.stderr, QueuedStream):
        sys.stderr.as_line = _stream_line if log_format == "json" else None


def last_lines() -> None:
    """Write the lines about counted records, then wait LAST_LINES_SECONDS for the queue at most.

    Lines that come later are dropped: call it at the end of the process.
    """
    logging.shutdown()
    if _queue is not None:
        _queue.close(LAST_LINES_SECONDS)


def dropped_lines() -> int:
    """Return how many lines of this process were dropped because the queue was full."""
    return 0 if _queue is None else _queue.dropped_lines


class LogHandler(logging.Handler):
    """Writes records to a queue, and counts those that repeat.

    At level DEBUG every record is written.

    Args:
        queue: Gets the lines.
        repeats: Decides what is written.
    """

    def __init__(self, queue: LogQueue, repeats: Repeats | None = None) -> None:
        super().__init__()
        self.setFormatter(_formatter)
        self._queue = queue
        self._repeats = repeats or Repeats(time.monotonic)
        queue.due = self._due

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it; never blocks."""
        try:
            if self._is_over():
                self.flush()
            if record.levelno < logging.INFO or logging.root.isEnabledFor(logging.DEBUG):
                self._queue.put(f"{self.format(record)}\n")
                return
            entry = self._repeats.entry(record)
            if entry.is_open:
                text = self.format(record)
                entry.written(text)
                self._queue.put(f"{text}\n")
                return
            was_quiet = not self._repeats.has_counted
            self._repeats.count(entry, record)
            if was_quiet:
                self._queue.wake()
        except Exception:  # noqa: BLE001 - as logging does: the log must not end what it logs
            self.handleError(record)

    def flush(self) -> None:
        """Queue the lines about counted records. Does not wait until they are written."""
        self.acquire()
        try:
            for logger, level, text in self._repeats.end():
                self._queue.put(_line(logger, level, text))
        finally:
            self.release()

    def _is_over(self) -> bool:
        return self._repeats.remaining_seconds() <= 0

    def _due(self) -> float | None:
        self.acquire()
        try:
            if not self._repeats.has_counted:
                return None
            if self._is_over():
                self.flush()
                return None
            return self._repeats.remaining_seconds()
        finally:
            self.release()


def _describe_dropped(lines: int) -> str:
    text = f"{lines} lines of the log were dropped here, because standard error was not read"
    return _line(__name__, logging.WARNING, text)


def _stream_line(text: str) -> str:
    return _line(STREAM_LOGGER, logging.WARNING, text)


def _line(logger: str, level: int, text: str) -> str:
    record = logging.LogRecord(logger, level, "", 0, text, None, None)
    return f"{_formatter.format(record)}\n"
