"""Network memory: one pool of fixed-size segments per TaskManager, shared out to local pools.

Everything here belongs to one event-loop thread and takes no locks. The books always balance::

    free (network pool) + idle (local pools) + out (in somebody's hands) = total

- ``segment``: :class:`MemorySegment`, a slot of the one mapping.
- ``counted``: :class:`ReferenceCounted`, what buffers and groups of them have in common.
- ``buffer``: :class:`NetworkBuffer`, a segment with a length, a reference count and a recycler.
- ``buffer_group``: :class:`BufferGroup`, a run of neighbouring segments as one piece of memory.
- ``network_buffer_pool``: :class:`NetworkBufferPool`, owns every segment and sets the limits.
- ``local_buffer_pool``: :class:`LocalBufferPool`, the share of one gate, partition or connection.
- ``local_pool_books``, ``channel_accounts``: its numbers; who has how many of its segments.
- ``listener``: :class:`ListenerHandle`, a place in the queue for a segment.
- ``arrival``, ``exclusive_request``: a task that waits for one segment, for several at once.
- ``demand``: :class:`MemoryDemand`, warns when more is wanted than there is.
- ``distribution``: how spare segments are shared among local pools.
"""

from sluice.shuffle.errors import (
    BufferAlreadyRecycled,
    InsufficientNetworkBuffers,
    InvalidPoolSize,
    MemoryPoolError,
    NetworkBufferTimeout,
    PoolDestroyed,
    SegmentNotLent,
)
from sluice.shuffle.memory.buffer import (
    BufferGroup,
    GroupRecycler,
    NetworkBuffer,
    group_neighbours,
    memory_to_receive,
    runs_of_neighbours,
)
from sluice.shuffle.memory.channel_accounts import NO_CHANNEL
from sluice.shuffle.memory.demand import MemoryDemand
from sluice.shuffle.memory.listener import ListenerHandle, SegmentListener
from sluice.shuffle.memory.local_buffer_pool import LocalBufferPool
from sluice.shuffle.memory.network_buffer_pool import NetworkBufferPool
from sluice.shuffle.memory.segment import MemorySegment
from sluice.shuffle.memory.statistics import LocalBufferPoolStatistics, NetworkBufferPoolStatistics

__all__ = [
    "NO_CHANNEL",
    "BufferAlreadyRecycled",
    "BufferGroup",
    "GroupRecycler",
    "InsufficientNetworkBuffers",
    "InvalidPoolSize",
    "ListenerHandle",
    "LocalBufferPool",
    "LocalBufferPoolStatistics",
    "MemoryDemand",
    "MemoryPoolError",
    "MemorySegment",
    "NetworkBuffer",
    "NetworkBufferPool",
    "NetworkBufferPoolStatistics",
    "NetworkBufferTimeout",
    "PoolDestroyed",
    "SegmentListener",
    "SegmentNotLent",
    "group_neighbours",
    "memory_to_receive",
    "runs_of_neighbours",
]
