"""A result partition that is read while it is written: subpartitions over one pool of buffers.

The pool bounds it. When the readers are slow the pool runs dry, and the writer waits for a buffer:
that is how back pressure reaches the task. The same class serves a task that fills buffers, and a
TaskManager that receives them from a task in another process. Its states are in
:mod:`sluice.shuffle.partition.partition_states`.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...protocol.errors import SluiceError
from ...protocol.schema import EVENT, PRIORITY_EVENT
from ..errors import InvalidPartitionType, InvalidRequest
from ..memory import LocalBufferPool
from ..partition_status import PipelinedPartitionStatus
from .event_buffers import EventBuffers
from .flush_pace import LanePace, ThreadPace
from .output_flusher import OutputFlusher
from .partition_states import PartitionState
from .partition_type import ConsumptionConstraint, ResultPartitionType, checked_partition_type
from .pipelined_subpartition import PipelinedSubpartition
from .result_partition_writer import ALL_SUBPARTITIONS, BufferWritingPartition
from .shared_buffer import BufferConsumer
from .view import DataListener, PipelinedView, SubpartitionOwner


class PartitionListeners(NamedTuple):
    """Callbacks about the readers of a pipelined partition; each may be left out.

    Attributes:
        consumable: Called once, when ``is_consumable`` becomes true.
        fully_consumed: Called once, when the reader of every subpartition has released its view,
            whether or not it read to the end; of a reconsumable partition, when a reader of each
            has read to the end.
        event_taken: Called when all readers of an event that takes no buffer of the pool, such as a
            priority event, have taken or dropped it.
    """

    consumable: Callable[[], None] | None = None
    fully_consumed: Callable[[], None] | None = None
    event_taken: Callable[[], None] | None = None


NO_LISTENERS = PartitionListeners()


class Overflow(Protocol):
    """Takes the buffers of a partition whose pool is used up, so that it need not wait."""

    def make_subpartition(self, index: int, owner: SubpartitionOwner) -> PipelinedSubpartition:
        """Make a subpartition, whose buffers can be taken."""

    def memory_short(self) -> None:
        """Take buffers soon if the writer still waits then. Idempotent."""

    def close(self) -> None:
        """Take nothing more: the partition has failed or is released. Idempotent."""


class PipelinedResultPartition(BufferWritingPartition):
    """One task's output, pipelined. A :class:`ResultPartitionWriter`.

    Args:
        name: For errors and status pages.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: The memory, see ``partition_type.pool_bounds``. The partition owns the pool and
            destroys it when it requests nothing more.
        partition_type: A pipelined type; its bound is the pool's.
        consumption: When readers may begin.
        flusher: Flushes open buffers; None if the writer flushes, or only full buffers are sent.
        listeners: Called when readers may begin, and when all have ended.
        overflow: Where unread buffers go when the pool is used up; None: the writer waits.

    Raises:
        InvalidPartitionType: Type and consumption constraint do not go together.
        InvalidRequest: The number of subpartitions is less than 1.
    """

    def __init__(  # noqa: PLR0913 - its parts, of which most callers name a few
        self,
        name: str,
        num_subpartitions: int,
        pool: LocalBufferPool,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        consumption: ConsumptionConstraint = ConsumptionConstraint.WHEN_REGISTERED,
        flusher: OutputFlusher | None = None,
        listeners: PartitionListeners = NO_LISTENERS,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(name, num_subpartitions, pool)
        self.partition_type, self.consumption = checked_partition_type(partition_type, consumption)
        if not self.partition_type.is_pipelined:
            raise InvalidPartitionType("Not a pipelined type", value=self.partition_type.name)
        self._flusher = flusher
        self._listeners = listeners
        self._consumed = 0
        self.requested: set[int] = set()
        self._overflow = overflow
        make: Callable[[int, SubpartitionOwner], PipelinedSubpartition] = (
            PipelinedSubpartition if overflow is None else overflow.make_subpartition
        )
        self.subpartitions = tuple(make(index, self) for index in range(num_subpartitions))
        self._consumable = self.consumption is ConsumptionConstraint.WHEN_REGISTERED
        self._thread_pace = ThreadPace()
        self._lanes = tuple(LanePace() for _ in self.subpartitions)
        self._event_buffers = EventBuffers(pool, listeners.event_taken)

    # ---- the writer --------------------------------------------------------------------------

    def extend_last(self, subpartition: int, data: memoryview) -> bool:
        """Copy bytes into a subpartition's last buffer, if it is complete, unread and has room.

        Otherwise return False: then add them as a buffer.

        Raises:
            SluiceError: As :meth:`request_builder`.
        """
        targets = self._targets(subpartition)
        return len(targets) == 1 and targets[0].extend_last(data)

    def flush(self, subpartition: int) -> None:
        """Notify a subpartition's reader of the committed bytes of the open buffer.

        Raises:
            InvalidRequest: The partition has no such subpartition.
        """
        if self.state is PartitionState.OPEN:
            for target in self._targets(subpartition):
                target.flush()

    def flush_all(self) -> None:
        """Flush every subpartition."""
        for subpartition in self.subpartitions:
            subpartition.flush()

    async def finish(self) -> None:
        """End every subpartition. Its readers read the rest, which releases the memory.

        Raises:
            SluiceError: The partition has failed or is released.

        Cancellation: it does not wait.
        """
        if self.state is PartitionState.FINISHED:
            return
        self._check_writable()
        self._become(PartitionState.FINISHED)
        for subpartition in self.subpartitions:
            subpartition.finish()
        self._end_writing()
        if self._overflow is not None:
            self._overflow.memory_short()  # a finished partition has no pool any longer

    def fail(self, error: SluiceError) -> None:
        """End with an error for readers and waiting writers; no effect on a complete partition."""
        if self._end(PartitionState.FAILED, error):
            self._give_up(self._failure)

    def release(self, error: SluiceError | None = None) -> None:
        """Release everything, memory included. Idempotent.

        Args:
            error: The reason, for readers that have not reached the end; by default, the release.
        """
        if self._end(PartitionState.RELEASED, error):
            self._give_up(self._failure)

    def close(self) -> None:
        """Release the partition unless it is finished."""
        if self.state is not PartitionState.FINISHED:
            self.release()

    def forget_listeners(self) -> None:
        """Stop notifying the listeners."""
        self._listeners = NO_LISTENERS

    # ---- the readers -------------------------------------------------------------------------

    @property
    def is_consumable(self) -> bool:
        """Whether the consumption constraint lets readers in."""
        return self._consumable

    @property
    def may_spill(self) -> bool:
        """Whether unread buffers may be in an overflow."""
        return self._overflow is not None

    def needs_segments(self, subpartition: int) -> bool:
        """Whether a reader needs segments for the part of a subpartition that is on a disk."""
        known = 0 <= subpartition < self.num_subpartitions
        return known and self.subpartitions[subpartition].needs_segments

    def create_view(self, subpartition: int, listener: DataListener) -> PipelinedView:
        """Make the view of a subpartition, or another one of a reconsumable partition.

        Raises:
            InvalidRequest: The partition has no such subpartition, or may not be consumed yet.
            SluiceError: The partition failed or is released, or the subpartition's reader is gone.
            SUBPARTITION_IN_USE: The subpartition has its reader.
        """
        if not 0 <= subpartition < self.num_subpartitions:
            raise self._unknown(subpartition)
        if not self._consumable:
            raise InvalidRequest(
                f"Partition {self.name} cannot be consumed yet", limit=self.consumption.name
            )
        view = self.subpartitions[subpartition].create_view(listener)
        self.requested.add(subpartition)
        return view

    @property
    def is_requested(self) -> bool:
        """Whether every subpartition has, or had, its reader."""
        return len(self.requested) == self.num_subpartitions

    @property
    def is_read(self) -> bool:
        """Whether the readers of all subpartitions have taken the end."""
        return all(subpartition.is_read for subpartition in self.subpartitions)

    @property
    def is_consumed(self) -> bool:
        """Whether all subpartitions are consumed."""
        return self._consumed == self.num_subpartitions

    def subpartition_consumed(self, index: int) -> None:
        """Count a consumed subpartition (called by these)."""
        self._consumed += 1
        fully_consumed = self._listeners.fully_consumed
        if self.is_consumed and fully_consumed is not None:
            fully_consumed()

    @property
    def has_events_beside_pool(self) -> bool:
        """Whether events wait that found no buffer in the pool."""
        return self._event_buffers.beside_pool > 0

    # ---- the flusher, and the status ---------------------------------------------------------

    def flush_open(self) -> int:
        """Flush the subpartitions for which it is time; return how many open buffers wait.

        The flusher calls this. A buffer whose flush is delayed waits too: it is not idle.
        """
        has_time = self._thread_pace.is_due()
        now = self._thread_pace.now
        waiting = flushed = 0
        for subpartition, lane in zip(self.subpartitions, self._lanes, strict=True):
            if not subpartition.has_open_buffer:
                continue
            under_way = subpartition.has_flushed_bytes
            is_due = lane.is_due(under_way, subpartition.completed_buffers, now)
            if not (is_due and has_time):
                waiting += 1
                continue
            subpartition.flush()
            if subpartition.has_flushed_bytes:
                waiting += 1
                if not under_way:
                    lane.flushed(1)
                    flushed += 1
        self._thread_pace.flushed(flushed)
        return waiting

    def finish_read_buffers(self) -> None:
        """Finish the open buffers of which every byte was read (called by the flusher)."""
        for subpartition in self.subpartitions:
            if subpartition.has_open_buffer and not subpartition.has_flushed_bytes:
                subpartition.finish_open()

    @property
    def has_open_buffers(self) -> bool:
        """Whether a buffer is still being filled."""
        return any(subpartition.has_open_buffer for subpartition in self.subpartitions)

    def status(self) -> PipelinedPartitionStatus:
        """Return its numbers of this moment, without its names and without its producer's."""
        queues = [each.queued_buffers for each in self.subpartitions]
        memory = self.memory
        return PipelinedPartitionStatus(
            partition_type=self.partition_type.name,
            state=self.state.value,
            subpartitions=len(queues),
            queued_buffers=sum(queues),
            shortest_queue=min(queues),
            longest_queue=max(queues),
            used_segments=memory.pool.lent_segments,
            limit_segments=memory.pool.size_segments,
            overdraft_segments=memory.pool.overdraft_segments,
            back_pressured_seconds=memory.soft_back_pressured_seconds
            + memory.hard_back_pressured_seconds,
            bytes_out=sum(each.total_bytes for each in self.subpartitions),
            buffers_out=sum(each.total_buffers for each in self.subpartitions),
        )

    # ---- inside ------------------------------------------------------------------------------

    def _add(self, consumer: BufferConsumer, subpartition: int) -> None:
        builder = consumer.builder
        if subpartition != ALL_SUBPARTITIONS:
            self.subpartitions[subpartition].add(consumer)
        else:
            # Copies first, so that a reader that is notified in between cannot end the original.
            copies = [consumer, *(consumer.copy() for _ in range(self.num_subpartitions - 1))]
            for target, copy in zip(self.subpartitions, copies, strict=True):
                target.add(copy)
        if not self._consumable:
            self._become_consumable()
        if self._flusher is not None and builder is not None and not builder.is_finished:
            self._flusher.arm(self)

    def _add_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        if data_type == PRIORITY_EVENT and self.partition_type.is_reconsumable:
            data_type = EVENT  # later readers need it in its place
        self._add(self._event_buffers.consumer_of(payload, data_type), subpartition)

    def _make_room(self) -> None:
        """Finish the open buffers if the pool is too small for one of every subpartition.

        Otherwise each of them might wait for bytes that are never written. Finished ones are read
        and recycled, or go to the overflow.
        """
        if self.memory.pool.size_segments <= self.num_subpartitions:
            for subpartition in self.subpartitions:
                subpartition.finish_open()
        if self._overflow is not None:
            self._overflow.memory_short()

    def _targets(self, subpartition: int) -> tuple[PipelinedSubpartition, ...]:
        self._check_writable(subpartition)
        if subpartition == ALL_SUBPARTITIONS:
            return self.subpartitions
        return (self.subpartitions[subpartition],)

    def _become_consumable(self) -> None:
        self._consumable = True
        if self._listeners.consumable is not None:
            self._listeners.consumable()

    def _give_up(self, failure: SluiceError | None) -> None:
        """Drop all buffers; readers that have not reached the end get the failure."""
        if self._overflow is not None:
            self._overflow.close()
        for builder in [each.release(failure) for each in self.subpartitions]:
            if builder is not None:
                builder.finish()
        self._end_writing()

    def _end_writing(self) -> None:
        """Request no more memory: waiting writers wake, and free memory is released at once."""
        if self._flusher is not None:
            self._flusher.remove(self)
        self.memory.pool.destroy()
        if not self._consumable:
            self._become_consumable()
