"""Errors of the memory pools.

::

    MemoryPoolError
    ├── InsufficientNetworkBuffers   more segments promised than the pool has
    ├── NetworkBufferTimeout         no segment came back before the deadline
    ├── PoolDestroyed                the pool is gone
    ├── InvalidPoolSize              a size that no pool can have
    ├── SegmentNotLent               a segment recycled twice, or to the wrong pool
    └── BufferAlreadyRecycled        a buffer used or recycled after its last reference
"""

from protocol.errors import ErrorCode, SluiceError


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
