"""Errors of the shuffle: of network memory, of result partitions, of records.

::

    SluiceError                          (sluice.protocol.errors)
    ├── MemoryPoolError
    │   ├── InsufficientNetworkBuffers   the segments cannot be promised
    │   ├── NetworkBufferTimeout         no segment came back before the deadline
    │   ├── PoolDestroyed                the pool is gone
    │   ├── InvalidPoolSize              a size that no pool can have
    │   ├── SegmentNotLent               a segment recycled twice, or to the wrong pool
    │   └── BufferAlreadyRecycled        a buffer used after its last reference
    ├── PartitionError
    │   │   Requests
    │   ├── PartitionNotFound            not registered before the deadline
    │   ├── PartitionLost                lost with its storage directory
    │   ├── PartitionReleased            released while it was read or written
    │   ├── ProducerFailed               the producer failed before it had finished
    │   ├── SubpartitionAlreadyConsumed  a second reader where only one is possible
    │   ├── InvalidPartitionType         a type and a constraint that do not go together
    │   ├── InvalidRequest               an impossible range or number
    │   ├── LimitExceeded                more open on a connection than a setting allows
    │   ├── ShuttingDown                 the TaskManager is draining
    │   ├── NoProgress                   something was held for a side that did not move
    │   │   Data
    │   ├── MapOutputMismatch               lengths, offsets or totals that do not add up
    │   ├── ChecksumMismatch             bytes damaged on the way
    │   ├── EndOfPartitionMismatch       a channel that lost bytes or buffers
    │   ├── BlockCorrupt                 bytes damaged in the store
    │   │   Writing
    │   ├── BufferBuilderFinished        bytes for a buffer that is finished: a bug of the writer
    │   ├── PartitionAlreadyFinished     output for a partition that has ended
    │   └── TooManyEvents                more unread events than a subpartition keeps
    └── RecordError
        │   Writing
        ├── RecordTooLarge               a record, or the length before it, above the limit
        ├── MalformedElement             a value or bytes that a serializer cannot take
        ├── InvalidSubpartition          a record for a subpartition that does not exist
        ├── WriterBusy                   the previous call was not awaited to its end
        ├── WriterUnusable               the writer has finished or failed
        │   Reading
        ├── IncompleteRecord             the channel ended in the middle of a record
        ├── GateReleased                 the gate was released before its channels had ended
        ├── SpillFailed                  the temporary file of a very long record failed
        └── BufferUnread                 a buffer given before the last one was read: a bug

The store of a TaskManager has errors of its own (``sluice.shuffle.taskmanager.store.errors``).
"""

import logging

from ..protocol.errors import ErrorCode, Fault, SluiceError

logger = logging.getLogger(__name__)


# ---- network memory


class MemoryPoolError(SluiceError):
    """Root of the errors of network memory."""


class InsufficientNetworkBuffers(MemoryPoolError):
    """The requested segments cannot be promised beside those promised already.

    Args:
        required: Segments requested.
        available: Segments that could have been given.
        total: Segments of the network buffer pool.
    """

    code = ErrorCode.INSUFFICIENT_BUFFERS

    def __init__(self, required: int, available: int, total: int) -> None:
        super().__init__(
            "insufficient number of network buffers: "
            f"required {required}, available {available}, total {total}",
            remedy="Raise network_segments, run fewer tasks at once, or lower buffers per channel",
        )
        self.value = required
        self.limit = available
        self.required = required
        self.available = available
        self.total = total

    def __str__(self) -> str:
        """Return message and remedy; the message has the numbers already, in Flink's words."""
        return f"{self.message}. {self.remedy}"


