"""A pipelined result partition of a client: its buffers go to the TaskManager as they fill.

The client's pool holds the open buffers and those that the TaskManager has not taken; the
TaskManager grants credit as its own pool for the partition has segments, and so two pools bound the
bytes between this task and its readers. An event takes a buffer too. When both are full the writer
waits for a buffer. The states are in :mod:`sluice.shuffle.partition.partition_states`; the
partition is FINISHING until the TaskManager has answered that it has everything.

**When it is flushed**: :mod:`sluice.shuffle.partition.flush_pace` says so.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...protocol.errors import InvalidEvent, SluiceError
from ...protocol.limits import HYBRID_FULL_PARTITIONS, HYBRID_PARTITIONS, MAX_EVENT_BYTES
from ...protocol.schema import (
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PRIORITY_EVENT,
    AbortPartition,
    FinishPartition,
    OpenPipelinedPartition,
    PipelinedData,
    WatchConsumption,
)
from ..errors import InvalidPartitionType, internal_error
from ..legs.producer_leg import ProducerLeg, wake
from ..memory import LocalBufferPool
from ..partition.consumption import Consumption
from ..partition.event_buffers import EventBuffers
from ..partition.flush_pace import FlushPace
from ..partition.output_flusher import OutputFlusher
from ..partition.partition_states import UNFINISHED, PartitionState
from ..partition.partition_type import ResultPartitionType
from ..partition.result_partition_writer import ALL_SUBPARTITIONS, BufferWritingPartition
from ..partition.shared_buffer import BufferConsumer
from .partition_location import PartitionLocation
from .send_queue import SendQueue
from .shuffle_environment import PartitionSettings
from .traced import trace_context

logger = logging.getLogger(__name__)

_FEATURES: Final = {
    ResultPartitionType.HYBRID_SELECTIVE: HYBRID_PARTITIONS,
    ResultPartitionType.HYBRID_FULL: HYBRID_FULL_PARTITIONS,
}
"""Features that a TaskManager needs to take partitions of a type."""


class PipelinedWriter(BufferWritingPartition):
    """Sends one task's pipelined output to a TaskManager. A ``ResultPartitionWriter``.

    Args:
        leg: The producer connection.
        number: Number of the partition on that connection.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: Memory; the partition owns it and destroys it.
        flusher: Flushes open buffers; None if the writer flushes, or only full buffers are sent.
        task_event: Called with the type and the bytes of each event that a reader sends back.
        keeps_order: Whether a priority event keeps its place, as in a reconsumable partition.
    """

    def __init__(
        self,
        leg: ProducerLeg,
        number: int,
        num_subpartitions: int,
        pool: LocalBufferPool,
        *,
        flusher: OutputFlusher | None = None,
        task_event: Callable[[int, bytes], None] | None = None,
        keeps_order: bool = False,
    ) -> None:
        super().__init__(pool.name, num_subpartitions, pool)
        self.number: Final = number
        self.credit = 0
        """Buffers and events that the TaskManager can take now; below 0 after priority events."""
        self.bytes_out = 0
        """Bytes of data sent; those of a broadcast buffer count once."""
        self.buffers_out = 0
        self._leg = leg
        self._flusher = flusher
        self._task_event = task_event
        self._keeps_order = keeps_order
        self._queue = SendQueue(self._send_available)
        self._event_buffers = EventBuffers(pool)
        self._pace = FlushPace(num_subpartitions)
        self._drained: asyncio.Future[None] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._consumption = Consumption()

    # ---- ResultPartitionWriter -----------------------------------------------------------------

    def flush(self, subpartition: int) -> None:
        """Send the committed bytes of a subpartition's open buffer."""
        if self.state is PartitionState.OPEN:
            self._queue.flush(subpartition)

    def flush_all(self) -> None:
        """Flush every subpartition."""
        if self.state is PartitionState.OPEN:
            self._queue.flush_all()

    async def finish(self) -> None:
        """Send all that waits and end every subpartition; returns when the TaskManager has it.

        That may be as long as its readers take: buffers that do not fit in its pool wait here.

        Raises:
            SluiceError: The partition failed, or the connection was lost.

        Cancellation: release the partition then.
        """
        if self.state in (PartitionState.FINISHING, PartitionState.FINISHED):
            return
        self._check_writable()
        self._become(PartitionState.FINISHING)
        if self._flusher is not None:
            self._flusher.remove(self)
        self._queue.finish_open()
        loop = asyncio.get_running_loop()
        if len(self._queue):
            self._drained = loop.create_future()
            await self._drained
            if self.state not in UNFINISHED:  # it ended before this task could continue
                raise self._refusal()
        self._answered = loop.create_future()
        self._leg.send(WatchConsumption(self.number))
        self._leg.send(FinishPartition(self.number, self.bytes_out, 0))
        await self._leg.answer(self._answered, "FinishPartition")
        self.memory.pool.destroy()

    async def wait_consumed(self, timeout_seconds: float) -> None:
        """Wait until the readers have reached the end, as the TaskManager says.

        Raises:
            DeadlineExceeded: They have not in time.
            SluiceError: They will not: the partition failed or is released, a reader left early,
                the TaskManager stopped, or the connection was lost.

        Cancellation: safe.
        """
        await self._consumption.wait(self.name, timeout_seconds)

    def fail(self, error: SluiceError) -> None:
        """End with an error, here and for the readers. Idempotent."""
        if self._end(PartitionState.FAILED, error):
            self._leg.send(AbortPartition(self.number))
            self._give_up(error)

    def close(self) -> None:
        """Release the partition unless it is finished: then it stays until its readers have it."""
        if self.state is not PartitionState.FINISHED:
            self.release()

    def release(self) -> None:
        """Release everything, memory included; an unfinished partition fails for its readers."""
        is_unfinished = self.state in UNFINISHED
        if self._end(PartitionState.RELEASED):
            if is_unfinished:
                self._leg.send(AbortPartition(self.number))
            self._give_up(self._refusal())

    # ---- sluice.shuffle.partition.output_flusher.Flushable --------------------------------------

    def flush_open(self) -> int:
        """Flush, if it is time to; return how many open buffers wait to be sent.

        The flusher calls this. The number is at least 1 during a pause: the partition is not idle.
        """
        queue, pace = self._queue, self._pace
        under_way = queue.unread_flushed()
        if not pace.is_due(under_way, queue.completed_buffers):
            return under_way or int(pace.is_pausing)
        queue.flush_all()
        waiting = queue.unread_flushed()
        pace.flushed(waiting - under_way)
        return waiting

    def finish_read_buffers(self) -> None:
        """Finish the open buffers of which every byte was sent (called by the flusher)."""
        self._queue.finish_open(only_sent=True)

    @property
    def has_open_buffers(self) -> bool:
        """Whether a buffer is still being filled."""
        return self._queue.has_open_buffers

    # ---- called by the leg ----------------------------------------------------------------------

    def credit_granted(self, credit: int) -> None:
        """Send more buffers, which the TaskManager can take now."""
        self.credit += credit
        self._send_available()

    def send(self) -> bool:
        """Send one buffer or event; return whether there may be more to send now."""
        entry = self._queue.next(self.credit)
        if entry is None:
            self._check_drained()
            return False
        subpartition, (payload, release, data_type) = entry
        wire_number = EVERY_SUBPARTITION if subpartition == ALL_SUBPARTITIONS else subpartition
        self.credit -= 1
        if data_type == DATA:
            self.bytes_out += len(payload)
            self.buffers_out += 1
        self._leg.send(PipelinedData(self.number, wire_number, data_type), payload, release)
        if self._queue.is_available(self.credit):
            return True
        self._check_drained()
        return False

    def finished(self) -> None:
        """Record that the TaskManager has everything, and that readers will find its end."""
        self._become(PartitionState.FINISHED)
        wake(self._answered)

    def consumed(self) -> None:
        """Record that the readers have reached the end."""
        self._consumption.end()

    def failed(self, error: SluiceError) -> None:
        """Fail: the TaskManager aborted or dropped the partition, or is gone."""
        self._consumption.end(error)
        if self._end(PartitionState.FAILED, error):
            self._give_up(error)

    def region_opened(self, payload_bytes: int) -> None:
        """Ignore it: pipelined partitions have no regions."""

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Call the task's handler for an event that a reader sent back."""
        if self._task_event is None:
            return
        try:
            self._task_event(event_type, payload)
        except Exception as error:
            # The handler is the task's code: a bug in it must end this partition, and no other on
            # the connection.
            if not isinstance(error, SluiceError):
                logger.exception("task event handler of partition %d failed", self.number)
                error = internal_error(error)
            self.fail(error)

    # ---- inside ---------------------------------------------------------------------------------

    def _send_available(self) -> None:
        if self._queue.is_available(self.credit):
            self._leg.queue(self)

    def _check_drained(self) -> None:
        drained = self._drained
        if drained is not None and not len(self._queue) and not drained.done():
            drained.set_result(None)

    def _add(self, consumer: BufferConsumer, subpartition: int) -> None:
        self._queue.add(consumer, subpartition)
        if self._flusher is not None and self._queue.has_open_buffers:
            self._flusher.arm(self)

    def _add_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        if not 0 < len(payload) <= MAX_EVENT_BYTES:
            raise InvalidEvent("Length of an event", value=len(payload), limit=MAX_EVENT_BYTES)
        if self._keeps_order and data_type == PRIORITY_EVENT:
            data_type = EVENT
        self._queue.add(self._event_buffers.consumer_of(payload, data_type), subpartition)

    def _make_room(self) -> None:
        """Finish the open buffers if the pool is too small for one of every subpartition."""
        if self.memory.pool.size_segments <= self.num_subpartitions:
            self._queue.finish_open()

    def _give_up(self, error: SluiceError) -> None:
        if self._flusher is not None:
            self._flusher.remove(self)
        self._queue.clear()
        self._leg.forget(self.number)
        self._consumption.end(error)
        self.memory.pool.destroy()
        wake(self._drained, error)
        wake(self._answered, error)


