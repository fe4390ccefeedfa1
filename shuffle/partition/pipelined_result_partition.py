"""A result partition that is read while it is written: subpartitions over one pool of buffers.

The pool bounds it. When the readers are slow the pool runs dry, and the writer waits for a buffer:
that is how back pressure reaches the task. The same class serves a task that fills buffers, and a
TaskManager that receives them from a task in another process. ``pipelined_states`` has the states.

Frozen snapshots of result partitions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.protocol.errors import SluiceError
from sluice.protocol.messages import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    InvalidPartitionType,
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
    TooManyEvents,
)
from sluice.shuffle.memory import LocalBufferPool, LocalBufferPoolStatistics, NetworkBuffer
from sluice.shuffle.partition.output_flusher import OutputFlusher
from sluice.shuffle.partition.partition_type import (
    ConsumptionConstraint,
    ResultPartitionType,
    checked_partition_type,
)
from sluice.shuffle.partition.pipelined_subpartition import (
    PipelinedSubpartition,
    PipelinedSubpartitionView,
    check_buffer_size,
)
from sluice.shuffle.partition.result_partition_writer import (
    ALL_SUBPARTITIONS,
    BuilderSource,
    PartitionMemory,
)
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer, finished_consumer
from sluice.shuffle.partition.states import PartitionState
from sluice.shuffle.partition.view import DataListener


@dataclass(frozen=True, slots=True)
class PipelinedPartitionStatistics:
    """A pipelined partition at one moment.

    Args:
        name: Its name.
        state: Its state, in a word.
        queued_buffers: Buffers and events that wait, by subpartition; their extremes and their mean
            are the queue lengths of the output.
        bytes_out: Data bytes that readers have taken.
        buffers_out: Data buffers that readers have taken.
        soft_back_pressured_seconds: Time the writer waited between records.
        hard_back_pressured_seconds: Time it waited within one.
        pool: Its memory.
    """

    name: str
    state: str
    queued_buffers: tuple[int, ...]
    bytes_out: int
    buffers_out: int
    soft_back_pressured_seconds: float
    hard_back_pressured_seconds: float
    pool: LocalBufferPoolStatistics


class PipelinedResultPartition(BuilderSource):
    """One task's output, pipelined. A :class:`ResultPartitionWriter`.

    Args:
        name: For errors and status pages.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: Its memory, see ``partition_type.pool_bounds``. The partition owns the pool and
            destroys it when nothing more will be requested.
        partition_type: ``PIPELINED`` or ``PIPELINED_BOUNDED``; the bound is the pool's.
        consumption: When readers may begin.
        flusher: Told of open buffers; None if the writer flushes, or only full buffers shall go.
        consumable: Called once when ``is_consumable`` becomes true.
        fully_consumed: Called once when every subpartition's reader has come and gone, anyhow.
        buffer_size_announced: Told of the smallest size that readers want, when one announces any.

    Raises:
        InvalidPartitionType: Type and consumption constraint do not go together.
        InvalidRequest: No subpartitions.
    """

    def __init__(
        self,
        name: str,
        num_subpartitions: int,
        pool: LocalBufferPool,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        consumption: ConsumptionConstraint = ConsumptionConstraint.WHEN_REGISTERED,
        flusher: OutputFlusher | None = None,
        consumable: Callable[[], None] | None = None,
        fully_consumed: Callable[[], None] | None = None,
        buffer_size_announced: Callable[[int], None] | None = None,
    ) -> None:
        if num_subpartitions < 1:
            raise InvalidRequest("Number of subpartitions", value=num_subpartitions, limit=1)
        self.partition_type, self.consumption = checked_partition_type(partition_type, consumption)
        if not self.partition_type.is_pipelined:
            raise InvalidPartitionType("Not a pipelined type", value=self.partition_type.name)
        self.name: Final = name
        self.num_subpartitions: Final = num_subpartitions
        self.state = PartitionState.OPEN
        self.memory = PartitionMemory(pool)
        self._flusher = flusher
        self._tell_consumable = consumable
        self._tell_fully_consumed = fully_consumed
        self._tell_buffer_size = buffer_size_announced
        self._failure: SluiceError | None = None
        self._consumed = 0
        self._subpartitions = tuple(
            PipelinedSubpartition(index, self) for index in range(num_subpartitions)
        )
        self._consumable = self.consumption is ConsumptionConstraint.WHEN_REGISTERED

    # ---- the writer --------------------------------------------------------------------------

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder for a buffer of a subpartition; None: no memory now.

        Raises:
            InvalidRequest: No such subpartition.
            SluiceError: Its failure; PartitionAlreadyFinished; PartitionReleased.
        """
        if self.state is not PartitionState.OPEN:
            raise self._refusal()
        if subpartition != ALL_SUBPARTITIONS:
            self._check_index(subpartition)
        buffer = self.memory.pool.request_buffer_nowait(subpartition)
        return None if buffer is None else self._builder(buffer, subpartition)

    def add_consumer(
        self, consumer: BufferConsumer, subpartition: int, partial_record_bytes: int = 0
    ) -> None:
        """Queue a buffer, complete or still being filled; broadcast ones are stored once.

        Raises:
            InvalidRequest: No such subpartition.
            SluiceError: As :meth:`request_builder`. In all cases the consumer is closed.
        """
        try:
            targets = self._targets(subpartition)
        except SluiceError:
            consumer.close()
            raise
        if partial_record_bytes:
            consumer.partial_record_bytes = partial_record_bytes
        builder = consumer.builder
        if len(targets) == 1:
            targets[0].add(consumer)
        else:
            # Copies first, so that a reader who is told in between cannot end the original.
            copies = [consumer, *(consumer.copy() for _ in range(len(targets) - 1))]
            for target, copy in zip(targets, copies, strict=True):
                target.add(copy)
        if not self._consumable:
            self._become_consumable()
        if self._flusher is not None and builder is not None and not builder.is_finished:
            self._flusher.arm(self)

    def add_finished_buffer(
        self, subpartition: int, buffer: NetworkBuffer, data_type: int = DATA
    ) -> None:
        """Queue a complete buffer, or the event in it; the partition owns the reference then.

        Raises:
            InvalidRequest: No such subpartition or data type.
            SluiceError: As :meth:`request_builder`. In all cases the buffer is recycled.
        """
        if data_type == DATA:
            self.add_consumer(finished_consumer(buffer), subpartition)
            return
        payload = bytes(buffer.payload)
        buffer.recycle()
        self.emit_event(payload, data_type, subpartition)

    def extend_last(self, subpartition: int, data: memoryview) -> bool:
        """Copy bytes into a subpartition's last buffer, if it waits complete and has room.

        Else return False: then they are to be added as a buffer.

        Raises:
            SluiceError: As :meth:`request_builder`.
        """
        targets = self._targets(subpartition)
        return len(targets) == 1 and targets[0].extend_last(data)

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event; ``PRIORITY_EVENT`` overtakes, the others finish the open buffer first.

        Raises:
            InvalidRequest: No such subpartition or data type.
            TooManyEvents: More wait than are kept; the partition has failed.
            SluiceError: As :meth:`request_builder`.
        """
        targets = self._targets(subpartition)
        if data_type not in (EVENT, PRIORITY_EVENT, BLOCKING_EVENT):
            raise InvalidRequest(
                "Data type of an event",
                value=data_type,
                limit=f"{EVENT}, {PRIORITY_EVENT} or {BLOCKING_EVENT}",
            )
        try:
            for target in targets:
                target.add_event(payload, data_type)
        except TooManyEvents as error:
            self.fail(error)  # some have it, some do not
            raise
        if not self._consumable:
            self._become_consumable()

    def flush(self, subpartition: int) -> None:
        """Tell a subpartition's reader of what is committed in the open buffer.

        Raises:
            InvalidRequest: No such subpartition.
        """
        if self.state is PartitionState.OPEN:
            for target in self._targets(subpartition):
                target.flush()

    def flush_all(self) -> None:
        """Flush every subpartition."""
        for subpartition in self._subpartitions:
            subpartition.flush()

    async def finish(self) -> None:
        """End every subpartition. Its readers read on; the memory goes home as they do.

        Raises:
            SluiceError: The partition has failed or is released.

        Cancellation: it does not wait.
        """
        if self.state is PartitionState.FINISHED:
            return
        if self.state is not PartitionState.OPEN:
            raise self._refusal()
        self.state = PartitionState.FINISHED
        for subpartition in self._subpartitions:
            subpartition.finish()
        self._end_writing()

    def fail(self, error: SluiceError) -> None:
        """End with an error for readers and waiting writers; no effect on what is complete."""
        if self.state is PartitionState.OPEN:
            self._give_up(PartitionState.FAILED, error)

    def release(self) -> None:
        """Give everything up, memory included. Idempotent."""
        if self.state is PartitionState.RELEASED:
            return
        released = PartitionReleased("Partition is released", value=self.name)
        self._give_up(PartitionState.RELEASED, self._failure or released)

    # ---- the readers -------------------------------------------------------------------------

    @property
    def is_consumable(self) -> bool:
        """Whether the consumption constraint lets readers in."""
        return self._consumable

    def create_view(self, subpartition: int, listener: DataListener) -> PipelinedSubpartitionView:
        """Make the one view of a subpartition.

        Raises:
            InvalidRequest: No such subpartition, or the constraint lets nobody in yet.
            SubpartitionAlreadyConsumed: It has, or had, its reader.
            SluiceError: The partition failed or is released.
        """
        self._check_index(subpartition)
        if not self._consumable:
            raise InvalidRequest(
                f"Partition {self.name} cannot be consumed yet", limit=self.consumption.name
            )
        return self._subpartitions[subpartition].create_view(listener)

    def subpartition_consumed(self, index: int) -> None:
        """For the subpartitions: the reader of one is gone."""
        self._consumed += 1
        if self._consumed == self.num_subpartitions and self._tell_fully_consumed is not None:
            self._tell_fully_consumed()

    def buffer_size_announced(self, index: int, size_bytes: int) -> None:
        """For the subpartitions: a reader wants smaller or larger buffers."""
        if self._tell_buffer_size is not None:
            self._tell_buffer_size(self._smallest_buffer_size() or size_bytes)

    def set_buffer_size(self, size_bytes: int) -> None:
        """Make the next buffers of all subpartitions no larger than this.

        Raises:
            InvalidRequest: Less than 1 byte.
        """
        check_buffer_size(size_bytes)
        for subpartition in self._subpartitions:
            subpartition.buffer_size_bytes = size_bytes

    # ---- the flusher, and whoever looks ------------------------------------------------------

    def flush_open(self) -> int:
        """For the flusher: flush; return how many open buffers have unread bytes."""
        self.flush_all()
        return sum(subpartition.has_flushed_bytes for subpartition in self._subpartitions)

    def finish_read_buffers(self) -> None:
        """For the flusher: finish the open buffers of which everything was read."""
        for subpartition in self._subpartitions:
            if subpartition.has_open_buffer and not subpartition.has_flushed_bytes:
                subpartition.finish_open()

    @property
    def has_open_buffers(self) -> bool:
        """Whether a buffer is still being filled."""
        return any(subpartition.has_open_buffer for subpartition in self._subpartitions)

    def statistics(self) -> PipelinedPartitionStatistics:
        """A frozen snapshot."""
        return PipelinedPartitionStatistics(
            name=self.name,
            state=self.state.value,
            queued_buffers=tuple(each.queued_buffers for each in self._subpartitions),
            bytes_out=sum(each.total_bytes for each in self._subpartitions),
            buffers_out=sum(each.total_buffers for each in self._subpartitions),
            soft_back_pressured_seconds=self.memory.soft_back_pressured_seconds,
            hard_back_pressured_seconds=self.memory.hard_back_pressured_seconds,
            pool=self.memory.pool.statistics(),
        )

    # ---- inside ------------------------------------------------------------------------------

    @property
    def _is_writable(self) -> bool:
        return self.state is PartitionState.OPEN

    def _builder(self, buffer: NetworkBuffer, subpartition: int) -> BufferBuilder:
        builder = BufferBuilder(buffer)
        if subpartition == ALL_SUBPARTITIONS:
            size_bytes = self._smallest_buffer_size()
        else:
            size_bytes = self._subpartitions[subpartition].buffer_size_bytes
        if size_bytes is not None:
            builder.trim(size_bytes)
        return builder

    def _make_room(self) -> None:
        """Before waiting: let the open buffers not use all memory up.

        In a pool that is too small for an open buffer of every subpartition each might wait for
        bytes that are never written. Finished ones are read and recycled.
        """
        if self.memory.pool.size_segments <= self.num_subpartitions:
            for subpartition in self._subpartitions:
                subpartition.finish_open()

    def _targets(self, subpartition: int) -> tuple[PipelinedSubpartition, ...]:
        if self.state is not PartitionState.OPEN:
            raise self._refusal()
        if subpartition == ALL_SUBPARTITIONS:
            return self._subpartitions
        self._check_index(subpartition)
        return (self._subpartitions[subpartition],)

    def _check_index(self, subpartition: int) -> None:
        if not 0 <= subpartition < self.num_subpartitions:
            raise InvalidRequest(
                "Partition has no such subpartition",
                value=subpartition,
                limit=self.num_subpartitions - 1,
            )

    def _refusal(self) -> SluiceError:
        if self._failure is not None:
            return self._failure.with_traceback(None)  # its frames would pile up
        if self.state is PartitionState.OPEN:
            return PartitionReleased("The buffer pool of the partition is gone", value=self.name)
        return PartitionAlreadyFinished(
            "Nothing can be added to a finished partition", value=self.name
        )

    def _smallest_buffer_size(self) -> int | None:
        sizes = [each.buffer_size_bytes for each in self._subpartitions]
        return min((size for size in sizes if size is not None), default=None)

    def _become_consumable(self) -> None:
        self._consumable = True
        if self._tell_consumable is not None:
            self._tell_consumable()

    def _give_up(self, state: PartitionState, error: SluiceError) -> None:
        self.state = state
        self._failure = error
        for builder in [each.release(error) for each in self._subpartitions]:
            if builder is not None:
                builder.finish()
        self._end_writing()

    def _end_writing(self) -> None:
        """Nothing more is requested: that wakes who waits, and memory goes home as it gets free."""
        if self._flusher is not None:
            self._flusher.remove(self)
        self.memory.pool.destroy()
        if not self._consumable:
            self._become_consumable()
