"""The serving side of a peer leg: partition requests of another TaskManager."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....protocol.errors import SluiceError
from ....protocol.remote_error import error_response
from ....protocol.schema import (
    FLOW_WATERMARK,
    CloseRequest,
    Message,
    PartitionRequest,
    TraceContext,
    VerifyOutputs,
)
from ....transport.connection import Connection
from ....transport.loop import start_task
from ...counters import Counters
from ...errors import InvalidRequest, LimitExceeded, UnknownProducer, failure_of
from ...gate.local_input_channel import TaskEventDispatcher
from ...gate.task_events import KeptTaskEvents
from ...histogram import Histogram
from ...names import ShuffleKey, SubpartitionRange
from ...partition.view import is_pipelined
from ..bounds.accounts import QuotaExceeded
from ..bounds.segment_pressure import Unmoved
from .channel_times import SENDING, WAITING_FOR_CREDIT, ChannelTimes
from .credit_based_view_reader import CreditBasedViewReader, UncreditedViewReader
from .read_pool import ReadPool
from .result_partition_manager import ResultPartitionManager
from .serving_handler import ServingEvents, ServingHandler
from .stored_slices import ATTEMPT_BYTES, distinct_attempts

if TYPE_CHECKING:
    import asyncio
    from array import array

    from ..tracing.traced_span import TracedSpan
    from ..tracing.tracing import Tracing


class _Waiting:
    """A request that waits for its partition, with the consumer's messages to the producer."""

    __slots__ = ("task", "task_events", "wanted")

    def __init__(self, wanted: SubpartitionRange) -> None:
        self.wanted = wanted
        self.task: asyncio.Task[None] | None = None
        self.task_events = KeptTaskEvents()


