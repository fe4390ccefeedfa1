"""Errors of writing and reading result partitions.

::

    PartitionError                   (shuffle.errors)
    ├── BufferBuilderFinished        bytes for a buffer that is finished: a bug of the writer
    ├── PartitionAlreadyFinished     output for a partition that has ended
    ├── SubpartitionAlreadyConsumed  a second reader for what can be read once
    ├── BlockCorrupt                 stored bytes that are not what was stored
    ├── TooManyEvents                events that nobody reads, beyond what is kept
    └── InvalidPartitionType         a type and a consumption constraint that do not go together
"""

from protocol.errors import ErrorCode, Fault
from shuffle.errors import PartitionError


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
