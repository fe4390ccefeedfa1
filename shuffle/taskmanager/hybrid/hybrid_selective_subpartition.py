"""A subpartition of a hybrid partition that is read once: what its reader takes is gone.

The stream of the reader has three parts, see
:mod:`sluice.shuffle.taskmanager.hybrid.spilling_subpartition`. The reader takes the leftmost bytes.
It may take a buffer that is being written; the bytes written for it are never read then. The states
of a buffer are a table in :mod:`sluice.shuffle.taskmanager.hybrid.hybrid_spiller`. Priority events
are never spilled: they overtake the other parts.
"""

from collections import deque
from collections.abc import Callable

from ....protocol.errors import SluiceError
from ....protocol.limits import MAX_U32
from ....protocol.schema import BLOCKING_EVENT, DATA
from ...memory import LocalBufferPool
from ...partition.partition_states import SubpartitionState
from ...partition.pipelined_subpartition import PipelinedSubpartitionView
from ...partition.shared_buffer import BufferBuilder
from ...partition.view import DataListener, OutgoingBuffer, SubpartitionOwner
from ..serve.stored_partition_view import ReadSizes
from ..store.tiers.tier import Extent
from .spilled_run import SpilledRun
from .spilled_runs import ReadBack, RunReader, SpilledRuns
from .spilling_subpartition import SpillingSubpartition


