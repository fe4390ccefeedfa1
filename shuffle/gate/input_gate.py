"""The input gate: all channels of one consumer, which it reads in turn.

Its channels can be read through the gate, in turn (:meth:`InputGate.next_buffer_or_event`), or each
by a listener of its own (on the consumer leg, where every channel has its own credit).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mypy_extensions import mypyc_attr

from ...protocol.errors import SluiceError
from ...protocol.events import is_end_of_partition
from ...protocol.limits import MAX_CREDIT
from ...protocol.schema import DATA
from ..errors import InvalidRequest
from ..partition.view import DataListener, OutgoingBuffer, no_listener
from .channel_opener import UNKNOWN_SOURCE, ChannelOpener, ChannelSource
from .readable_gate import BufferOrEvent, ReadableGate
from .task_events import KeptTaskEvents, check_task_event, send_to_all

if TYPE_CHECKING:
    from .local_input_channel import LocalInputChannel
    from .remote_input_channel import RemoteInputChannel


class UnknownInputChannel:
    """A channel whose producer is not known yet.

    It holds the channel's place in its gate, and the messages of the consumer to the producer,
    until :meth:`InputGate.update_channel` puts a local or a remote channel there.

    Args:
        listener: The listener of the channel that will take its place.
    """

    is_local = False
    holds_segments = False
    has_priority_event = False
    backlog = 0
    bytes_in = 0
    buffers_in = 0
    failure: SluiceError | None = None

    def __init__(self, listener: DataListener) -> None:
        self.listener = listener
        self.task_events = KeptTaskEvents()
        """The events sent meanwhile, for the producer."""

    def is_available(self, credit: int) -> bool:
        """Return False: nothing comes before the producer is known."""
        return False

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Return None: nothing has come yet."""
        return None

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Return None: nothing has come yet."""
        return None

    def resume_consumption(self) -> None:
        """Refuse: nothing has come that could block the channel.

        Raises:
            InvalidRequest: Always.
        """
        raise InvalidRequest("Channel without a known producer is not blocked")

    def send_task_event(self, event_type: int, payload: bytes) -> None:
        """Keep an event for the producer.

        Raises:
            InvalidEvent: It does not fit the wire.
            TooManyTaskEvents: The channel already keeps as many as it may.
        """
        check_task_event(event_type, payload)
        self.task_events.keep(event_type, payload)

    def release(self) -> None:
        """Forget the events kept. Idempotent."""
        self.listener = no_listener
        self.task_events.take()


InputChannel: TypeAlias = "LocalInputChannel | RemoteInputChannel | UnknownInputChannel"


class GateStatistics(NamedTuple):
    """Totals of a gate, or of a union of gates, so far.

    Attributes:
        channels: Number of channels.
        ended_channels: Number of channels that have ended.
        bytes_in_local: Payload bytes of data from this TaskManager.
        buffers_in_local: Data buffers from this TaskManager.
        bytes_in_remote: Payload bytes of data from other TaskManagers.
        buffers_in_remote: Data buffers from other TaskManagers.
        idle_seconds: Time during which a reader waited for data.
    """

    channels: int
    ended_channels: int
    bytes_in_local: int
    buffers_in_local: int
    bytes_in_remote: int
    buffers_in_remote: int
    idle_seconds: float


@mypyc_attr(allow_interpreted_subclasses=True)  # tests fill gates by hand
class InputGate(ReadableGate):
    """The gate of one consumer.

    Args:
        opener: Makes its channels and opens them; the gate takes its name from it.
    """

    def __init__(self, opener: ChannelOpener) -> None:
        super().__init__()
        self.name = opener.name
        self.key = opener.wanted.shuffle
        self.channels: list[InputChannel] = []
        self.sources: list[ChannelSource] = []
        self.opener = opener
        self._released = False
        self.ended: set[int] = set()
        """Indexes of the channels that have ended."""
        self._listener: Callable[[], None] | None = None

    # ---- set-up --------------------------------------------------------------------------------

    def add_channel(
        self, source: ChannelSource, listener: DataListener | None = None
    ) -> InputChannel:
        """Add a channel and begin to open it.

        Args:
            source: The place where its data comes from.
            listener: Reads the channel instead of the gate.

        Returns:
            The channel. It may have nothing to read for a while, or fail.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
            InvalidRequest: The gate is released, or part of a union.
        """
        channel = self.opener.make(source, self._listener_of_next_channel(listener))
        self.channels.append(channel)
        self.sources.append(source)
        self.opener.open(channel, source)
        return channel

    def add_unknown_channel(self, listener: DataListener | None = None) -> UnknownInputChannel:
        """Add a channel whose producer is not known yet; :meth:`update_channel` names it.

        Args:
            listener: Reads the channel that takes its place, instead of the gate.

        Raises:
            InvalidRequest: The gate is released, or part of a union.
        """
        channel = UnknownInputChannel(self._listener_of_next_channel(listener))
        self.channels.append(channel)
        self.sources.append(UNKNOWN_SOURCE)
        return channel

    def update_channel(self, index: int, source: ChannelSource) -> InputChannel:
        """Replace a channel whose producer was unknown by a local or a remote one.

        The deadline for finding the partition starts here. Task events that the channel has
        kept meanwhile go to the producer.

        Returns:
            The new channel; if the gate is released, the old one, and nothing is done.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left; the channel stays unknown.
            InvalidRequest: There is no such channel, or its producer is known already.
        """
        unknown = self._channel(index)
        if not isinstance(unknown, UnknownInputChannel):
            raise InvalidRequest(
                f"The producer of this channel of {self.name} is known already", value=index
            )
        if self._released:
            return unknown
        channel = self.opener.make(source, unknown.listener)
        self.channels[index] = channel
        self.sources[index] = source
        for event_type, payload in unknown.task_events.take():
            channel.send_task_event(event_type, payload)
        self.opener.open(channel, source)
        return channel

    def replace_channel(self, index: int, source: ChannelSource) -> InputChannel:
        """Reopen a channel that has not ended at another source, from its beginning.

        Buffers already taken from the channel stay valid; those that wait are dropped.

        Returns:
            The new channel.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left; the channel stays as it is.
            InvalidRequest: There is no such channel, it has ended, or the gate is released.
        """
        before = self._channel(index)
        if self._released or index in self.ended:
            raise InvalidRequest(f"This channel of {self.name} is no longer read", value=index)
        channel = self.opener.make(source, partial(self._channel_available, index))
        before.release()
        if index in self._queued:
            self._queued.discard(index)
            self._ready.remove(index)
        self.channels[index] = channel
        self.sources[index] = source
        self.opener.open(channel, source)
        return channel

    def set_reader(self, listener: Callable[[], None]) -> None:
        """Call a union, beside the waiters, when the gate becomes available.

        From then on the gate takes no more channels: a union numbers the channels of its gates.

        Raises:
            InvalidRequest: The gate is part of a union already.
        """
        if self._listener is not None:
            raise InvalidRequest(f"Gate {self.name} is part of a union already")
        self._listener = listener

    def release(self) -> None:
        """Release everything. Idempotent; buffers already taken stay valid until released."""
        if self._released:
            return
        self._released = True
        self.opener.stop()
        for channel in self.channels:
            channel.release()
        self.opener.close()
        self._urgent.clear()
        self._ready.clear()
        self._queued.clear()
        self._signal()

    @property
    def unopened_channels(self) -> int:
        """Channels that open only after others of the gate have ended."""
        return self.opener.unopened_channels

    # ---- reading through the gate ----------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """True if nothing more will come: all channels have ended, or the gate is released."""
        return self._released or len(self.ended) == len(self.channels)

    def _poll_source(self, number: int) -> BufferOrEvent | None:
        channel = self.channels[number]
        try:
            buffer = channel.next_buffer(MAX_CREDIT)
        except SluiceError:
            self._queue(number)  # failed for good: the next call must not wait for it
            raise
        if buffer is not None and buffer.data_type != DATA:
            self._event_taken(number, channel, buffer)
            return BufferOrEvent(number, buffer)
        if number not in self._queued and channel.is_available(MAX_CREDIT):
            self._queued.add(number)
            self._ready.append(number)
        return None if buffer is None else BufferOrEvent(number, buffer)

    # ---- to the producers ------------------------------------------------------------------------

    def resume_consumption(self, channel_index: int) -> None:
        """Resume a channel after a blocking event.

        Raises:
            InvalidRequest: There is no such channel, or nothing can have blocked it.
        """
        self._channel(channel_index).resume_consumption()

    def send_task_event(self, event_type: int, payload: bytes = b"") -> None:
        """Send an event to the producers of all channels that have not ended.

        Every channel is tried, also when another one has raised an error.

        Raises:
            InvalidEvent: It does not fit the wire.
            TooManyTaskEvents: A channel that is not open yet keeps no more.
            UnknownProducer: A local producer has finished or was never registered.

        The first error is raised.
        """
        ended = self.ended
        channels = [each for index, each in enumerate(self.channels) if index not in ended]
        send_to_all(channels, event_type, payload)

    def report_damage(self, channel_index: int) -> None:
        """Report that stored data of a channel arrived damaged.

        The TaskManager that has it verifies its bytes. If they are damaged, it no longer serves
        them.

        Raises:
            InvalidRequest: There is no such channel.
        """
        self._channel(channel_index)
        if not self._released:
            self.opener.report_damage(self.sources[channel_index])

    # ---- status ----------------------------------------------------------------------------------

    def statistics(self) -> GateStatistics:
        """Return the amount of data received so far, and the time spent waiting for it."""
        local = [channel for channel in self.channels if channel.is_local]
        remote = [channel for channel in self.channels if not channel.is_local]
        return GateStatistics(
            len(self.channels),
            len(self.ended),
            sum(channel.bytes_in for channel in local),
            sum(channel.buffers_in for channel in local),
            sum(channel.bytes_in for channel in remote),
            sum(channel.buffers_in for channel in remote),
            self.availability.idle_seconds,
        )

    # ---- inner workings --------------------------------------------------------------------------

    def _listener_of_next_channel(self, listener: DataListener | None) -> DataListener:
        if self._released or self._listener is not None:
            raise InvalidRequest(
                f"Gate {self.name} takes no more channels",
                value="released" if self._released else "part of a union",
            )
        return listener or partial(self._channel_available, len(self.channels))

    def _channel(self, index: int) -> InputChannel:
        if not 0 <= index < len(self.channels):
            raise InvalidRequest(
                f"No such channel in {self.name}", value=index, limit=len(self.channels) - 1
            )
        return self.channels[index]

    def _channel_available(self, index: int) -> None:
        if index in self.ended or self._released:
            return
        channel = self.channels[index]
        if channel.has_priority_event:
            self._hurry(index)
        elif index in self._queued:
            return
        elif channel.is_available(MAX_CREDIT) or channel.failure is not None:
            self._queue(index)
        else:
            return  # the channel has just been opened
        self._signal()

    def _event_taken(self, index: int, channel: InputChannel, event: OutgoingBuffer) -> None:
        if is_end_of_partition(event.payload):
            self.ended.add(index)
            if index in self._queued:
                self._queued.discard(index)
                self._ready.remove(index)
            if self.has_ended:
                self._signal()  # other readers must return too
        elif channel.has_priority_event:
            self._urgent.append(index)
        elif channel.is_available(MAX_CREDIT):
            self._queue(index)

    def _signal(self) -> None:
        self.availability.wake()
        if self._listener is not None:
            self._listener()
