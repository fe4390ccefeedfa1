"""The base of the subpartitions of hybrid partitions: it writes complete buffers to the tiers.

::

    spilled runs   │ spilling            │ queue of the pipelined subpartition
    in the tiers   │ in memory, and      │ in memory; the last one may be open
                   │ being written       │

Buffers move from right to left; a failed write moves its buffers back to the queue. Subclasses keep
the spilled runs, and know what becomes of a buffer that a reader has taken.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ....protocol.errors import SluiceError
from ....protocol.schema import DATA
from ...partition.pipelined_subpartition import PipelinedSubpartition
from ...partition.shared_buffer import BufferBuilder, BufferConsumer
from ...partition.view import SubpartitionOwner
from ..store.tiers.tier import Extent
from .spilled_runs import SpilledRuns


class Spilling(NamedTuple):
    """A buffer that is being written, and where.

    Attributes:
        consumer: Has the bytes, as long as they are not written.
        offset: Position in the extent.
        length: Length in bytes.
        extent: The extent of a broadcast buffer that was written before; None: that of the next
            write.
    """

    consumer: BufferConsumer
    offset: int
    length: int
    extent: Extent | None = None


class SpillingSubpartition(PipelinedSubpartition):
    """A subpartition whose complete buffers can be written to the tiers.

    Args:
        index: The number in the partition.
        owner: Notified when a view is released.
        runs: Makes spilled runs and opens them.
        completed: Called when there may be another complete buffer, which can be spilled.
    """

    __slots__ = ("_completed", "_runs", "_spilling")

    def __init__(
        self,
        index: int,
        owner: SubpartitionOwner,
        runs: SpilledRuns,
        completed: Callable[[], None],
    ) -> None:
        super().__init__(index, owner)
        self._runs = runs
        self._completed = completed
        self._spilling: deque[Spilling] = deque()

    def begin_spilling(self, place: Callable[[BufferConsumer], Spilling | None]) -> int:
        """Move the complete buffers out of the queue, up to the first one that finds no place.

        Returns:
            The slices that are kept of them; fewer if the reader takes some before.
        """
        slices = 0
        end = -1  # of the bytes that the next buffer may continue; an event is its own slice
        extent: Extent | None = None
        queue = self._queue
        while self._complete:
            placed = place(queue[0])
            if placed is None:
                break
            queue.popleft()
            self._complete -= 1
            self._spilling.append(placed)
            is_data = placed.consumer.data_type == DATA
            if not is_data or placed.offset != end or placed.extent is not extent:
                slices += 1
            end = placed.offset + placed.length if is_data else -1
            extent = placed.extent
        return slices

    def spilled(self, written: Extent | None) -> None:
        """Record that the buffers are written, and free their memory.

        Args:
            written: The extent of the write; None if all buffers were written before.
        """
        while self._spilling:
            spilling = self._spilling.popleft()
            extent = written if spilling.extent is None else spilling.extent
            if extent is None:
                raise RuntimeError("a buffer has a place in an extent that was not written")
            data_type = spilling.consumer.data_type
            piece = spilling.consumer.build_last()
            self._keep(extent, spilling.offset, piece.payload, data_type)
            piece.recycle()

    def not_spilled(self) -> None:
        """Move the buffers that could not be written back to the front of the queue."""
        spilling, self._spilling = self._spilling, deque()
        self._queue.extendleft(each.consumer for each in reversed(spilling))
        self._complete += len(spilling)

    def _keep(self, extent: Extent, offset: int, content: memoryview, data_type: int) -> None:
        """Add a written buffer to the spilled runs."""
        raise NotImplementedError

    def _drop_all(self, failure: SluiceError | None, reason: str) -> BufferBuilder | None:
        spilling, self._spilling = self._spilling, deque()
        for each in spilling:
            each.consumer.close()
        return super()._drop_all(failure, reason)
