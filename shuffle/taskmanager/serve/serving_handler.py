"""The serving side that the peer leg and the consumer leg share: channels by number."""

import abc
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....protocol.errors import ChannelInUse, SluiceError, UnexpectedMessage
from ....protocol.remote_error import error_response
from ....protocol.schema import (
    AddCredit,
    CancelPartitionRequest,
    Message,
    ResumeConsumption,
    TaskEvent,
)
from ....transport.connection import Connection
from ....transport.errors import code_field, counted, one_line
from ...counters import Counters
from ...errors import InvalidRequest, LimitExceeded, UnknownProducer
from ..bounds.accounts import Account, Resource
from ..bounds.segment_pressure import Unmoved
from .channel_times import ChannelTimes
from .credit_based_view_reader import (
    AnnouncingViewReader,
    CreditBasedViewReader,
    UncreditedViewReader,
)
from .partition_request_queue import PartitionRequestQueue
from .read_pool import ReadPool

logger = logging.getLogger(__name__)


class ServingEvents(NamedTuple):
    """Callbacks for the events of a serving connection."""

    idle: Callable[[], None]
    """Called when its last channel is closed."""
    lost: Callable[[], None]
    """Called when it is gone, after all its memory is released."""


class ServingHandler:
    """Serves channels on one connection.

    Args:
        connection: The connection.
        read_pool: Memory for reads of the disk tier.
        counters: The TaskManager's counters.
        events: What the TaskManager is told.
        credit_bytes: Bytes that one credit of a channel pays for.
        max_channels: Most channels and gates that are open at a time.
    """

    def __init__(
        self,
        connection: Connection,
        read_pool: ReadPool,
        counters: Counters,
        events: ServingEvents,
        credit_bytes: int,
        max_channels: int,
    ) -> None:
        self.connection = connection
        self.max_channels = max_channels
        self._task_event: bytearray | None = None
        self.credit_bytes = credit_bytes
        self.reader_type = CreditBasedViewReader
        """The type of readers of new channels."""
        self.readers: dict[int, CreditBasedViewReader] = {}
        self.read_pool = read_pool
        self.counters = counters
        self.queue = PartitionRequestQueue(connection, self.sent, self.ended)
        self._events = events

    def new_reader(
        self,
        channel: int,
        initial_credit: int,
        times: ChannelTimes,
        account: Account,
        kept_bytes: int = 0,
    ) -> CreditBasedViewReader:
        """Open a channel.

        Args:
            channel: Its number.
            initial_credit: Credit that comes with it.
            times: Counts its waits.
            account: The application that reads.
            kept_bytes: Bytes to charge until the channel is closed: what is kept of its request.

        Raises:
            ChannelInUse: Its number is taken.
            LimitExceeded: As many are open already as may be.
            QuotaExceeded: The application is at its quota of channels or of metadata.
            InvalidRequest: Without flow control by credit it came with none: nothing could be sent.
        """
        if channel in self.readers:
            raise ChannelInUse("Channel number is in use on this connection", value=channel)
        self.require_room(len(self.readers) + 1)
        reader_type = self.reader_type
        if reader_type is UncreditedViewReader and initial_credit == 0:
            raise InvalidRequest(
                "A channel of a connection without credit was requested for messages of no buffer",
                value=initial_credit,
                limit="at least 1",
                remedy="Give channels exclusive buffers, or connect with credit",
            )
        if reader_type is CreditBasedViewReader and initial_credit == 0:
            reader_type = AnnouncingViewReader
        account.require_room(Resource.METADATA_BYTES, kept_bytes)
        account.take(Resource.CHANNELS)
        account.hold(Resource.METADATA_BYTES, kept_bytes)
        reader = reader_type(channel, initial_credit, self.queue.notify, self.credit_bytes, times)
        reader.account, reader.kept_bytes = account, kept_bytes
        self.readers[channel] = reader
        if self.reader_type is CreditBasedViewReader:
            self.counters.credits_received += initial_credit
        return reader

    def require_room(self, wanted: int) -> None:
        """Check that ``wanted`` channels and gates may be open on this connection.

        Raises:
            LimitExceeded: They are too many.
        """
        if wanted > self.max_channels:
            raise LimitExceeded(
                "Too many channels on one connection",
                value=wanted,
                limit=self.max_channels,
                remedy="Close some first, or raise max_channels_per_connection",
            )

    def close_channel(self, channel: int) -> bool:
        """Close a channel for its consumer; False if no channel has that number."""
        reader = self.readers.pop(channel, None)
        if reader is None:
            return False
        self.queue.remove(reader)
        _uncount(reader)
        self._without_readers()
        return True

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Supply memory for a task event."""
        if type(message) is not TaskEvent:
            raise UnexpectedMessage("Payload on a serving leg", value=type(message).__name__)
        self._task_event = bytearray(length)
        return memoryview(self._task_event)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle credit, cancels and messages to producers; pass others to the subclass."""
        if type(message) is AddCredit:
            reader = self.readers.get(message.channel)
            if reader is None:
                self.counters.late_messages.bump("AddCredit")
            else:
                self.counters.credits_received += message.credit
                reader.add_credit(message.credit)
        elif type(message) is CancelPartitionRequest:
            if not self.close_channel(message.channel):
                self.counters.late_messages.bump("CancelPartitionRequest")
        elif isinstance(message, ResumeConsumption | TaskEvent):
            self._told(message)
        else:
            self.request_received(message)

    def _told(self, message: ResumeConsumption | TaskEvent) -> None:
        """Pass on a message of a channel's consumer to its producer."""
        self.counters.backward_messages.bump(type(message).__name__)
        payload, self._task_event = bytes(self._task_event or b""), None
        reader = self.readers.get(message.channel)
        if reader is None:
            self.counters.late_messages.bump(type(message).__name__)
            return
        if type(message) is TaskEvent:
            self.pass_task_event(reader, message.event_type, payload)
            return
        reader.resumes()
        try:
            self.resume_consumption(reader)
        except InvalidRequest:  # the channel was not blocked
            self.counters.late_messages.bump(type(message).__name__)

    def pass_task_event(
        self, reader: CreditBasedViewReader, event_type: int, payload: bytes
    ) -> None:
        """Pass an event to the producer of a channel; without a producer the channel fails."""
        try:
            self.publish_task_event(reader, event_type, payload)
        except UnknownProducer as error:
            if self.has_producer(reader):  # it has finished meanwhile
                self.counters.late_messages.bump(TaskEvent.__name__)
            else:
                reader.fail(error)
        except SluiceError as error:
            reader.fail(error)

    @property
    @abc.abstractmethod
    def times(self) -> list[ChannelTimes]:
        """Times for which its channels send or wait."""

    @property
    def credit_wait_seconds(self) -> float:
        """The longest time since when channels that belong together have waited for credit."""
        return max((each.credit_wait_seconds() for each in self.times), default=0.0)

    @abc.abstractmethod
    def has_producer(self, reader: CreditBasedViewReader) -> bool:
        """Tell whether a channel reads a partition that is written meanwhile."""

    @abc.abstractmethod
    def publish_task_event(
        self, reader: CreditBasedViewReader, event_type: int, payload: bytes
    ) -> None:
        """Pass an event to the producer of a channel.

        Raises:
            UnknownProducer: No running producer takes it.
            SluiceError: It cannot be passed on; the channel fails.
        """

    @abc.abstractmethod
    def resume_consumption(self, reader: CreditBasedViewReader) -> None:
        """Go on with a channel after a blocking event.

        Raises:
            InvalidRequest: It is not blocked.
        """

    @abc.abstractmethod
    def request_received(self, message: Message) -> None:
        """Handle a message that only the leg of the subclass has."""

    @abc.abstractmethod
    def sent(self, reader: CreditBasedViewReader, length: int) -> None:
        """Count a data buffer that was sent."""

    def ended(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        """Free the number of a channel that has sent its end or its error."""
        if self.readers.pop(reader.channel, None) is not None:
            _uncount(reader)
        self._without_readers()
        if error is not None:
            self.counters.errors_by_code.bump(error.code.name)
            remote = self.connection.remote
            logger.warning(
                "channel %d of %s failed: %s: %s",
                reader.channel,
                remote,
                error.code.name,
                one_line(error),  # a log record must not keep the frames of the traceback alive
                extra=counted(f"channels failed because of {error.code.name}", remote)
                | {"application": self.connection.application_id, "peer": remote}
                | code_field(error),
            )

    def _without_readers(self) -> None:
        if not self.readers:
            # An idle connection may be kept for long: other connections can use its segments.
            self.read_pool.destroy()
            self._events.idle()

    @property
    @abc.abstractmethod
    def held_kind(self) -> str:
        """The things that hold segments for the consumer, in a word."""

    @abc.abstractmethod
    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the things that hold segments, and wait for the consumer."""

    @abc.abstractmethod
    def take_back(self, number: int, error: SluiceError) -> bool:
        """Close a thing that :meth:`unmoved` has named, and tell the consumer the error.

        Returns:
            False if it is gone already.
        """

    def fail_now(self, reader: CreditBasedViewReader, error: SluiceError) -> None:
        """Close a channel with an error at once, also if the consumer does not read."""
        if self.readers.get(reader.channel) is reader:
            self.counters.errors_by_code.bump(error.code.name)
            self.connection.send(error_response(reader.channel, error))
            self.close_channel(reader.channel)

    @property
    def is_busy(self) -> bool:
        """True while a channel is open."""
        return bool(self.readers)

    @property
    def holds_anything(self) -> bool:
        """Whether a channel is open; a subclass may have more."""
        return bool(self.readers)

    def writable(self) -> None:
        """Go on sending: the connection can be written again."""
        self.queue.run()

    def connection_lost(self, error: SluiceError) -> None:
        """Give everything back."""
        readers, self.readers = self.readers, {}
        for reader in readers.values():
            self.queue.remove(reader)
            _uncount(reader)
        self.queue.close()
        self.read_pool.destroy()
        self._events.lost()


def _uncount(reader: CreditBasedViewReader) -> None:
    if reader.account is not None:
        reader.account.give_back(Resource.CHANNELS)
        reader.account.give_back(Resource.METADATA_BYTES, reader.kept_bytes)
