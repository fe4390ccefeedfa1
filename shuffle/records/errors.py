"""Errors of the record layer.

::

    RecordError
    ├── RecordTooLarge       a record, or the length that announces one, is above the limit
    ├── IncompleteRecord     the stream ended in the middle of a record
    ├── GateReleased         the gate was given up before its channels had ended
    ├── MalformedElement     the bytes of a record are no stream element or no such value
    ├── SpillFailed          the temporary file of a very long record cannot be written or read
    ├── BufferUnread         a buffer was handed in before the one before it was read
    ├── InvalidSubpartition  a record was sent where there is no subpartition
    ├── WriterBusy           the writer's previous call was not awaited to its end
    └── WriterUnusable       the writer is finished, or failed in the middle of a record
"""

from protocol.errors import ErrorCode, Fault, SluiceError


class RecordError(SluiceError):
    """Root of the errors of records."""


class RecordTooLarge(RecordError):
    """A record is longer than the limit, or its length prefix lies."""

    code = ErrorCode.FRAME_TOO_LARGE

    def __init__(self, length_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "Record is too long",
            value=length_bytes,
            limit=limit_bytes,
            remedy="Make records smaller, or raise maximum_record_bytes on both sides",
        )


class IncompleteRecord(RecordError):
    """The data of a channel ended, and the last record is not whole."""

    code = ErrorCode.END_OF_PARTITION_MISMATCH
    fault = Fault.REMOTE
    retryable = True


class GateReleased(RecordError):
    """The input is over, but not complete: its owner has released the gate."""

    code = ErrorCode.PARTITION_RELEASED

    def __init__(self, open_channels: int) -> None:
        super().__init__(
            "The input gate was released while channels were open", value=open_channels, limit=0
        )


class MalformedElement(RecordError):
    """The bytes of a record do not decode: unknown tag, wrong length, or not such a value."""

    code = ErrorCode.MALFORMED_MESSAGE
    fault = Fault.REMOTE


class SpillFailed(RecordError):
    """The temporary file of a very long record failed."""

    code = ErrorCode.STORAGE_UNAVAILABLE


class BufferUnread(RecordError):
    """A deserializer was given a buffer while it still had one: a bug of the caller."""


class InvalidSubpartition(RecordError):
    """A record or an event names a subpartition that the partition does not have."""

    code = ErrorCode.CONFIGURATION


class WriterBusy(RecordError):
    """A writer was called while the awaitable of its previous call was not awaited to its end."""

    def __init__(self) -> None:
        super().__init__(
            "The previous call of this record writer still waits for a buffer",
            remedy="Await what emit() returned, if it is not None, before the next call",
        )


class WriterUnusable(RecordError):
    """A writer was called after its end, or after it had failed in the middle of a record."""


def no_such_subpartition(subpartition: int, num_subpartitions: int) -> InvalidSubpartition:
    """Make the error about a record or event for a subpartition that is not there."""
    return InvalidSubpartition(
        "There is no such subpartition",
        value=subpartition,
        limit=num_subpartitions - 1,
        remedy="Mend the channel selector",
    )
