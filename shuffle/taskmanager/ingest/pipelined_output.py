# Longer than 450 lines, because a client's messages and all ends of a partition share one state.
"""A pipelined partition that a client writes while its readers already read.

A data buffer or event is received straight into the segment that was granted for it, and queued as
it is. If the buffer before data still waits and has room for the bytes, they are copied there
instead, and the segment is free again. So flushes while the reader is busy do not become messages
of their own. A priority event has a little memory of its own.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from ....protocol.errors import CreditExceeded, ErrorCode, InvalidEvent, SluiceError
from ....protocol.events import EndOfPartition, decode_event
from ....protocol.framing import PayloadMemory
from ....protocol.limits import MAX_EVENT_BYTES
from ....protocol.remote_error import error_response
from ....protocol.schema import (
    DATA,
    EVERY_SUBPARTITION,
    PRIORITY_EVENT,
    FinishPartition,
    OpenPipelinedPartition,
    PartitionConsumed,
    PartitionFinished,
    PartitionOpened,
    PipelinedData,
    TaskEvent,
    TraceContext,
    WatchConsumption,
)
from ....transport.loop import start_task
from ...errors import InvalidRequest, ProducerFailed, TooManyTaskEvents, failure_of
from ...gate.task_events import MAX_KEPT_TASK_EVENTS
from ...memory import MemorySegment
from ...names import MapAttemptKey
from ...partition.consumption import all_readers_gone, reader_left
from ...partition.partition_type import checked_partition_type, pool_bounds
from ...partition.pipelined_result_partition import PartitionListeners, PipelinedResultPartition
from ...partition.result_partition_writer import ALL_SUBPARTITIONS
from ...partition.shared_buffer import finished_consumer
from ..bounds.accounts import Resource
from ..bounds.progress import Mark
from ..hybrid.hybrid_spiller import HybridSpiller, SpillingWriter
from .incoming_output import IncomingOutput, OpenOutputs
from .output_states import DataMessage, MessageType, OutputMessage, PipelinedState, not_open
from .pipelined_credit import PipelinedCredit
from .wait_times import Waiter

if TYPE_CHECKING:
    import asyncio

    from ..tracing.partition_spans import PartitionSpans
    from ..tracing.tracing import Tracing

SPILLED_CREDIT_PART: Final = 4
"""A hybrid partition spills when its client has less credit left than this part of its pool: the
client sends the rest while a region is written."""

_MESSAGES: Final[frozenset[MessageType]] = frozenset(
    {PipelinedData, WatchConsumption, FinishPartition}
)


class PipelinedOutput(IncomingOutput):
    """One pipelined partition and its client.

    Args:
        outputs: All outputs of the connection.
        message: The message that opens this one; :meth:`open` is next.

    Raises:
        InvalidPartitionType: Type and consumption do not go together.
        InsufficientNetworkBuffers: The memory for it cannot be promised.
        DuplicateMapOutput: A partition of that name is registered.
    """

    def __init__(self, outputs: OpenOutputs, message: OpenPipelinedPartition) -> None:
        services = outputs.services
        super().__init__(outputs, message, _MESSAGES, Waiter(services.pipelined_credit_wait))
        self.state = PipelinedState.OPEN
        self.total_bytes = 0
        """Bytes of data that have arrived; a broadcast buffer counts once."""
        self._arriving: MemorySegment | bytearray | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._is_watched = False
        self._task_events: deque[tuple[int, bytes]] = deque()
        self._spans: PartitionSpans | None = None  # if it is traced
        kind, consumption = checked_partition_type(message.partition_type, message.consumption)
        config = services.config
        self._kind: Final = kind
        self._pool = services.network_pool.create_local_pool(
            f"pipelined partition {message.map_attempt_id} of shuffle {message.shuffle_id}",
            *pool_bounds(
                kind,
                message.num_subpartitions,
                config.exclusive_buffers_per_channel,
                config.floating_buffers_per_gate,
            ),
            kind="pipelined",
            owner=outputs.account,
        )
        spiller: HybridSpiller | None = None
        if kind.is_hybrid:
            spiller = HybridSpiller(
                kind,
                self._pool,
                services.store,
                self.key,
                SpillingWriter(self._writer_waits, self._not_spilled, self.release),
                id(outputs.connection),
            )
        self._credit = PipelinedCredit(
            self._pool, self.grant, memory_short=None if spiller is None else spiller.memory_short
        )
        try:
            self.partition = PipelinedResultPartition(
                self._pool.name,
                message.num_subpartitions,
                self._pool,
                partition_type=kind,
                consumption=consumption,
                listeners=PartitionListeners(
                    self._consumable, self._consumed, self._credit.event_taken
                ),
                overflow=spiller,
            )
            services.partitions.register_pipelined(
                self.key, message.map_attempt_id, self.partition, self.release
            )
        except BaseException:
            self._pool.destroy()
            raise
        services.task_events.register(self.key, message.map_attempt_id, self._task_event_came)

    def open(self) -> None:
        """Acknowledge the partition, and grant its first credit."""
        self._outputs.add(self)
        self._counters.pipelined_partitions_opened += 1
        self._connection.send(PartitionOpened(self.number))
        self._credit.fill()

    def trace(self, tracing: "Tracing", context: TraceContext) -> None:
        """Begin the spans of the partition, unless it has spans or is not open."""
        if self._spans is None and self.state is PipelinedState.OPEN:
            attempt = MapAttemptKey(self.key, self.map_attempt_id)
            self._spans = tracing.pipelined_partition(context, attempt, self._kind.name.lower())

    @property
    def is_open(self) -> bool:
        """True until the partition is finished or gone."""
        return self.state in (PipelinedState.OPEN, PipelinedState.FINISHING)

    @property
    def available_credit(self) -> int:
        """Credits that the client has left."""
        return self._credit.outstanding

    @property
    def ready_segments(self) -> int:
        """Segments of the pool that are ready for the next buffers."""
        return self._credit.ready

    @property
    def unmoved(self) -> Mark | None:
        """The mark of a partition that waits for its client, or for a reader that is not there.

        A hybrid partition does not wait for readers: it spills.
        """
        credit = self._credit.outstanding
        waits_for_client = self.state is PipelinedState.OPEN and credit > 0
        has_data = self._pool.lent_segments > self._credit.ready and not self._kind.is_hybrid
        if not waits_for_client and (self.partition.is_requested or not has_data):
            return None
        return self.total_bytes, credit, self._pool.lent_segments

    # ---- from the client -------------------------------------------------------------------------

    def payload_buffer(self, message: DataMessage, length: int) -> PayloadMemory:
        """Supply the memory for a buffer or an event.

        Raises:
            UnexpectedMessage: The client has finished the partition.
            CreditExceeded: A buffer or event for which no credit was granted, or a priority event
                while too many wait on account.
            InvalidRequest: An unknown subpartition, more than a segment holds, or a priority event
                of a reconsumable partition.
            InvalidEvent: An event above the size limit.
        """
        if self.state is not PipelinedState.OPEN or type(message) is not PipelinedData:
            raise not_open(self.state, type(message), self.number)
        self._check_subpartition(message.subpartition)
        if message.data_type != DATA and length > MAX_EVENT_BYTES:
            raise InvalidEvent("Event is too large", value=length, limit=MAX_EVENT_BYTES)
        if message.data_type == PRIORITY_EVENT:
            if self._kind.is_reconsumable:
                raise InvalidRequest(
                    "A priority event cannot overtake buffers that are kept",
                    value=self._kind.name,
                    remedy="Send it as an ordinary event",
                )
            self._credit.overdraw()
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

    def data_received(self, message: DataMessage, length: int) -> None:
        """Queue the buffer or event that has arrived.

        Raises:
            UnexpectedMessage: The client has finished the partition.
            InvalidRequest: The message has no content.
            InvalidEvent: An unknown event, or the end, which only FinishPartition sets.
        """
        if type(message) is not PipelinedData:
            raise not_open(self.state, type(message), self.number)
        if message.data_type == DATA:
            self._counters.producer_bytes_in += length
            self._counters.producer_buffers_in += 1
        if self.state is not PipelinedState.OPEN:
            raise not_open(self.state, PipelinedData, self.number)
        arriving = self._arriving
        if arriving is None:
            raise InvalidRequest("PipelinedData without content", value=0, limit="1 byte")
        subpartition = message.subpartition
        if subpartition == EVERY_SUBPARTITION:
            subpartition = ALL_SUBPARTITIONS
        if isinstance(arriving, MemorySegment):
            is_extension = False
            if message.data_type == DATA:
                self.total_bytes += length
                is_extension = length < arriving.size_bytes and self.partition.extend_last(
                    subpartition, arriving.memory[:length]
                )
            else:
                self._count_event(bytes(arriving.memory[:length]))
            self._arriving = None  # until here :meth:`drop_arriving` returns it
            if is_extension:
                self._credit.put_back(arriving)
            else:
                consumer = finished_consumer(
                    self._pool.buffer_of(arriving, length), message.data_type
                )
                self.partition.add_consumer(consumer, subpartition)
        else:
            self._arriving = None
            payload = bytes(arriving)
            self._count_event(payload)
            self.partition.emit_event(payload, message.data_type, subpartition)
        self._credit.fill()
        if self._credit.outstanding <= 0:
            self.credit_wait.begin()

    def received(self, message: OutputMessage) -> None:
        """Take no more data, and end the partition; or watch its readers after that.

        Raises:
            UnexpectedMessage: The client has finished the partition already.
            InvalidRequest: The end has regions.
            END_OF_PARTITION_MISMATCH: The end has other totals than the data that came.
        """
        if self.state is PipelinedState.OPEN and type(message) is WatchConsumption:
            self._is_watched = True
            return
        if self.state is not PipelinedState.OPEN or type(message) is not FinishPartition:
            raise not_open(self.state, type(message), self.number)
        if message.regions:
            raise InvalidRequest(
                "A pipelined partition has no regions", value=message.regions, limit=0
            )
        if message.total_bytes != self.total_bytes:
            raise SluiceError(
                "Pipelined partition ended with other totals than the data that came",
                code=ErrorCode.END_OF_PARTITION_MISMATCH,
                value=f"{message.total_bytes} bytes",
                limit=f"{self.total_bytes} bytes",
                map_attempt_id=self.map_attempt_id,
            )
        self.state = PipelinedState.FINISHING
        self._credit.close()
        self._finishing = start_task(self._answer_finish())

    async def _answer_finish(self) -> None:
        """End the partition behind the queued buffers, and acknowledge it."""
        failure: SluiceError | None = None
        try:
            await self.partition.finish()
            self.state = PipelinedState.FINISHED
            self._leave_client()
            if self._spans is not None:
                self._spans.written(self.total_bytes, self.credit_wait.seconds)
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, "finishing a pipelined partition")
        self._finishing = None
        if not self._outputs.contains(self):
            return
        if failure is not None:
            self._outputs.fail(self.number, failure)
            return
        self._outputs.remove(self)
        self._outputs.account.hold(Resource.OPEN_PARTITIONS)  # until it is read or released
        self._counters.pipelined_partitions_finished += 1
        self._connection.send(PartitionFinished(self.number))
        if self._is_watched:
            self._outputs.watched.add(self)

    # ---- the end ---------------------------------------------------------------------------------

    def give_up(self, why: str, value: str | None) -> None:
        """Fail the partition before it is finished; its readers get the reason."""
        self._outputs.remove(self)
        self._counters.pipelined_partitions_failed += 1
        if self._finishing is not None:
            self._finishing.cancel()
            self._finishing = None
        self._let_go(ProducerFailed(why, value=value, map_attempt_id=self.map_attempt_id))

    def release(self, error: SluiceError) -> None:
        """Fail the partition: its shuffle was released, or spilled bytes are lost."""
        was_open = self.is_open
        self._let_go(error)
        if was_open:
            self._outputs.fail(self.number, error)

    def drop_arriving(self) -> None:
        """Free the memory of a buffer that arrives too late, or not whole. Idempotent."""
        arriving, self._arriving = self._arriving, None
        if isinstance(arriving, MemorySegment):
            self._pool.recycle(arriving)

    def _consumable(self) -> None:
        """Serve waiting requests; the partition calls this when its consumption allows it."""
        self._services.partitions.wake(self.key)

    def _consumed(self) -> None:
        """Release the partition after its last reader, unless it is reconsumable."""
        if self._kind.is_reconsumable:
            self._end_spans(None)
            self._tell_consumption(None)
            self._services.partitions.pipelined_consumed()
        elif self.state is PipelinedState.FINISHED:
            is_read = self.partition.is_read
            self._let_go(None if is_read else reader_left(self.map_attempt_id))
        elif self.is_open:
            error = all_readers_gone(self.map_attempt_id)
            self._let_go(error)
            self._outputs.fail(self.number, error)

    def _let_go(self, failure: SluiceError | None) -> None:
        if self.state is PipelinedState.GONE:
            return
        if self.state is PipelinedState.FINISHED:
            self._outputs.account.give_back(Resource.OPEN_PARTITIONS)
            self._tell_consumption(failure)
        self.state = PipelinedState.GONE
        self._credit.close()
        self._leave_client()
        self._end_spans(failure)
        self._services.partitions.unregister_pipelined(
            self.key, self.map_attempt_id, self.partition, failure
        )
        if failure is not None:
            self.partition.fail(failure)
        self.partition.release(failure)
        self.partition.forget_listeners()

    def _end_spans(self, failure: SluiceError | None) -> None:
        if self._spans is not None:
            self._spans.end(self.total_bytes, self.credit_wait.seconds, failure)

    def _tell_consumption(self, failure: SluiceError | None) -> None:
        """Answer WatchConsumption; nothing follows for the number."""
        if self in self._outputs.watched:
            self._outputs.watched.discard(self)
            self._connection.send(
                PartitionConsumed(self.number)
                if failure is None
                else error_response(self.number, failure)
            )

    def _leave_client(self) -> None:
        """Send nothing more to the client."""
        self.credit_wait.end()
        self.partition.memory.hard_back_pressured_seconds = self.credit_wait.seconds
        self._task_events.clear()
        self._services.task_events.unregister(self.key, self.map_attempt_id, self._task_event_came)

    # ---- to the client ---------------------------------------------------------------------------

    def writable(self) -> None:
        """Send the task events that had to wait for the connection."""
        while self._task_events and self._connection.writable:
            event_type, payload = self._task_events.popleft()
            self._connection.send(TaskEvent(self.number, event_type), payload)

    def _task_event_came(self, event_type: int, payload: bytes) -> None:
        """Send an event of a reader to the client, or keep a few while the client does not read.

        Raises:
            TooManyTaskEvents: MAX_KEPT_TASK_EVENTS wait already.
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

    # ---- inner workings --------------------------------------------------------------------------

    def _writer_waits(self) -> bool:
        """Whether the client has used up most of its credit, or the end has come (a spiller)."""
        pool = self._pool
        return pool.is_destroyed or (
            pool.waiting_listeners > 0
            and self._credit.outstanding * SPILLED_CREDIT_PART <= pool.size_segments
        )

    def _not_spilled(self, error: SluiceError) -> bool:
        """Fail the partition, or release it if it is read; return whether its readers need it."""
        if self.is_open:
            self._outputs.fail(self.number, error)
        elif self.partition.is_consumed:
            self._let_go(error)
        return self.state is PipelinedState.FINISHED

    def _count_event(self, payload: bytes) -> None:
        """Count an event by its type.

        Raises:
            InvalidEvent: It is unknown, or the end, which only FinishPartition sets.
        """
        event = decode_event(payload)
        self._counters.events_by_type.bump(type(event).__name__)
        if type(event) is EndOfPartition:
            raise InvalidEvent(
                "EndOfPartition came as PipelinedData", remedy="FinishPartition ends it"
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
