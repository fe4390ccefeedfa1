"""The producer leg of pipelined partitions: what a client writes is read while it still writes.

::

    state       PipelinedData   FinishPartition   abort, client lost   released, last reader gone
    OPEN        OPEN            FINISHING         GONE                 GONE
    FINISHING   ✗               ✗                 GONE                 GONE
    FINISHED    –               –                 –                    GONE

✗ fails the partition. In FINISHED its number is free and it belongs to no connection any more; it
goes with its last reader. A partition that goes before it is finished has failed: its readers are
told, and so are those who ask for it a little later.

A data buffer is received straight into the segment that was granted for it, and queued as it is. If
the one before it still waits and has room for its bytes they are copied there instead, and the
segment is free again: flushes that find their reader busy do not become messages of their own.
"""

import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluice.protocol.errors import CreditExceeded, InvalidEvent, SluiceError, UnexpectedMessage
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.limits import MAX_EVENT_BYTES
from sluice.protocol.messages import (
    DATA,
    EVERY_SUBPARTITION,
    AddCredit,
    FinishPartition,
    NewBufferSize,
    OpenPipelinedPartition,
    PipelinedData,
    TaskEvent,
)
from sluice.shuffle.errors import EndOfPartitionMismatch, InvalidRequest, PartitionReleased
from sluice.shuffle.gate.task_events import MAX_KEPT_TASK_EVENTS, TooManyTaskEvents
from sluice.shuffle.memory import MemorySegment
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.partition_type import checked_partition_type, pool_bounds
from sluice.shuffle.partition.pipelined_result_partition import (
    PartitionListeners,
    PipelinedResultPartition,
)
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.taskmanager.ingest.pipelined_credit import PipelinedCredit
from sluice.shuffle.taskmanager.ingest.waiting import Waiter
from sluice.transport.connection import Connection

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.ingest.written_output import ProducerServices


class ProducerState(enum.Enum):
    """States of a pipelined partition on the producer leg; the table is above."""

    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    GONE = "gone"


