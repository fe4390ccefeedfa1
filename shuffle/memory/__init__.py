"""Network memory: one pool of fixed-size segments per TaskManager, shared out to local pools.

Everything here belongs to one event-loop thread and takes no locks. This always holds::

    free (network pool) + idle (local pools) + out (lent, or exclusive) = total

- ``segment``: :class:`MemorySegment`, a slot of the one mapping.
- ``buffer``: :class:`NetworkBuffer`, a segment with a length, a reference count and a recycler;
  :class:`BufferGroup`, a run of neighbouring segments as one piece of memory;
  :class:`ScratchMemory`, for payloads that are discarded.
- ``network_buffer_pool``: :class:`NetworkBufferPool`, owns every segment and sets the limits.
- ``local_buffer_pool``: :class:`LocalBufferPool`, the share of one gate, partition or connection.
- ``distribution``: :class:`PoolBounds`, the fair shares, and :class:`MemoryDemand`.
- ``refused_owners``: the queue of owners that were refused segments.
- ``segment_queue``: the queue for segments, with its listeners and the requests of tasks.
- ``channel_accounts``: how many segments of a pool each channel has.
"""

from ..errors import (
    BufferAlreadyRecycled,
    InsufficientNetworkBuffers,
    InvalidPoolSize,
    NetworkBufferTimeout,
    PoolDestroyed,
    SegmentNotLent,
)
from .buffer import (
    BufferGroup,
    NetworkBuffer,
    ScratchMemory,
    group_neighbours,
    memory_to_receive,
    runs_of_neighbours,
)
from .distribution import MemoryDemand, PoolBounds
from .local_buffer_pool import LocalBufferPool
from .network_buffer_pool import NetworkBufferPool
from .segment import MemorySegment
from .segment_owner import SegmentOwner
from .segment_queue import ListenerHandle, SegmentListener

__all__ = [
    "BufferAlreadyRecycled",
    "BufferGroup",
    "InsufficientNetworkBuffers",
    "InvalidPoolSize",
    "ListenerHandle",
    "LocalBufferPool",
    "MemoryDemand",
    "MemorySegment",
    "NetworkBuffer",
    "NetworkBufferPool",
    "NetworkBufferTimeout",
    "PoolBounds",
    "PoolDestroyed",
    "ScratchMemory",
    "SegmentListener",
    "SegmentNotLent",
    "SegmentOwner",
    "group_neighbours",
    "memory_to_receive",
    "runs_of_neighbours",
]
