"""Errors of connections. Root: :class:`sluice.protocol.errors.SluiceError`."""

from typing import Final

from ..protocol.errors import ErrorCode, Fault, SluiceError

MAX_LOGGED_CHARACTERS: Final = 1000


class TransportError(SluiceError):
    """A connection could not be made or was lost."""

    fault = Fault.REMOTE
    retryable = True


class ConnectFailed(TransportError):
    """No TaskManager answers at an address within the deadline."""

    code = ErrorCode.CONNECT_FAILED


class ConnectionLost(TransportError):
    """The connection ended while it was in use."""

    code = ErrorCode.CONNECTION_LOST


class NoTaskManager(TransportError):
    """The program at an address does not speak the Sluice protocol."""

    code = ErrorCode.CONNECT_FAILED


class DeadlineExceeded(TransportError):
    """The peer did not send or finish a message in time."""

    code = ErrorCode.DEADLINE_EXCEEDED


class TaskManagerMismatch(TransportError):
    """The TaskManager at an address is not the expected one."""

    code = ErrorCode.TASKMANAGER_MISMATCH


class TooManyConnections(TransportError):
    """The listener has reached its limit of connections."""

    code = ErrorCode.TOO_MANY_CONNECTIONS
    fault = Fault.LOCAL


class AddressUnavailable(SluiceError):
    """A listening address cannot be bound."""

    code = ErrorCode.CONFIGURATION


def one_line(error: BaseException | str) -> str:
    """Return an error for the log, escaped because it may contain bytes of the other side.

    It is cut to MAX_LOGGED_CHARACTERS.
    """
    return printable(str(error)[:MAX_LOGGED_CHARACTERS])


def printable(text: str) -> str:
    """Return a text with line ends and control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