async def open_pipelined(
    leg: ProducerLeg,
    location: PartitionLocation,
    settings: PartitionSettings,
    pool: LocalBufferPool,
) -> PipelinedWriter:
    """Open a pipelined partition on the TaskManager of a leg.

    Raises:
        InvalidPartitionType: The TaskManager is older than the type of the partition.
        SluiceError: The TaskManager refused the partition, or the connection is gone.

    Cancellation: safe; the partition is aborted.
    """
    kind = ResultPartitionType(location.partition_type)
    if _FEATURES.get(kind, 0) & ~leg.features:
        raise InvalidPartitionType(
            "The TaskManager does not support this partition type",
            value=kind.name,
            limit=", ".join(
                each.name
                for each in ResultPartitionType
                if not _FEATURES.get(each, 0) & ~leg.features
            ),
            remedy="Upgrade it, or write a partition of another type",
        )
    number = leg.new_number()
    writer = PipelinedWriter(
        leg,
        number,
        settings.num_subpartitions,
        pool,
        flusher=settings.flusher,
        task_event=settings.task_event,
        keeps_order=kind.is_reconsumable,
    )
    message = OpenPipelinedPartition(
        number,
        location.shuffle_id,
        location.map_attempt_id,
        settings.num_subpartitions,
        location.partition_type,
        int(settings.consumption),
    )
    await leg.open(number, message, writer)
    trace = trace_context(number, leg.features)
    if trace is not None:
        leg.send(trace)
    return writer
