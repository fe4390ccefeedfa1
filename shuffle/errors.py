"""Errors of the shuffle that are caught by name or raised in several places.

All others are raised as a :class:`~sluice.protocol.errors.SluiceError` with a code. The store of a
TaskManager has errors of its own (``sluice.shuffle.taskmanager.store.errors``).
"""

import logging

from ..protocol.errors import ErrorCode, Fault, SluiceError
from ..transport.errors import code_field

logger = logging.getLogger(__name__)


# ---- network memory


class InsufficientNetworkBuffers(SluiceError):
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


class NetworkBufferTimeout(SluiceError, TimeoutError):
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


class PoolDestroyed(SluiceError):
    """The pool is destroyed: it takes segments back but gives none out."""

    code = ErrorCode.SHUTTING_DOWN

    def __init__(self, pool: str) -> None:
        super().__init__(f"{pool} is destroyed and gives out no more network buffers")


class InvalidPoolSize(SluiceError, ValueError):
    """A number of segments or bytes is impossible for a pool or a request."""

    code = ErrorCode.CONFIGURATION


class SegmentNotLent(SluiceError):
    """A segment was given back twice, or to a pool that had not lent it: a bug of the caller.

    Letting it pass would hand the same memory to two owners.
    """

    def __init__(self, pool: str, segment_index: int) -> None:
        super().__init__(
            f"A segment was recycled twice, or to {pool}, which had not lent it",
            value=segment_index,
        )
        self.segment_index = segment_index


class BufferAlreadyRecycled(SluiceError):
    """A buffer was used after its last reference had been recycled: a bug of the caller."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} was used on a network buffer after its last recycle()")


# ---- result partitions and channels


class PartitionReleased(SluiceError):
    """A map output was released while somebody read or wrote it."""

    code = ErrorCode.PARTITION_RELEASED


class ProducerFailed(SluiceError):
    """The producer of a pipelined partition failed or went away before it had finished."""

    code = ErrorCode.PRODUCER_FAILED


class InvalidPartitionType(SluiceError, ValueError):
    """A partition type is unknown, or a consumption constraint does not go with it."""

    code = ErrorCode.MALFORMED_MESSAGE


class InvalidRequest(SluiceError):
    """A request names an impossible range or number."""

    code = ErrorCode.MALFORMED_MESSAGE


class LimitExceeded(SluiceError):
    """More is open on one connection than a setting allows."""

    code = ErrorCode.LIMIT_EXCEEDED


class ShuttingDown(SluiceError):
    """The TaskManager is draining and takes nothing new."""

    code = ErrorCode.SHUTTING_DOWN
    retryable = True


class MapOutputMismatch(SluiceError):
    """The lengths, offsets or totals of a map output do not add up."""

    code = ErrorCode.REGION_MISMATCH


class ChecksumMismatch(SluiceError):
    """The bytes that arrived are not the bytes that were sent."""

    code = ErrorCode.CHECKSUM_MISMATCH


class BlockCorrupt(SluiceError):
    """A stored block is damaged: its bytes are not those that were written."""

    code = ErrorCode.CHECKSUM_MISMATCH


class BufferBuilderFinished(SluiceError):
    """A builder was used after it had been finished: its memory may be another's already."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} was called on a buffer builder that is finished",
            remedy="Check is_finished, and request the next builder",
        )


class PartitionAlreadyFinished(SluiceError):
    """Output was added to a partition after its end."""

    code = ErrorCode.UNEXPECTED_MESSAGE
    fault = Fault.LOCAL


class TooManyEvents(SluiceError):
    """More unread events wait in a subpartition than it keeps."""

    code = ErrorCode.LIMIT_EXCEEDED


class UnknownProducer(SluiceError):
    """A task event was sent for a map attempt that has no running producer."""

    code = ErrorCode.UNKNOWN_PRODUCER


class TooManyTaskEvents(SluiceError):
    """More task events were sent than wait for a channel or a connection at a time."""

    code = ErrorCode.LIMIT_EXCEEDED


# ---- records


class RecordTooLarge(SluiceError):
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


class MalformedElement(SluiceError):
    """A value cannot be encoded, or the bytes of a record cannot be decoded."""

    code = ErrorCode.MALFORMED_MESSAGE


class WriterUnusable(SluiceError):
    """A writer was called after it had finished or failed."""


def no_such_subpartition(subpartition: int, num_subpartitions: int) -> SluiceError:
    """Make the error about a record or event for a subpartition that does not exist."""
    return SluiceError(
        "A record or event is for a subpartition that does not exist",
        code=ErrorCode.CONFIGURATION,
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
    failure = internal_error(error)
    logger.error("internal error while %s", what, exc_info=error, extra=code_field(failure))
    return failure