class PipelinedProducer:
    """One pipelined partition and its client.

    Args:
        services: The TaskManager's parts.
        connection: The connection to the client.
        message: What the client asked for.
        ended: Told why the partition has gone before the client finished it, when that was nobody's
            doing on this connection: its readers have gone, or its shuffle was released.

    Raises:
        InvalidPartitionType: Type and consumption do not go together.
        InsufficientNetworkBuffers: The memory for it cannot be promised.
        DuplicateMapOutput: There is a partition of that name.
    """

    def __init__(
        self,
        services: "ProducerServices",
        connection: Connection,
        message: OpenPipelinedPartition,
        ended: Callable[[SluiceError], None],
    ) -> None:
        self.state = ProducerState.OPEN
        self.number: Final = message.partition
        self.key: Final = ShuffleKey(connection.application_id, message.shuffle_id)
        self.map_attempt_id: Final = message.map_attempt_id
        self.total_bytes = 0
        """Bytes of data that have come; of a broadcast buffer once."""
        self._services = services
        self._connection = connection
        self._ended = ended
        self._arriving: MemorySegment | bytearray | None = None
        self._task_events: deque[tuple[int, bytes]] = deque()
        self._new_buffer_size_bytes: int | None = None
        self.credit_wait: Final = Waiter(services.pipelined_credit_wait)
        """The producer waits while there is no memory for another buffer."""
        kind, consumption = checked_partition_type(message.partition_type, message.consumption)
        config = services.config
        self._pool = services.network_pool.create_local_pool(
            f"pipelined partition {message.map_attempt_id}",
            *pool_bounds(
                kind,
                message.num_subpartitions,
                config.exclusive_buffers_per_channel,
                config.floating_buffers_per_gate,
            ),
            kind="pipelined",
        )
        self._credit = PipelinedCredit(self._pool, self._grant)
        try:
            self.partition = PipelinedResultPartition(
                self._pool.name,
                message.num_subpartitions,
                self._pool,
                partition_type=kind,
                consumption=consumption,
                listeners=PartitionListeners(
                    self._consumable, self._consumed, self._buffer_size_announced
                ),
            )
            services.partitions.register_pipelined(
                self.key, message.map_attempt_id, self.partition, self.release
            )
        except BaseException:
            self._pool.destroy()
            raise
        services.task_events.register(self.key, message.map_attempt_id, self._task_event_came)

    def start(self) -> None:
        """Grant the first credit."""
        self._credit.fill()

    @property
    def is_open(self) -> bool:
        """True until the partition is finished or gone."""
        return self.state in (ProducerState.OPEN, ProducerState.FINISHING)

    @property
    def available_credit(self) -> int:
        """Credits that the client has left."""
        return self._credit.outstanding

    @property
    def ready_segments(self) -> int:
        """Segments of the pool that lie ready for its next buffers."""
        return self._credit.ready

    # ---- what the client sends -------------------------------------------------------------------

    def payload_buffer(self, message: PipelinedData, length: int) -> memoryview:
        """Supply the place for a buffer or an event.

        Raises:
            CreditExceeded: A data buffer for which no credit was granted.
            InvalidRequest: An unknown subpartition, or more than a segment holds.
            InvalidEvent: An event above the size limit.
        """
        self._require_open("PipelinedData")
        self._check_subpartition(message.subpartition)
        if message.data_type != DATA:
            if length > MAX_EVENT_BYTES:
                raise InvalidEvent("Event is too large", value=length, limit=MAX_EVENT_BYTES)
            self._arriving = bytearray(length)
            return memoryview(self._arriving)
        most = self._services.config.segment_size_bytes
        if length > most:
            raise InvalidRequest("PipelinedData is larger than a segment", value=length, limit=most)
        segment = self._credit.take()
        if segment is None:
            raise CreditExceeded("PipelinedData without credit", value=length, limit=0)
        self._arriving = segment
        return segment.room

    def received(self, message: PipelinedData, length: int) -> None:
        """Queue what has arrived.

        Raises:
            InvalidRequest: Without content.
            InvalidEvent: No event, an unknown one, or the end, which only FinishPartition sets.
            TooManyEvents: Too many wait for a reader.
        """
        self._require_open("PipelinedData")
        arriving, self._arriving = self._arriving, None
        if arriving is None:
            raise InvalidRequest("PipelinedData without content", value=0, limit="1 byte")
        subpartition = message.subpartition
        if subpartition == EVERY_SUBPARTITION:
            subpartition = ALL_SUBPARTITIONS
        if isinstance(arriving, MemorySegment):
            self.total_bytes += length
            if length < arriving.size_bytes and self.partition.extend_last(
                subpartition, arriving.memory[:length]
            ):
                self._credit.put_back(arriving)
            else:
                buffer = self._pool.buffer_of(arriving, length)
                self.partition.add_finished_buffer(subpartition, buffer, DATA)
            self._credit.fill()
            if self._credit.outstanding == 0:
                self.credit_wait.begin()
            return
        payload = bytes(arriving)
        event = decode_event(payload)
        self._services.counters.events_by_type.bump(type(event).__name__)
        if type(event) is EndOfPartition:
            raise InvalidEvent(
                "EndOfPartition came as PipelinedData", remedy="FinishPartition ends it"
            )
        self.partition.emit_event(payload, message.data_type, subpartition)

    def begin_finish(self, message: FinishPartition) -> None:
        """Take no more data; :meth:`finish` is next.

        Raises:
            EndOfPartitionMismatch: Other totals than what came.
            InvalidRequest: Regions, which a pipelined partition has not.
            UnexpectedMessage: It was told before.
        """
        self._require_open("FinishPartition")
        if message.regions:
            raise InvalidRequest(
                "A pipelined partition has no regions", value=message.regions, limit=0
            )
        if message.total_bytes != self.total_bytes:
            raise EndOfPartitionMismatch(
                "Pipelined partition ended with other totals than what came",
                value=f"{message.total_bytes} bytes",
                limit=f"{self.total_bytes} bytes",
                map_attempt_id=self.map_attempt_id,
            )
        self.state = ProducerState.FINISHING
        self._credit.close()

    async def finish(self) -> None:
        """End the output: the ends follow what is queued.

        Raises:
            SluiceError: The partition has failed meanwhile.

        Cancellation: the partition is to be given up then.
        """
        await self.partition.finish()
        self.state = ProducerState.FINISHED
        self._leave_client()

    # ---- the end ---------------------------------------------------------------------------------

    def fail(self, error: SluiceError) -> None:
        """Give the partition up before it is finished; its readers are told. Idempotent."""
        self._give_up(error)

    def release(self, error: SluiceError) -> None:
        """Give the partition up because its shuffle is released; the manager has forgotten it."""
        was_open = self.is_open
        self._give_up(error)
        if was_open:
            self._ended(error)

    def drop_arriving(self) -> None:
        """Give back the memory of a buffer that does not arrive whole, or too late."""
        arriving, self._arriving = self._arriving, None
        if isinstance(arriving, MemorySegment):
            self._pool.recycle(arriving)

    def _consumable(self) -> None:
        """Its constraint lets readers in now (the partition calls this)."""
        self._services.partitions.wake(self.key)

    def _consumed(self) -> None:
        """The last reader has gone (the partition calls this)."""
        if self.state is ProducerState.FINISHED:
            self._give_up(None)
        elif self.is_open:
            error = PartitionReleased(
                "All readers of the pipelined partition have gone",
                value=self.map_attempt_id,
                remedy="See why: the tasks that read it have failures of their own",
                map_attempt_id=self.map_attempt_id,
            )
            self._give_up(error)
            self._ended(error)

    def _give_up(self, failure: SluiceError | None) -> None:
        if self.state is ProducerState.GONE:
            return
        failed = failure if self.is_open else None
        self.state = ProducerState.GONE
        self._credit.close()
        self._leave_client()
        self._services.partitions.unregister_pipelined(
            self.key, self.map_attempt_id, self.partition, failed
        )
        if failure is not None:
            self.partition.fail(failure)
        self.partition.release()

    def _leave_client(self) -> None:
        """Nothing goes to the client of this partition any more."""
        self.credit_wait.end()
        self.partition.memory.hard_back_pressured_seconds = self.credit_wait.seconds
        self._task_events.clear()
        self._new_buffer_size_bytes = None
        self._services.task_events.unregister(self.key, self.map_attempt_id, self._task_event_came)

    # ---- to the client ---------------------------------------------------------------------------

    def writable(self) -> None:
        """The connection can be written again: send what has been kept."""
        if self._new_buffer_size_bytes is not None:
            self._connection.send(NewBufferSize(self.number, self._new_buffer_size_bytes))
            self._new_buffer_size_bytes = None
        while self._task_events and self._connection.writable:
            event_type, payload = self._task_events.popleft()
            self._connection.send(TaskEvent(self.number, event_type), payload)

    def _grant(self, credit: int) -> None:
        self.credit_wait.end()
        self._services.counters.credits_sent += credit
        self._connection.send(AddCredit(self.number, credit))

    def _task_event_came(self, event_type: int, payload: bytes) -> None:
        """Pass an event of a reader on; a few are kept for a client that does not read.

        Raises:
            TooManyTaskEvents: No more are kept.
        """
        if not self._connection.writable and len(self._task_events) >= MAX_KEPT_TASK_EVENTS:
            raise TooManyTaskEvents(
                "Producer does not read its task events",
                value=len(self._task_events) + 1,
                limit=MAX_KEPT_TASK_EVENTS,
                remedy="Send fewer, or let the producer read",
                map_attempt_id=self.map_attempt_id,
            )
        self._task_events.append((event_type, payload))
        if self._connection.writable:
            self.writable()

    def _buffer_size_announced(self, size_bytes: int) -> None:
        """Its readers want buffers of at most this size (the partition calls this)."""
        if self.state is ProducerState.OPEN:
            self._new_buffer_size_bytes = size_bytes  # only the last one counts
            if self._connection.writable:
                self.writable()

    # ---- inner workings --------------------------------------------------------------------------

    def _require_open(self, what: str) -> None:
        if self.state is not ProducerState.OPEN:
            raise UnexpectedMessage(
                f"{what} for a pipelined partition that is {self.state.value}",
                value=self.number,
                limit=ProducerState.OPEN.value,
            )

    def _check_subpartition(self, subpartition: int) -> None:
        most = self.partition.num_subpartitions
        if subpartition >= most and subpartition != EVERY_SUBPARTITION:
            raise InvalidRequest(
                "PipelinedData for a subpartition that is not there",
                value=subpartition,
                limit=most,
                map_attempt_id=self.map_attempt_id,
            )