class NetworkBufferTimeout(MemoryPoolError, TimeoutError):
    """No segment came back before the deadline; the request had no effect.

    Args:
        pool: Name of the pool.
        required: Segments requested.
        available: Segments that were free when the deadline passed.
        timeout_seconds: How long the request waited.
    """

    code = ErrorCode.INSUFFICIENT_BUFFERS

    def __init__(self, pool: str, required: int, available: int, timeout_seconds: float) -> None:
        super().__init__(
            f"{pool} could not give {required} network buffers within {timeout_seconds:g} s",
            value=required,
            limit=available,
            remedy="Raise network_segments, or the request's timeout",
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
    """A number of segments or bytes is impossible for a pool or a request."""

    code = ErrorCode.CONFIGURATION


class NetworkMemoryUnavailable(MemoryPoolError):
    """The operating system refuses the memory of the network segments.

    Args:
        size_bytes: Size of all segments.
        reason: The message of the operating system.
    """

    code = ErrorCode.CONFIGURATION

    def __init__(self, size_bytes: int, reason: str) -> None:
        super().__init__(
            f"The operating system refuses the memory of the network segments: {reason}",
            value=size_bytes,
            remedy="Lower network_segments, or raise the limit of the address space (ulimit -v)",
        )


class SegmentNotLent(MemoryPoolError):
    """A segment was given back twice, or to a pool that had not lent it: a bug of the caller.

    Letting it pass would hand the same memory to two owners.
    """

    def __init__(self, pool: str, segment_index: int) -> None:
        super().__init__(
            f"A segment was recycled twice, or to {pool}, which had not lent it",
            value=segment_index,
        )
        self.segment_index = segment_index


class BufferAlreadyRecycled(MemoryPoolError):
    """A buffer was used after its last reference had been recycled: a bug of the caller."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} was used on a network buffer after its last recycle()")


# ---- result partitions and channels


class PartitionError(SluiceError):
    """Root of the errors of result partitions, and of channels to them."""


class PartitionNotFound(PartitionError):
    """A requested map output was not registered before the deadline."""

    code = ErrorCode.PARTITION_NOT_FOUND


class PartitionLost(PartitionError):
    """A committed map output was lost with the storage directory that had it."""

    code = ErrorCode.STORAGE_UNAVAILABLE


class PartitionReleased(PartitionError):
    """A map output was released while somebody read or wrote it."""

    code = ErrorCode.PARTITION_RELEASED


class PartitionMoved(PartitionError):
    """A map output is at another TaskManager from now on, which its value names."""

    code = ErrorCode.PARTITION_MOVED


class ProducerFailed(PartitionError):
    """The producer of a pipelined partition failed or went away before it had finished."""

    code = ErrorCode.PRODUCER_FAILED


class SubpartitionAlreadyConsumed(PartitionError):
    """A pipelined subpartition was requested again: it has, or had, its one reader."""

    code = ErrorCode.SUBPARTITION_IN_USE


class InvalidPartitionType(PartitionError, ValueError):
    """A partition type is unknown, or a consumption constraint does not go with it."""

    code = ErrorCode.MALFORMED_MESSAGE


class InvalidRequest(PartitionError):
    """A request names an impossible range or number."""

    code = ErrorCode.MALFORMED_MESSAGE


class LimitExceeded(PartitionError):
    """More is open on one connection than a setting allows."""

    code = ErrorCode.LIMIT_EXCEEDED


class ShuttingDown(PartitionError):
    """The TaskManager is draining and takes nothing new."""

    code = ErrorCode.SHUTTING_DOWN
    retryable = True


class NoProgress(PartitionError):
    """Something was held for the other side, which did not move in time; it is taken back."""

    code = ErrorCode.DEADLINE_EXCEEDED


class MapOutputMismatch(PartitionError):
    """The lengths, offsets or totals of a map output do not add up."""

    code = ErrorCode.REGION_MISMATCH


class ChecksumMismatch(PartitionError):
    """The bytes that arrived are not the bytes that were sent."""

    code = ErrorCode.CHECKSUM_MISMATCH


class EndOfPartitionMismatch(PartitionError):
    """A channel ended with other totals than its bytes and buffers: something was lost."""

    code = ErrorCode.END_OF_PARTITION_MISMATCH


class BlockCorrupt(PartitionError):
    """A stored block is damaged: its bytes are not those that were written."""

    code = ErrorCode.CHECKSUM_MISMATCH


class BufferBuilderFinished(PartitionError):
    """A builder was used after it had been finished: its memory may be another's already."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} was called on a buffer builder that is finished",
            remedy="Check is_finished, and request the next builder",
        )


