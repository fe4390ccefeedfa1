"""Errors of partitions and gates. Root: :class:`protocol.errors.SluiceError`."""

from protocol.errors import ErrorCode, Fault, SluiceError


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


class RegionMismatch(PartitionError):
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
