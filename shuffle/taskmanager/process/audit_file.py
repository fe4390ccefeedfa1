"""The file of the audit log, ``audit_log_path``.

A thread writes it, as the log: a disk that hangs stops no request. Imported where it is configured.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from typing import TYPE_CHECKING, Final

from ....protocol.errors import ErrorCode, SluiceError
from ....transport.trusted_path import require_trusted
from ..http.audit_entry import AUDIT
from .log_queue import LogQueue
from .output import LAST_LINES_SECONDS, LogHandler
from .repeats import RecordBudget, Repeats

if TYPE_CHECKING:
    from pathlib import Path

# Without O_NONBLOCK, opening a pipe would wait for its reader.
_FLAGS: Final = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
)
_MODE: Final = 0o600

logger = logging.getLogger(__name__)


class AuditFile:
    """Takes the lines of the audit log instead of the log, from :meth:`open` to :meth:`close`.

    Args:
        path: The file, for a line about dropped lines.
        fd: Where to write.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._queue = LogQueue(
            fd, lambda lines: f"{lines} lines of the audit log were dropped: {path} took too long\n"
        )
        self._path = path
        self._queue.on_failed = self._failed
        self._handler = LogHandler(self._queue, _AuditRepeats(time.monotonic))
        audit = logging.getLogger(AUDIT)
        audit.addHandler(self._handler)
        audit.propagate = False

    @classmethod
    def open(cls, path: Path) -> AuditFile:
        """Open a file for appending, and make it if there is none. Blocks.

        Raises:
            CONFIGURATION: That is not possible, or another user can change where the path leads.
        """
        try:
            fd = _opened(path)
        except OSError as error:
            raise SluiceError(
                f"The audit log {path} cannot be opened: {error.strerror or error}",
                code=ErrorCode.CONFIGURATION,
                remedy="Set audit_log_path to a file in a directory of the TaskManager's user",
            ) from error
        return cls(path, fd)

    @property
    def dropped_lines(self) -> int:
        """Lines that were dropped so far: there was no room, or they could not be written."""
        return self._queue.dropped_lines

    def _failed(self, error: OSError) -> None:
        """Say in the log, which is another file, that lines are being lost."""
        logger.error(
            "lines of the audit log are lost: %s cannot be written: %s. Make room on its disk",
            self._path,
            error.strerror or error,
        )

    def close(self) -> None:
        """Write what is queued, for LAST_LINES_SECONDS at most, and close the file. Blocks.

        A file whose disk hangs stays open.
        """
        audit = logging.getLogger(AUDIT)
        audit.removeHandler(self._handler)
        audit.propagate = not audit.handlers
        self._handler.flush()
        self._handler.close()
        self._queue.close(LAST_LINES_SECONDS)
        if self._queue.drain(0):
            os.close(self._queue.fd)


def _opened(path: Path) -> int:
    require_trusted(path.parent)
    fd = os.open(path, _FLAGS, _MODE)
    try:
        require_trusted(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file")
    except OSError:
        os.close(fd)
        raise
    return fd


class _AuditRepeats(Repeats):
    """Counts refused requests, and writes all others."""

    def entry(self, record: logging.LogRecord) -> RecordBudget:
        """Return the budget of a record."""
        if getattr(record, "source", None) is None:
            return RecordBudget(1)
        return super().entry(record)
