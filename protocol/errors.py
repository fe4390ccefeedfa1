"""The tree of errors, whose root is :class:`SluiceError`.

::

    SluiceError
    ├── ProtocolViolation            the peer broke the rules; its connection is closed
    │   ├── FrameTooLarge
    │   ├── MalformedMessage
    │   ├── UnexpectedMessage
    │   ├── AuthenticationFailed     a side did not authenticate, or may not do what it requests
    │   │   └── NotPermitted
    │   ├── ChannelInUse
    │   ├── CreditOverflow
    │   └── CreditExceeded
    ├── InvalidEvent                 an event cannot be decoded; only its channel fails
    ├── RemoteError                  reported by the other side (sluice.protocol.remote_error)
    └── …                            errors of the other layers, defined where they are raised

An error states the event, the offending value, the limit, and the remedy. Its ``code``, which is
also its number on the wire, says which side is at fault and whether a retry can help. Errors that
nobody catches by class have a code only: ``Raises`` in a docstring then names the code.
"""

import enum
from typing import Final


class ErrorCode(enum.IntEnum):
    """Error numbers on the wire (docs/reference/wire.md)."""

    PROTOCOL_VIOLATION = 1
    UNSUPPORTED_VERSION = 2
    FRAME_TOO_LARGE = 3
    MALFORMED_MESSAGE = 4
    UNEXPECTED_MESSAGE = 5
    DEADLINE_EXCEEDED = 6
    SEGMENT_SIZE_MISMATCH = 7
    UNKNOWN_CHANNEL = 8
    CHANNEL_IN_USE = 9
    CREDIT_OVERFLOW = 10
    SEQUENCE_GAP = 11
    CREDIT_EXCEEDED = 12
    INVALID_EVENT = 13
    PARTITION_NOT_FOUND = 20
    PARTITION_RELEASED = 21
    PRODUCER_FAILED = 22
    REGION_MISMATCH = 23
    CHECKSUM_MISMATCH = 24
    DUPLICATE_MAP_OUTPUT = 25
    END_OF_PARTITION_MISMATCH = 26
    SUBPARTITION_IN_USE = 27
    UNKNOWN_PRODUCER = 28
    PARTITION_MOVED = 29
    INSUFFICIENT_BUFFERS = 30
    STORAGE_FULL = 31
    STORAGE_UNAVAILABLE = 32
    STORAGE_CORRUPT = 33
    CONNECT_FAILED = 40
    CONNECTION_LOST = 41
    TASKMANAGER_MISMATCH = 43
    CONNECT_REFUSED = 44
    CONFIGURATION = 50
    INTERNAL = 60
    SHUTTING_DOWN = 61
    TOO_MANY_CONNECTIONS = 62
    LIMIT_EXCEEDED = 63
    QUOTA_EXCEEDED = 64
    AUTHENTICATION_REQUIRED = 70
    AUTHENTICATION_FAILED = 71
    CREDENTIAL_EXPIRED = 72
    NOT_PERMITTED = 73


class Fault(enum.IntEnum):
    """The side at fault, seen from the process that raises the error."""

    LOCAL = 1
    REMOTE = 2


REMOTE_FAULTS: Final = frozenset(
    {
        ErrorCode.PROTOCOL_VIOLATION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.FRAME_TOO_LARGE,
        ErrorCode.MALFORMED_MESSAGE,
        ErrorCode.UNEXPECTED_MESSAGE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.SEGMENT_SIZE_MISMATCH,
        ErrorCode.CHANNEL_IN_USE,
        ErrorCode.CREDIT_OVERFLOW,
        ErrorCode.SEQUENCE_GAP,
        ErrorCode.CREDIT_EXCEEDED,
        ErrorCode.INVALID_EVENT,
        ErrorCode.REGION_MISMATCH,
        ErrorCode.CHECKSUM_MISMATCH,
        ErrorCode.END_OF_PARTITION_MISMATCH,
        ErrorCode.SUBPARTITION_IN_USE,
        ErrorCode.CONNECT_FAILED,
        ErrorCode.CONNECT_REFUSED,
        ErrorCode.CONNECTION_LOST,
        ErrorCode.TASKMANAGER_MISMATCH,
        ErrorCode.AUTHENTICATION_REQUIRED,
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.CREDENTIAL_EXPIRED,
        ErrorCode.NOT_PERMITTED,
    }
)
"""Codes of errors that the other side causes; a class can differ from its code."""

