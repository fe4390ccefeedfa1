"""Errors of connections, and their log lines. Root: :class:`sluice.protocol.errors.SluiceError`.

Clients without a credential can trigger log lines about connections. Each has a kind and a source:
for each kind and source, a TaskManager writes one line a minute and then the number of the others.
Other programs write all lines.
"""

import logging
from typing import Final

from ..protocol.errors import ErrorCode, Fault, SluiceError

MAX_LOGGED_CHARACTERS: Final = 1000


class ConnectFailed(SluiceError):
    """No TaskManager answers at an address within the deadline.

    The code is ``CONNECT_REFUSED`` if its host is alive and nothing listens there.
    """

    code = ErrorCode.CONNECT_FAILED


class ConnectionLost(SluiceError):
    """The connection ended while it was in use."""

    code = ErrorCode.CONNECTION_LOST


class DeadlineExceeded(SluiceError):
    """The peer did not send or finish a message in time."""

    code = ErrorCode.DEADLINE_EXCEEDED


class TlsRefused(SluiceError):
    """A TLS handshake failed: one side does not trust the other, or does not speak TLS.

    It is not retried: another attempt would fail the same way.
    """

    code = ErrorCode.CONFIGURATION
    fault = Fault.REMOTE


def one_line(error: BaseException | str) -> str:
    """Return an error for the log, escaped because it may contain bytes of the other side.

    It is cut to MAX_LOGGED_CHARACTERS.
    """
    return printable(str(error)[:MAX_LOGGED_CHARACTERS])


def printable(text: str) -> str:
    """Return a text with line ends and control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def code_field(error: object) -> dict[str, str]:
    """Return the ``extra`` of a log line about an error: its code, if it has a code."""
    return {"code": error.code.name} if isinstance(error, SluiceError) else {}


def counted(kind: str, remote: str) -> dict[str, str]:
    """Return the ``extra`` of a log line about a connection.

    Args:
        kind: What happened, in a few words that do not depend on the other side.
        remote: The other side, as ``describe_peer`` returns it; its port is left out.
    """
    return {"kind": kind, "source": remote.rpartition(":")[0] or remote}


def log_end(
    logger: logging.Logger,
    verb: str,
    remote: str,
    reason: str,
    error: BaseException,
    application: str = "",
) -> None:
    """Log that this side ends a connection because of an error.

    Args:
        logger: The logger of the module that ends it.
        verb: How it ends the connection, such as "closing".
        remote: The other side, as ``describe_peer`` returns it.
        reason: The kind of the error; does not depend on the other side.
        error: The error.
        application: The application of the connection; empty if it is not known yet.
    """
    kind = f"{verb} connection: {reason}"
    extra = {**counted(kind, remote), "application": application, "peer": remote}
    extra |= code_field(error)
    text = one_line(error)
    logger.warning("%s connection %s: %s: %s", verb, remote, reason, text, extra=extra)
