"""Counts the outcomes of accepted connections: served, refused, ended by an error."""

from collections import Counter
from typing import Final

from ..protocol.errors import AuthenticationFailed, ErrorCode, ProtocolViolation, SluiceError
from ..protocol.remote_error import RemoteError
from .connection import Connection
from .errors import TlsRefused

HUNG_UP: Final = "hung up"
NO_TLS: Final = "TLS"
NOT_SLUICE: Final = "bad frame"
OTHER: Final = "other"

_BY_CODE: Final = {
    ErrorCode.UNSUPPORTED_VERSION: "version",
    ErrorCode.SEGMENT_SIZE_MISMATCH: "segment size",
    ErrorCode.DEADLINE_EXCEEDED: "deadline",
    ErrorCode.TOO_MANY_CONNECTIONS: "too many",
    ErrorCode.QUOTA_EXCEEDED: "quota",
    ErrorCode.SHUTTING_DOWN: "draining",
    ErrorCode.INTERNAL: "internal",
}

HANDSHAKE_REASONS: Final = (*_BY_CODE.values(), NOT_SLUICE, NO_TLS, HUNG_UP, OTHER)
"""Reasons why a handshake fails, in addition to those of :class:`AuthenticationFailed`."""


def reason_of(error: SluiceError | None) -> str:
    """Return a label for the end of a connection in its handshake; None: no error."""
    if error is None or isinstance(error, RemoteError):
        return HUNG_UP
    if isinstance(error, AuthenticationFailed):
        return error.reason
    if isinstance(error, TlsRefused):
        return NO_TLS
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return NOT_SLUICE if isinstance(error, ProtocolViolation) else OTHER


class Outcomes:
    """Counts the connections of one listener by their outcome."""

    def __init__(self) -> None:
        self.greeted = 0
        """Connections whose handshake succeeded."""
        self.refused: Counter[str] = Counter()
        """Connections that ended in their handshake, and those that later requested something not
        permitted, by reason."""
        self.failed_handshakes = 0
        """Connections that ended in their handshake."""
        self.errors: Counter[str] = Counter()
        """Errors that made this side close a connection, by the name of their code."""

    def turned_away(self, error: SluiceError) -> None:
        """Count a connection that was refused before its handshake."""
        self.failed_handshakes += 1
        self.refused[reason_of(error)] += 1
        self.errors[error.code.name] += 1

    def ended(self, connection: Connection, *, greeted: bool) -> None:
        """Count a closed connection; ``greeted``: its handshake succeeded."""
        error = connection.close_reason
        if not greeted:
            self.failed_handshakes += 1
            self.refused[reason_of(error)] += 1
        elif isinstance(error, AuthenticationFailed):
            self.refused[error.reason] += 1
        if error is not None and not isinstance(error, RemoteError):  # this side closed it
            self.errors[error.code.name] += 1