class PeerHandler(ServingHandler):
    """Answers partition requests.

    Args:
        connection: The connection to the other TaskManager.
        partitions: Finds partitions.
        task_events: Finds producers.
        read_pool: Memory for reads of the disk tier.
        counters: The TaskManager's counters.
        events: What the TaskManager is told.
        max_channels: Most channels open at a time.
        credit_waits: Takes the waits of its channels for credit.
        tracing: Makes the spans of channels; None if traces are off.
    """

    def __init__(  # noqa: PLR0913 - all of them are of one connection
        self,
        connection: Connection,
        partitions: ResultPartitionManager,
        task_events: TaskEventDispatcher,
        read_pool: ReadPool,
        counters: Counters,
        events: ServingEvents,
        max_channels: int,
        credit_waits: Histogram,
        tracing: "Tracing | None" = None,
    ) -> None:
        super().__init__(
            connection, read_pool, counters, events, connection.max_payload_bytes, max_channels
        )
        self._times = ChannelTimes(counters.peer_serving, credit_waits)
        if connection.flow_control == FLOW_WATERMARK:
            self.reader_type = UncreditedViewReader
        self._checksums = not connection.is_encrypted  # TLS has its own
        self._partitions = partitions
        self._task_events = task_events
        self._waiting: dict[CreditBasedViewReader, _Waiting] = {}
        self._producers: dict[CreditBasedViewReader, tuple[ShuffleKey, int]] = {}
        """Producers of the channels that read pipelined partitions."""
        self._subpartitions: dict[CreditBasedViewReader, int] = {}
        """The subpartitions that these channels read."""
        self._tracing = tracing
        self._trace: TraceContext | None = None
        """The context of the next request, which must have its number."""
        self._spans: dict[CreditBasedViewReader, TracedSpan] = {}
        """The spans of the channels that are traced."""

    def request_received(self, message: Message) -> None:
        """Handle a partition request, or a report of damaged data."""
        if type(message) is PartitionRequest:
            self._request(message)
        elif type(message) is VerifyOutputs:
            key = ShuffleKey(message.application_id, message.shuffle_id)
            wanted = SubpartitionRange(key, message.start_subpartition, message.end_subpartition)
            self._partitions.damage.report(wanted, message.map_attempt_ids)
        elif type(message) is TraceContext:
            self._trace = message
        elif type(message) is CloseRequest:
            self.connection.close()

    def sent(self, reader: CreditBasedViewReader, length: int) -> None:
        """Count a data buffer that was sent."""
        self.counters.peer_bytes_out += length
        self.counters.peer_buffers_out += -(-length // self.credit_bytes)

    def close_channel(self, channel: int) -> bool:
        """Close a channel, and cancel its request if that still waits for its partition."""
        reader = self.readers.get(channel)
        if reader is not None:
            self._end_span(reader, None)
            self._forget(reader)
        return super().close_channel(channel)

    def ended(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        """Forget a channel that has sent its end or its error."""
        self._end_span(reader, error)
        self._forget(reader)
        super().ended(reader, error)

    @property
    def times(self) -> list[ChannelTimes]:
        """Times of its channels, all of them together."""
        return [self._times]

    def has_producer(self, reader: CreditBasedViewReader) -> bool:
        """Tell whether the channel reads a pipelined partition."""
        return reader in self._producers

    def publish_task_event(
        self, reader: CreditBasedViewReader, event_type: int, payload: bytes
    ) -> None:
        """Pass an event to the producer, or keep it until the partition is found.

        Raises:
            UnknownProducer: The channel reads stored map outputs, or its producer has finished.
            TooManyTaskEvents: As many wait already as may wait.
        """
        waiting = self._waiting.get(reader)
        producer = self._producers.get(reader)
        if waiting is not None:
            waiting.task_events.keep(event_type, payload)
        elif producer is not None:
            self._task_events.publish(*producer, event_type, payload)
        else:
            raise UnknownProducer(
                "Stored map outputs take no task events",
                value=event_type,
                remedy="Send them to pipelined partitions",
            )

    def resume_consumption(self, reader: CreditBasedViewReader) -> None:
        """Go on with a pipelined partition after a blocking event.

        Raises:
            InvalidRequest: It is not blocked.
        """
        if not is_pipelined(reader.view):
            raise InvalidRequest("Channel is not blocked: nothing to resume", value=reader.channel)
        reader.view.resume_consumption()

    def sought_by(self, reader: CreditBasedViewReader) -> SubpartitionRange | None:
        """Return what a channel waits to be found; None if it has its view."""
        waiting = self._waiting.get(reader)
        return None if waiting is None else waiting.wanted

    def producer_of(self, reader: CreditBasedViewReader) -> tuple[ShuffleKey, int, int] | None:
        """Return shuffle, map attempt and subpartition that a channel reads pipelined, or None."""
        producer = self._producers.get(reader)
        return None if producer is None else (*producer, self._subpartitions[reader])

    @property
    def held_kind(self) -> str:
        """Channels: the gate is at the other TaskManager."""
        return "channel"

    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the channels that wait for credit, or for the connection, with segments."""
        unsent = self.connection.write_buffer_bytes
        for channel, reader in self.readers.items():
            waits = reader.activity == WAITING_FOR_CREDIT or (
                reader.activity == SENDING and not self.connection.writable
            )
            if waits and reader.view is not None and reader.view.holds_segments:
                mark = (reader.sequence_number, reader.credit.available, unsent)
                yield Unmoved(channel, reader.account, mark)

    def take_back(self, number: int, error: SluiceError) -> bool:
        """Close a channel with an error; False if it is gone already."""
        reader = self.readers.get(number)
        if reader is None:
            return False
        self._end_span(reader, error)
        self.fail_now(reader, error)
        return True

    def connection_lost(self, error: SluiceError) -> None:
        """Give everything back."""
        for reader in list(self._spans):
            self._end_span(reader, error)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if each.task is not None:
                each.task.cancel()
        self._producers.clear()
        self._subpartitions.clear()
        super().connection_lost(error)
        self._times.end()

    def _request(self, message: PartitionRequest) -> None:
        trace, self._trace = self._trace, None
        try:
            attempts = distinct_attempts(message.map_attempt_ids)
            account = self._partitions.accounts.of(message.application_id)
            kept_bytes = len(attempts) * ATTEMPT_BYTES
            reader = self.new_reader(
                message.channel, message.initial_credit, self._times, account, kept_bytes
            )
        except (LimitExceeded, InvalidRequest, QuotaExceeded) as error:
            self.counters.errors_by_code.bump(error.code.name)
            self.connection.send(error_response(message.channel, error))
            return
        key = ShuffleKey(message.application_id, message.shuffle_id)
        wanted = SubpartitionRange(key, message.start_subpartition, message.end_subpartition)
        if trace is not None and trace.number == message.channel and self._tracing is not None:
            span = self._tracing.served_source(trace, wanted, attempts)
            if span is not None:
                self._spans[reader] = span
        waiting = self._waiting[reader] = _Waiting(wanted)
        waiting.task = start_task(self._open(reader, wanted, attempts))

    def _end_span(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        span = self._spans.pop(reader, None)
        if span is not None:
            span.end({"sluice.bytes": reader.bytes_out}, error)

    def _forget(self, reader: CreditBasedViewReader) -> None:
        self._producers.pop(reader, None)
        self._subpartitions.pop(reader, None)
        waiting = self._waiting.pop(reader, None)
        if waiting is not None and waiting.task is not None:
            waiting.task.cancel()

    async def _open(
        self, reader: CreditBasedViewReader, wanted: SubpartitionRange, attempts: "array[int]"
    ) -> None:
        try:
            view = await self._partitions.request_view(
                wanted,
                attempts,
                self.connection.most_of_a_message_bytes,
                self.read_pool,
                reader.data_available,
                self.credit_bytes,
            )
            waiting = self._waiting.pop(reader)
            # Stored data has checksums of its own, which its reader verifies.
            reader.checksums = self._checksums and is_pipelined(view)
            reader.attach(
                view, 0 if is_pipelined(view) else self.connection.most_of_a_message_bytes
            )
            if is_pipelined(view):
                self._producers[reader] = wanted.shuffle, attempts[0]
                self._subpartitions[reader] = wanted.start
            for event_type, payload in waiting.task_events.take():
                self.pass_task_event(reader, event_type, payload)
        except Exception as error:  # noqa: BLE001
            reader.fail(failure_of(error, f"answering {self.connection.remote}"))
        finally:
            self._waiting.pop(reader, None)
