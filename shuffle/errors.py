"""Errors of partitions and gates. Root: :class:`sluice.protocol.errors.SluiceError`.

Errors of the memory pools.

::

    MemoryPoolError
    ├── InsufficientNetworkBuffers   more segments promised than the pool has
    ├── NetworkBufferTimeout         no segment came back before the deadline
    ├── PoolDestroyed                the pool is gone
    ├── InvalidPoolSize              a size that no pool can have
    ├── SegmentNotLent               a segment recycled twice, or to the wrong pool
    └── BufferAlreadyRecycled        a buffer used or recycled after its last reference

Errors of writing and reading result partitions.

::

    PartitionError                   (sluice.shuffle.errors)
    ├── BufferBuilderFinished        bytes for a buffer that is finished: a bug of the writer
    ├── PartitionAlreadyFinished     output for a partition that has ended
    ├── SubpartitionAlreadyConsumed  a second reader for what can be read once
    ├── BlockCorrupt                 stored bytes that are not what was stored
    ├── TooManyEvents                events that nobody reads, beyond what is kept
    └── InvalidPartitionType         a type and a consumption constraint that do not go together

Errors of the record layer.

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

import logging

from sluice.protocol.errors import ErrorCode, Fault, SluiceError

_log = logging.getLogger(__name__)


class PartitionError(SluiceError):
    """A map output or a channel to it cannot be served."""


class PartitionNotFound(PartitionError):
    """A map output was asked for that nobody registered before the deadline."""

    code = ErrorCode.PARTITION_NOT_FOUND


class PartitionReleased(PartitionError):
    """A map output was released while somebody read or wrote it."""

    code = ErrorCode.PARTITION_RELEASED


class ProducerFailed(PartitionError):
    """The producer of a pipelined partition failed or went away before it had finished."""

    code = ErrorCode.PRODUCER_FAILED


class MapOutputMismatch(PartitionError):
    """The lengths, offsets or totals of a map output do not add up."""

    code = ErrorCode.REGION_MISMATCH
    fault = Fault.REMOTE


class ChecksumMismatch(PartitionError):
    """The bytes that arrived are not the bytes that were sent."""

    code = ErrorCode.CHECKSUM_MISMATCH
    fault = Fault.REMOTE
    retryable = True


class EndOfPartitionMismatch(PartitionError):
    """A channel ended with other totals than its bytes and buffers: something was lost."""

    code = ErrorCode.END_OF_PARTITION_MISMATCH
    fault = Fault.REMOTE
    retryable = True


class InvalidRequest(PartitionError):
    """A request names an impossible range or number."""

    code = ErrorCode.MALFORMED_MESSAGE
    fault = Fault.REMOTE


class LimitExceeded(PartitionError):
    """More is open on one connection than a setting allows."""

    code = ErrorCode.LIMIT_EXCEEDED


class ShuttingDown(PartitionError):
    """The TaskManager is draining and takes nothing new."""

    code = ErrorCode.SHUTTING_DOWN
    retryable = True


def detached(error: SluiceError) -> SluiceError:
    """Drop an error's traceback and causes, for errors that are kept.

    A channel's error lives as long as somebody may ask for it, or as a log record does; the frames
    it came through hold map outputs, and those hold the memory that a release would free.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def internal_error(error: Exception) -> SluiceError:
    """Make the error that others are told when a bug of ours struck; the log has the traceback."""
    return SluiceError("Internal error", value=repr(error), remedy="See the TaskManager's log")


def failure_of(error: Exception, what: str) -> SluiceError:
    """Return the error that others are told of an exception; a bug is logged with its traceback.

    Args:
        error: The exception that was caught.
        what: The work that it ended: "committing a map output".
    """
    if isinstance(error, SluiceError):
        return detached(error)
    _log.error("internal error while %s", what, exc_info=error)
    return internal_error(error)


class MemoryPoolError(SluiceError):
    """Root of the errors of network memory."""


