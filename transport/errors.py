"""Errors of connections. Root: :class:`sluice.protocol.errors.SluiceError`."""

from ..protocol.errors import ErrorCode, Fault, SluiceError


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


class DeadlineExceeded(TransportError):
    """The peer did not send or finish a message in time."""

    code = ErrorCode.DEADLINE_EXCEEDED


class TaskManagerMismatch(TransportError):
    """Another TaskManager than the expected one answers at an address."""

    code = ErrorCode.TASKMANAGER_MISMATCH


class TooManyConnections(TransportError):
    """The listener has reached its limit of connections."""

    code = ErrorCode.TOO_MANY_CONNECTIONS
    fault = Fault.LOCAL


class AddressUnavailable(SluiceError):
    """A listening address cannot be bound."""

    code = ErrorCode.CONFIGURATION
