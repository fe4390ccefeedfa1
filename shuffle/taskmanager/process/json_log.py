"""Formats log records as JSON: one object a line, with fixed fields for log collectors.

Imported only with ``log_format = json``. The encoder is the one of the status, so the format loads
no further library.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...names import utf8_text

FIELDS: Final = ("application", "shuffle", "map_attempt", "peer", "code")
"""Fields that a log line has if its record has an attribute of the name, given by ``extra=``."""


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects with the fields of ``docs/operate/metrics.md``.

    Fields without a value are left out. A peer without a port is that of a counted record, see
    :func:`sluice.transport.errors.counted`.

    Args:
        process: Index of this data process; None: it is the only process, or the supervisor.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, without its end."""
        given = vars(record)
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: _plain(given[name]) for name in FIELDS if given.get(name) not in (None, "")}
        if "peer" not in line and given.get("source"):
            line["peer"] = given["source"]
        if self._process is not None:
            line["process"] = self._process
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return _encoded(line).decode()


def _plain(value: object) -> object:
    return value if isinstance(value, (int, str)) else str(value)


def _encoded(line: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # the name of a file may have any bytes
        readable = {
            name: value if isinstance(value, int) else utf8_text(value)
            for name, value in line.items()
        }
        return msgspec.json.encode(readable)