class InsufficientNetworkBuffers(MemoryPoolError):
    """The segments asked for cannot be promised beside those promised already.

    Args:
        required: Segments asked for.
        available: Segments that could have been given.
        total: Segments of the network buffer pool.
    """

    code = ErrorCode.INSUFFICIENT_BUFFERS
    retryable = True  # the promises to other gates and partitions end with their tasks

    def __init__(self, required: int, available: int, total: int) -> None:
        super().__init__(
            "insufficient number of network buffers: "
            f"required {required}, available {available}, total {total}",
            remedy="Raise the number of network memory segments of this TaskManager, or run fewer"
            " tasks at once on it, or lower the buffers per channel",
        )
        self.value = required
        self.limit = available
        self.required = required
        self.available = available
        self.total = total

    def __str__(self) -> str:
        """The message has the numbers in Flink's well-known words; they are not repeated."""
        return f"{self.message}. {self.remedy}"


class NetworkBufferTimeout(MemoryPoolError, TimeoutError):
    """No segment came back before the deadline; the request had no effect.

    Args:
        pool: Name of the pool that was asked.
        required: Segments asked for.
        available: Segments that were there when the deadline passed.
        timeout_seconds: How long the request waited.
    """

    code = ErrorCode.INSUFFICIENT_BUFFERS
    retryable = True

    def __init__(self, pool: str, required: int, available: int, timeout_seconds: float) -> None:
        super().__init__(
            f"{pool} had no {required} network buffers within {timeout_seconds:g} s",
            value=required,
            limit=available,
            remedy="Other tasks hold the memory: raise the number of network memory segments of"
            " this TaskManager or the request's timeout",
        )
        self.required = required
        self.available = available
        self.timeout_seconds = timeout_seconds


class PoolDestroyed(MemoryPoolError):
    """The pool is destroyed: it takes segments back but gives none out."""

    code = ErrorCode.SHUTTING_DOWN

    def __init__(self, pool: str) -> None:
        super().__init__(f"{pool} is destroyed and gives out no more network buffers")


class InvalidPoolSize(MemoryPoolError, ValueError):
    """A number of segments or bytes that makes no pool or no request."""

    code = ErrorCode.CONFIGURATION


class SegmentNotLent(MemoryPoolError):
    """A segment was given back twice, or to a pool that had not lent it: a bug of the caller.

    Letting it pass would hand the same memory to two owners.
    """

    def __init__(self, pool: str, segment_index: int) -> None:
        super().__init__(
            f"segment was recycled to {pool}, which has not lent it (recycled twice?)",
            value=segment_index,
        )
        self.segment_index = segment_index


class BufferAlreadyRecycled(MemoryPoolError):
    """A buffer was used after its last reference had been recycled: a bug of the caller."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} on a network buffer that is recycled already")


class BufferBuilderFinished(PartitionError):
    """A builder was used after it had been finished: its memory may be another's already."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} on a buffer builder that is finished",
            remedy="Look at is_finished and request the next builder",
        )


class PartitionAlreadyFinished(PartitionError):
    """Output was added to a partition after its end."""

    code = ErrorCode.UNEXPECTED_MESSAGE


class SubpartitionAlreadyConsumed(PartitionError):
    """A pipelined subpartition has, or had, its one reader."""

    code = ErrorCode.SUBPARTITION_IN_USE
    fault = Fault.REMOTE


class TooManyEvents(PartitionError):
    """More events wait in a subpartition than are kept for a reader that does not read."""

    code = ErrorCode.LIMIT_EXCEEDED


class BlockCorrupt(PartitionError):
    """A block of a blocking partition is damaged: its bytes are not those that were written."""

    code = ErrorCode.CHECKSUM_MISMATCH
    fault = Fault.REMOTE
    retryable = True


class InvalidPartitionType(PartitionError, ValueError):
    """A partition type, or a consumption constraint that does not go with it."""

    code = ErrorCode.MALFORMED_MESSAGE
    fault = Fault.REMOTE


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