RETRYABLE: Final = frozenset(
    {
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.SEQUENCE_GAP,  # the data is still stored, so it can be requested again
        ErrorCode.CHECKSUM_MISMATCH,
        ErrorCode.END_OF_PARTITION_MISMATCH,
        ErrorCode.PARTITION_MOVED,
        ErrorCode.INSUFFICIENT_BUFFERS,  # other gates and partitions end with their tasks
        ErrorCode.STORAGE_FULL,
        ErrorCode.CONNECT_FAILED,
        ErrorCode.CONNECT_REFUSED,
        ErrorCode.CONNECTION_LOST,
        ErrorCode.TASKMANAGER_MISMATCH,
        ErrorCode.TOO_MANY_CONNECTIONS,
    }
)
"""Codes of errors after which a retry can succeed; a class can differ from its code."""


class SluiceError(Exception):
    """Root of all errors.

    Args:
        message: The event, as one sentence without a full stop.
        code: The code, if it differs from the class's.
        value: The offending value, if there is one.
        limit: The limit that it exceeds, if there is one.
        remedy: What the reader can do.
        map_attempt_id: The map output concerned, for errors of the data path.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        value: object = None,
        limit: object = None,
        remedy: str = "",
        map_attempt_id: int | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.message = message
        self.value = value
        self.limit = limit
        self.remedy = remedy
        self.map_attempt_id = map_attempt_id

    @property
    def fault(self) -> Fault:
        """The side at fault."""
        return Fault.REMOTE if self.code in REMOTE_FAULTS else Fault.LOCAL

    @property
    def retryable(self) -> bool:
        """Whether another attempt may succeed without a change."""
        return self.code in RETRYABLE

    def __str__(self) -> str:
        numbers = [
            f"{name} {number}"
            for name, number in (("value", self.value), ("limit", self.limit))
            if number is not None
        ]
        text = self.message + (f" ({', '.join(numbers)})" if numbers else "")
        return f"{text}. {self.remedy}" if self.remedy else text


class ProtocolViolation(SluiceError):
    """The peer broke a rule of the wire protocol; its connection is closed."""

    code = ErrorCode.PROTOCOL_VIOLATION


class FrameTooLarge(ProtocolViolation):
    """A frame has a control part or a payload above the limit."""

    code = ErrorCode.FRAME_TOO_LARGE


class MalformedMessage(ProtocolViolation):
    """The control part is not a message: not msgpack, unknown type, wrong fields."""

    code = ErrorCode.MALFORMED_MESSAGE


class UnexpectedMessage(ProtocolViolation):
    """A well-formed message that the state of the connection does not allow."""

    code = ErrorCode.UNEXPECTED_MESSAGE


class AuthenticationFailed(ProtocolViolation):
    """The other side did not prove its identity.

    Attributes:
        reason: Label for the counter of refused connections. It is not sent, so that an attacker
            does not learn which part of a guess was right.
    """

    code = ErrorCode.AUTHENTICATION_FAILED

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        code: ErrorCode | None = None,
        value: object = None,
        limit: object = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, code=code, value=value, limit=limit, remedy=remedy)
        self.reason = reason


class NotPermitted(AuthenticationFailed):
    """The other side is authenticated, but may not do what it requests."""

    code = ErrorCode.NOT_PERMITTED


class ChannelInUse(ProtocolViolation):
    """A channel, gate or partition number is already in use."""

    code = ErrorCode.CHANNEL_IN_USE


class CreditOverflow(ProtocolViolation):
    """A channel was granted more credit than can be counted."""

    code = ErrorCode.CREDIT_OVERFLOW


class CreditExceeded(ProtocolViolation):
    """Data or an event arrived without credit."""

    code = ErrorCode.CREDIT_EXCEEDED


class InvalidEvent(SluiceError):
    """A payload is not an event, or has an unknown id. Fails one channel."""

    code = ErrorCode.INVALID_EVENT