class PartitionAlreadyFinished(PartitionError):
    """Output was added to a partition after its end."""

    code = ErrorCode.UNEXPECTED_MESSAGE
    fault = Fault.LOCAL


class TooManyEvents(PartitionError):
    """More unread events wait in a subpartition than it keeps."""

    code = ErrorCode.LIMIT_EXCEEDED


# ---- records


class RecordError(SluiceError):
    """Root of the errors of records."""


class RecordTooLarge(RecordError):
    """A record, or the length before it, is above the limit."""

    code = ErrorCode.FRAME_TOO_LARGE
    fault = Fault.LOCAL

    def __init__(self, length_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "A record is too long",
            value=length_bytes,
            limit=limit_bytes,
            remedy="Make records smaller, or raise maximum_record_bytes on both sides",
        )


class MalformedElement(RecordError):
    """A value cannot be encoded, or the bytes of a record cannot be decoded."""

    code = ErrorCode.MALFORMED_MESSAGE


class InvalidSubpartition(RecordError):
    """A record or an event names a subpartition that the partition does not have."""

    code = ErrorCode.CONFIGURATION


class WriterBusy(RecordError):
    """A writer was called before the awaitable of its previous call was awaited to its end."""

    def __init__(self) -> None:
        super().__init__(
            "The previous call of the record writer still waits for a buffer",
            remedy="Await what emit() returned, if it is not None, before the next call",
        )


class WriterUnusable(RecordError):
    """A writer was called after it had finished or failed."""


class IncompleteRecord(RecordError):
    """The data of a channel ended in the middle of a record."""

    code = ErrorCode.END_OF_PARTITION_MISMATCH


class GateReleased(RecordError):
    """The input gate was released before all its channels had ended."""

    code = ErrorCode.PARTITION_RELEASED

    def __init__(self, open_channels: int) -> None:
        super().__init__(
            "The input gate was released while channels were open", value=open_channels, limit=0
        )


class SpillFailed(RecordError):
    """The temporary file of a very long record cannot be made, written or read."""

    code = ErrorCode.STORAGE_UNAVAILABLE


class BufferUnread(RecordError):
    """A deserializer was given a buffer while it still had one: a bug of the caller."""


def no_such_subpartition(subpartition: int, num_subpartitions: int) -> InvalidSubpartition:
    """Make the error about a record or event for a subpartition that does not exist."""
    return InvalidSubpartition(
        "A record or event is for a subpartition that does not exist",
        value=subpartition,
        limit=num_subpartitions - 1,
        remedy="Correct the channel selector, or the subpartition that was given",
    )


# ---- what handlers of errors share


def detached(error: SluiceError) -> SluiceError:
    """Drop an error's traceback and causes, for errors that are kept.

    A channel's error lives as long as somebody may ask for it, or as a log record does. The frames
    of its traceback refer to map outputs, which would keep their memory after a release.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def internal_error(error: Exception) -> SluiceError:
    """Make the error that the other side gets for a bug of ours; the log has the traceback."""
    return SluiceError("Internal error", value=repr(error), remedy="See the TaskManager's log")


def failure_of(error: Exception, what: str) -> SluiceError:
    """Return the error that others are told of an exception; a bug is logged with its traceback.

    Args:
        error: The exception that was caught.
        what: The work that it ended: "committing a map output".
    """
    if isinstance(error, SluiceError):
        return detached(error)
    logger.error("internal error while %s", what, exc_info=error)
    return internal_error(error)
