"""Logs and counts bytes on the HTTP port that are not a request.

The HTTP server would log a traceback of its parser each time, with the bytes that it received, and
clients without a token could fill the log. One line is enough.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ....transport.errors import counted, one_line
from ..status.reasons import BAD_REQUEST

if TYPE_CHECKING:
    from ...counters import BoundedCounts

UNIX_PEER: Final = "the Unix socket"
"""The peer of a request that has come over it, in the log."""

_ERRORS_OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError)


def server_logger(refused: BoundedCounts) -> logging.Logger:
    """Return the logger for an HTTP server, for which errors of clients are one line.

    Args:
        refused: Counts them.
    """
    made = logging.Logger(__name__)  # of this server alone, because of its filter
    made.parent = logging.getLogger(__name__)
    made.setLevel(logging.DEBUG)  # the filter decides: the server logs some at DEBUG
    made.addFilter(_ErrorsOfClients(refused))
    return made


class _ErrorsOfClients(logging.Filter):
    def __init__(self, refused: BoundedCounts) -> None:
        super().__init__()
        self._refused = refused

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite a record about an error of a client; keep others if their level is logged."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):  # the client has gone, which is no error
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            record.exc_info = record.exc_text = None
        if not isinstance(error, _ERRORS_OF_CLIENTS):
            return logging.getLogger(__name__).isEnabledFor(record.levelno)
        remote = "?"
        if isinstance(record.args, tuple) and record.args:
            remote = str(record.args[0] or UNIX_PEER)  # there it has no address
        self._refused.bump(BAD_REQUEST)
        text = getattr(error, "message", "").partition("\n")[0] or str(error)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = "refusing a request of %s: %s: %s"
        record.args = (remote, type(error).__name__, one_line(text))
        record.exc_info = record.exc_text = None
        vars(record).update(counted("HTTP requests refused: not understood", f"{remote}:"))
        return True