class HybridSelectiveSubpartition(SpillingSubpartition):
    """A subpartition whose complete, unread buffers can be spilled.

    Args:
        index: The number in the partition.
        owner: Notified when the view is released.
        runs: Makes spilled runs and opens them.
        completed: Called when there may be another complete buffer, which can be spilled.
    """

    __slots__ = (
        "_read_back",
        "_reading",
        "_spilled",
        "_spilled_buffers",
        "_spilled_messages",
    )

    def __init__(
        self,
        index: int,
        owner: SubpartitionOwner,
        runs: SpilledRuns,
        completed: Callable[[], None],
    ) -> None:
        super().__init__(index, owner, runs, completed)
        self._spilled: deque[SpilledRun] = deque()
        # In the runs that are not being read; messages are known once there is a reader.
        self._spilled_buffers = 0
        self._spilled_messages = 0
        self._reading: RunReader | None = None  # of the first run
        self._read_back: ReadBack | None = None

    # ---- the spiller -------------------------------------------------------------------------

    def _keep(self, extent: Extent, offset: int, content: memoryview, data_type: int) -> None:
        last = self._spilled[-1] if self._spilled else None
        if (
            last is None
            or not last.takes(data_type, extent, offset)
            or (len(self._spilled) == 1 and self._reading is not None)
        ):
            last = self._runs.make(data_type)
            self._spilled.append(last)
        self._spilled_messages -= self._messages_of(last)
        last.add(extent, offset, content)
        self._spilled_messages += self._messages_of(last)
        self._spilled_buffers += 1

    # ---- the reader --------------------------------------------------------------------------

    def read_back_by(self, read_back: ReadBack) -> None:
        """Set how the reader reads spilled bytes; until then it finds none."""
        self._read_back = read_back
        self._spilled_messages = sum(map(self._messages_of, self._spilled))
        if self._spilled and self.is_available(1):
            self._tell_reader(again=True)

    @property
    def queued_buffers(self) -> int:
        """Buffers and events that wait, spilled ones included."""
        before = len(self._spilling) + self._spilled_buffers + self._reading_backlog
        return len(self._queue) + len(self._priority) + before

    @property
    def backlog(self) -> int:
        """Buffers and events that a reader with enough credit could take, without priority ones.

        What is spilled is joined when it is read, so it counts as the messages that it takes.
        """
        if self._blocked:
            return 0
        in_queue = self._complete + 1 if self._flushed else self._complete
        before = len(self._spilling) + self._spilled_messages + self._reading_backlog
        return min(in_queue + before, MAX_U32)

    @property
    def needs_segments(self) -> bool:
        """Whether a part is outside of memory, so that it is read into segments."""
        return any(not each.extent.in_memory for run in self._spilled for each in run.slices)

    @property
    def holds_segments(self) -> bool:
        """Whether a part is in memory: queued, being written, or read back and not taken."""
        reading = self._reading
        in_memory = bool(self._queue or self._spilling)
        return in_memory or (reading is not None and reading.holds_segments)

    def is_available(self, credit: int) -> bool:
        """Whether the reader could take something with that much credit."""
        if self._blocked or self._priority or not (self._spilled or self._spilling):
            return super().is_available(credit)
        if not self._spilled:
            return credit > 0
        reading = self._reading
        if reading is None:
            return credit > 0 and self._read_back is not None
        return reading.is_available(credit)

    def poll(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer or event; None if that much credit is enough for nothing.

        Raises:
            SluiceError: Spilled bytes cannot be read.
        """
        if self._blocked or self._priority or not (self._spilled or self._spilling):
            return super().poll(credit)
        if self._spilled:
            buffer = self._next_spilled(credit)
        elif credit > 0:
            buffer = self._next_spilling()
        else:
            return None
        if buffer is not None:
            if buffer.data_type == DATA:
                self.total_bytes += len(buffer.payload)
                self.total_buffers += 1
            else:
                self._blocked = buffer.data_type == BLOCKING_EVENT
        self._reader_knows = self.is_available(1)
        return buffer

    # ---- inside ------------------------------------------------------------------------------

    def _make_view(self, listener: DataListener) -> "HybridSelectiveView":
        return HybridSelectiveView(self, listener)

    @property
    def _reading_backlog(self) -> int:
        return 0 if self._reading is None else self._reading.backlog

    def _messages_of(self, run: SpilledRun) -> int:
        """Return the messages of a run that has bytes; 0 without a reader."""
        if self._read_back is None or not run.total_bytes:
            return 0
        return run.messages(self._read_back.message_bytes)

    def _next_spilling(self) -> OutgoingBuffer:
        consumer = self._spilling.popleft().consumer
        piece = consumer.build_last()
        if consumer.data_type == DATA:
            return OutgoingBuffer(piece.payload, piece.recycle, DATA)
        event = OutgoingBuffer(bytes(piece.payload), None, consumer.data_type)
        piece.recycle()
        return event

    def _next_spilled(self, credit: int) -> OutgoingBuffer | None:
        run = self._spilled[0]
        reading = self._reading
        if reading is None:
            if credit <= 0 or self._read_back is None:
                return None
            reading = self._open_run(run, self._read_back)
        buffer = reading.next_buffer(credit)
        if buffer is None:
            return None
        if reading.backlog == 0:
            self._reading = None
            self._spilled.popleft()
            run.uncharge()
            reading.release()
        return buffer

    def _open_run(self, run: SpilledRun, read_back: ReadBack) -> RunReader:
        reading = self._reading = self._runs.open(run, self.index, read_back, self._read_ended)
        self._spilled_buffers -= run.buffers
        self._spilled_messages -= self._messages_of(run)
        return reading

    def _tell_reader(self, *, again: bool = False) -> None:
        super()._tell_reader(again=again)
        self._completed()  # what a reader may take can be spilled, too

    def _read_ended(self) -> None:
        """Notify the reader: spilled bytes have been read, or cannot be."""
        self._tell_reader(again=True)

    def _drop_all(self, failure: SluiceError | None, reason: str) -> BufferBuilder | None:
        spilled, self._spilled = self._spilled, deque()
        reading, self._reading = self._reading, None
        self._spilled_buffers = self._spilled_messages = 0
        self._read_back = None
        if reading is not None:
            reading.release()
            spilled.popleft().uncharge()
        self._runs.free(list(spilled))
        return super()._drop_all(failure, reason)


class HybridSelectiveView(PipelinedSubpartitionView):
    """The reader's side, which also needs to know how to read spilled bytes."""

    __slots__ = ("_hybrid",)

    def __init__(self, subpartition: HybridSelectiveSubpartition, listener: DataListener) -> None:
        super().__init__(subpartition, listener)
        self._hybrid = subpartition

    @property
    def holds_segments(self) -> bool:
        """Whether a part is in memory: what is in a tier takes no segments."""
        return self._hybrid.holds_segments

    def read_back_by(self, sizes: ReadSizes, read_pool: Callable[[], LocalBufferPool]) -> None:
        """Set how spilled bytes are read; without it the view gives none of them."""
        if not self._released and self._hybrid.state is not SubpartitionState.RELEASED:
            self._hybrid.read_back_by(ReadBack(sizes, read_pool))
