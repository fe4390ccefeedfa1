"""The consumer leg: input gates that reduce tasks open on their TaskManager.

Every channel of a gate is relayed to the reduce task with its own credit. A buffer of another
TaskManager is sent from the very segment it arrived in, and becomes credit for its sender when this
connection has sent it. So a reduce task that stops reading stops its own channels and nothing else.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from ....protocol.errors import ChannelInUse, SluiceError
from ....protocol.remote_error import error_response
from ....protocol.schema import (
    CloseGate,
    CloseRequest,
    GateClosed,
    GateOpened,
    Message,
    OpenGate,
    ReportDamage,
    TraceContext,
)
from ....transport.address import Address
from ....transport.connection import Connection
from ...counters import Counters
from ...errors import InvalidRequest
from ...gate.buffer_manager import buffer_usage
from ...gate.channel_opener import ChannelSource
from ...gate.input_gate import InputChannel, InputGate
from ...gate.local_input_channel import LocalInputChannel
from ...gate.remote_input_channel import RemoteInputChannel
from ...names import ShuffleKey, SubpartitionRange
from ..bounds.accounts import Resource
from ..bounds.segment_pressure import Unmoved
from .channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA, ChannelTimes
from .credit_based_view_reader import CreditBasedViewReader
from .read_pool import ReadPool
from .serving_handler import ServingEvents, ServingHandler
from .serving_status import ChannelStatus, GateStatus
from .stored_slices import ATTEMPT_BYTES, distinct_attempts, require_attempts
from .taskmanager_channel_opener import GateLimits, GateServices, TaskManagerChannelOpener

if TYPE_CHECKING:
    from ..tracing.traced_span import TracedSpan


class ConsumerHandler(ServingHandler):
    """Serves the gates of one reduce-side connection.

    Args:
        connection: The connection to the executor.
        services: The parts of the TaskManager that gates use.
        read_pool: Memory for local reads of the disk tier.
        counters: The TaskManager's counters.
        events: What the TaskManager is told.
    """

    def __init__(
        self,
        connection: Connection,
        services: GateServices,
        read_pool: ReadPool,
        counters: Counters,
        events: ServingEvents,
    ) -> None:
        # A credit is one segment of the consumer. If it has none, a message costs one credit,
        # however long it is.
        has_segments = connection.other_segment_size_bytes > 0
        credit_bytes = (
            connection.max_payload_bytes if has_segments else connection.large_payload_bytes
        )
        super().__init__(
            connection,
            read_pool,
            counters,
            events,
            credit_bytes,
            services.config.max_channels_per_connection,
        )
        self._services = services
        self._account = services.accounts.of(connection.application_id)
        self.gates: dict[int, tuple[InputGate, list[CreditBasedViewReader]]] = {}
        """Open gates by number, each with the readers of its channels."""
        self.gate_times: dict[int, ChannelTimes] = {}
        """Times of open gates, by number."""
        self._kept_bytes: dict[int, int] = {}
        """Bytes charged for the map attempts of open gates, by number."""
        self._trace: TraceContext | None = None
        """The context of the next gate, which must have its number."""
        self._gate_spans: dict[int, TracedSpan] = {}
        """The spans of the open gates that are traced, by number."""
        self._source_spans: dict[CreditBasedViewReader, TracedSpan] = {}
        """The spans of their channels that have not ended."""

    def request_received(self, message: Message) -> None:
        """Open and close gates."""
        if type(message) is OpenGate:
            self._open_gate(message)
        elif type(message) is CloseGate:
            self._close_gate(message.gate)
            self.connection.send(GateClosed(message.gate))
        elif type(message) is ReportDamage:
            self._report_damage(message)
        elif type(message) is TraceContext:
            self._trace = message
        elif type(message) is CloseRequest:
            self.connection.close()

    def sent(self, reader: CreditBasedViewReader, length: int) -> None:
        """Count a data buffer that was sent, by its origin."""
        counters = self.counters
        if reader.view is not None and reader.view.is_local:
            counters.consumer_bytes_out_local += length
            counters.consumer_buffers_out_local += -(-length // self.credit_bytes)
        else:
            counters.consumer_bytes_out_remote += length
            counters.consumer_buffers_out_remote += -(-length // self.credit_bytes)

    @property
    def times(self) -> list[ChannelTimes]:
        """Times of its channels, by gate."""
        return list(self.gate_times.values())

    @property
    def credit_wait_seconds(self) -> float:
        """The longest time since when all channels of a gate have waited for credit."""
        return max(
            (
                self.gate_times[number].credit_wait_seconds(gate.unopened_channels)
                for number, (gate, _) in self.gates.items()
            ),
            default=0.0,
        )

    def gate_statuses(self) -> list[GateStatus]:
        """Return the status of each gate."""
        found = []
        for number, (gate, readers) in self.gates.items():
            seconds = self.gate_times[number].seconds()
            remote = [each for each in gate.channels if isinstance(each, RemoteInputChannel)]
            found.append(
                GateStatus(
                    number,
                    gate.key.application_id,
                    gate.key.shuffle_id,
                    tuple(map(_channel_status, readers, gate.channels, gate.sources)),
                    *buffer_usage(each.buffers for each in remote if each.buffers is not None),
                    seconds.idle,
                    seconds.busy,
                    seconds.back_pressured,
                    self.connection.key,
                    self.connection.label,
                )
            )
        return found

    @property
    def holds_anything(self) -> bool:
        """Whether a gate or a channel is open."""
        return bool(self.gates or self.readers)

    def has_producer(self, reader: CreditBasedViewReader) -> bool:
        """Tell whether the channel may have had a producer that has finished."""
        channel = reader.view
        return not isinstance(channel, LocalInputChannel) or channel.is_pipelined

    def publish_task_event(
        self, reader: CreditBasedViewReader, event_type: int, payload: bytes
    ) -> None:
        """Pass an event to the producer through the gate's channel.

        Raises:
            UnknownProducer: It has finished, or the channel reads a stored map output.
            TooManyTaskEvents: As many wait already as may wait.
        """
        _channel(reader).send_task_event(event_type, payload)

    def resume_consumption(self, reader: CreditBasedViewReader) -> None:
        """Go on after a blocking event, through the gate's channel.

        Raises:
            InvalidRequest: It is not blocked.
        """
        _channel(reader).resume_consumption()

    @property
    def held_kind(self) -> str:
        """Gates, which are closed as a whole."""
        return "gate"

    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the gates with segments whose open channels all wait for the consumer."""
        unsent = self.connection.write_buffer_bytes
        for number, (gate, readers) in self.gates.items():
            counts = self.gate_times[number].counts
            waits_for_data = counts[WAITING_FOR_DATA] > gate.unopened_channels
            waits = counts[WAITING_FOR_CREDIT] or (counts[SENDING] and not self.connection.writable)
            if waits and not waits_for_data and _holds_segments(gate):
                sent = sum(reader.sequence_number for reader in readers)
                granted = sum(reader.credit.available for reader in readers)
                yield Unmoved(number, self._account, (sent, granted, unsent))

    def take_back(self, number: int, error: SluiceError) -> bool:
        """Close a gate; each of its channels gets the error. False if it is gone already."""
        opened = self.gates.get(number)
        if opened is None:
            return False
        for reader in opened[1]:
            self.fail_now(reader, error)
        self._close_gate(number, error)
        return True

    def connection_lost(self, error: SluiceError) -> None:
        """Give everything back."""
        for gate in list(self.gates):
            self._close_gate(gate, error)
        super().connection_lost(error)

    def ended(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        """Free the number of a channel that has sent its end or its error."""
        if self._source_spans:
            self._end_source(reader, error)
        super().ended(reader, error)

    def _open_gate(self, message: OpenGate) -> None:
        trace, self._trace = self._trace, None
        numbers = [message.gate, *(channel.channel for channel in message.channels)]
        taken = [n for n in numbers if n in self.gates or n in self.readers]
        if taken or len(set(numbers)) < len(numbers):
            raise ChannelInUse(
                "Gate or channel number is in use on this connection", value=taken or numbers[:8]
            )
        wanted = SubpartitionRange(
            ShuffleKey(self.connection.application_id, message.shuffle_id),
            message.start_subpartition,
            message.end_subpartition,
        )
        channels: list[CreditBasedViewReader] = []
        try:
            self.require_room(len(self.gates) + len(self.readers) + len(numbers))
            self._charge(message)
            name = f"gate {message.gate} of {self.connection.label}"
            pipelined = _may_be_pipelined(message)
            # A pipelined buffer that is read makes room for another one.
            message_bytes = 0 if pipelined else self.connection.most_of_a_message_bytes
            config = self._services.config
            limits = GateLimits(
                self.connection.most_of_a_message_bytes,
                self.credit_bytes,
                # The channels of a pipelined exchange are all read side by side.
                None if pipelined else config.max_open_channels_per_gate,
                None if pipelined else config.floating_buffers_per_stored_gate,
                self._account,
                # Clients without segments, Spark's, know other places and ask again themselves.
                waits_for_restarts=self.connection.other_segment_size_bytes > 0,
            )
            opener = TaskManagerChannelOpener(name, self._services, wanted, self.read_pool, limits)
            gate = InputGate(opener)
            self.gates[message.gate] = gate, channels
            self.counters.gates_opened += 1
            times = self.gate_times[message.gate] = ChannelTimes(
                self.counters.consumer_serving, self._services.credit_waits
            )
            span = self._begin_span(trace, message, wanted)
            for channel in message.channels:
                reader = self.new_reader(
                    channel.channel, message.initial_credit, times, self._account
                )
                channels.append(reader)
                source = ChannelSource(
                    channel.taskmanager_id,
                    Address(channel.host, channel.port),
                    distinct_attempts(channel.map_attempt_ids),
                )
                if span is not None:
                    source = self._begin_source(span, wanted, reader, source)
                reader.attach(gate.add_channel(source, reader.data_available), message_bytes)
        except SluiceError as error:
            self._close_gate(message.gate, error)
            self.counters.errors_by_code.bump(error.code.name)
            self.connection.send(error_response(message.gate, error))
            return
        self.connection.send(GateOpened(message.gate))

    def _report_damage(self, message: ReportDamage) -> None:
        key = ShuffleKey(self.connection.application_id, message.shuffle_id)
        wanted = SubpartitionRange(key, message.start_subpartition, message.end_subpartition)
        address = Address(message.host, message.port)
        source = ChannelSource(message.taskmanager_id, address, message.map_attempt_ids)
        self._services.report_damage(wanted, source)

    def _charge(self, message: OpenGate) -> None:
        """Charge what a gate keeps of its message until it is closed.

        Raises:
            LimitExceeded: It names too many map attempts.
            QuotaExceeded: The application is at its quota of metadata.
        """
        attempts = sum([len(channel.map_attempt_ids) for channel in message.channels])
        require_attempts(attempts)
        self._account.take(Resource.METADATA_BYTES, attempts * ATTEMPT_BYTES)
        self._kept_bytes[message.gate] = attempts * ATTEMPT_BYTES

    def _begin_span(
        self, trace: TraceContext | None, message: OpenGate, wanted: SubpartitionRange
    ) -> "TracedSpan | None":
        """Begin the span of a gate whose context came before it."""
        tracing = self._services.tracing
        if trace is None or trace.number != message.gate or tracing is None:
            return None
        span = tracing.gate(trace, wanted, len(message.channels))
        if span is not None:
            self._gate_spans[message.gate] = span
        return span

    def _begin_source(
        self,
        gate: "TracedSpan",
        wanted: SubpartitionRange,
        reader: CreditBasedViewReader,
        source: ChannelSource,
    ) -> ChannelSource:
        """Begin the span of a channel, and return its source with the context of the span."""
        tracing = self._services.tracing
        if tracing is None:
            return source
        is_local = source.taskmanager_id == self._services.taskmanager_id
        span = tracing.source(gate, wanted, source, is_local=is_local)
        self._source_spans[reader] = span
        return source._replace(trace=span.context)

    def _end_source(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        span = self._source_spans.pop(reader, None)
        if span is not None:
            span.end({"sluice.bytes": reader.bytes_out}, error)

    def _end_span(
        self,
        number: int,
        readers: list[CreditBasedViewReader],
        times: ChannelTimes,
        error: SluiceError | None,
    ) -> None:
        span = self._gate_spans.pop(number, None)
        if span is None:
            return
        for reader in readers:
            self._end_source(reader, error)
        seconds = times.seconds()
        attributes = {
            "sluice.bytes": sum(reader.bytes_out for reader in readers),
            "sluice.data_wait_seconds": seconds.data_wait,
            "sluice.credit_wait_seconds": seconds.credit_wait,
        }
        span.end(attributes, error)

    def _close_gate(self, number: int, error: SluiceError | None = None) -> None:
        self._account.give_back(Resource.METADATA_BYTES, self._kept_bytes.pop(number, 0))
        opened = self.gates.pop(number, None)
        if opened is None:
            return
        gate, channels = opened
        for reader in channels:
            # The number of a channel that has ended is free, perhaps for one of another gate.
            if self.readers.get(reader.channel) is reader:
                self.close_channel(reader.channel)
        times = self.gate_times.pop(number)
        if self._gate_spans:
            self._end_span(number, channels, times, error)
        times.end()
        gate.release()


def _holds_segments(gate: InputGate) -> bool:
    """Tell whether a gate has segments of its own, or keeps those of others in use."""
    return any(channel.holds_segments for channel in gate.channels)


def _may_be_pipelined(message: OpenGate) -> bool:
    """Tell whether the partitions that a gate asks for can be pipelined."""
    return message.end_subpartition == message.start_subpartition + 1 and all(
        len(channel.map_attempt_ids) == 1 for channel in message.channels
    )


def _channel(reader: CreditBasedViewReader) -> InputChannel:
    """Return the gate's channel that a reader reads.

    Raises:
        InvalidRequest: It has ended.
    """
    if reader.view is None:
        raise InvalidRequest("Channel has ended", value=reader.channel)
    return cast("InputChannel", reader.view)  # all views of this leg are channels of gates


def _channel_status(
    reader: CreditBasedViewReader, channel: InputChannel, source: ChannelSource
) -> ChannelStatus:
    remote = channel if isinstance(channel, RemoteInputChannel) else None
    return ChannelStatus(
        reader.channel,
        "local" if channel.is_local else "remote",
        str(source.address),
        0 if remote is None else remote.queued_buffers,
        0 if remote is None else remote.credit.granted,
        channel.backlog,
        channel.bytes_in,
        channel.buffers_in,
        0 if remote is None else remote.credit.unannounced,
    )
