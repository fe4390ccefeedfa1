"""One channel on the serving side: a view, its credit and its sequence numbers.

A consumer learns of waiting data by the backlog that its buffers carry, and grants credit for it. A
channel with exclusive buffers on the other side gets credit whenever one of these is free again, so
its sender needs no other message. A channel requested with **credit 0** has no exclusive buffers
(:class:`AnnouncingViewReader`): without credit nothing can be sent that would carry a backlog, and
the backlog is announced in a message of its own. Whether it is announced when the reader rests
depends on one flag, whether the consumer has been *told* of waiting data:

============================================= =========================== ==========================
event                                         not told                    told
============================================= =========================== ==========================
rests without credit, and data waits          announces; told             nothing
one is sent, and data waits behind it         told                        told
one is sent, and no data is behind it         not told                    not told
resumes after a blocking event                no credit; not told         no credit; not told
everything else                               nothing                     nothing
============================================= =========================== ==========================

Events are data here, and *one* is a buffer or event; a priority event changes nothing. So one
announcement stands for all data until a buffer was sent that left nothing behind, and each
buffer with a backlog stands for the next announcement. At a blocking event the consumer gives its
floating buffers to its other channels, which must bring their own barriers: credit that was granted
before ResumeConsumption is void.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....protocol.credit import SenderCredit
from ....protocol.errors import SluiceError
from ....protocol.events import encode_end_of_partition, is_end_of_partition
from ....protocol.limits import MAX_U32
from ....protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from ...counters import ServingSeconds
from ...errors import detached
from ...histogram import Histogram
from ...partition.view import OutgoingBuffer, SubpartitionView, release_all
from .channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA, ChannelTimes
from .stored_partition_view import StoredPartitionView

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bounds.accounts import Account

MAX_PIECES: Final = 64
"""Maximum pieces of a message: each is one entry of the system call."""


class CreditBasedViewReader:
    """Reads a view as far as the credit of its channel allows.

    The reader exists from the request on; it gets its view when the partition is found.

    Args:
        channel: Number chosen by the consumer.
        initial_credit: Credit that came with the request.
        notify: Called when the reader may have something to send; the queue of readers.
        credit_bytes: Bytes that one credit pays for.
        times: Counts its waits, with those of other readers; by default they are not counted.
    """

    __slots__ = (
        "_connection_limit_bytes",
        "_message_limit_bytes",
        "_notify",
        "_since",
        "account",
        "activity",
        "buffers_out",
        "bytes_out",
        "channel",
        "checksums",
        "credit",
        "credit_bytes",
        "failure",
        "kept_bytes",
        "queued",
        "sequence_number",
        "times",
        "view",
    )

    def __init__(
        self,
        channel: int,
        initial_credit: int,
        notify: "Callable[[CreditBasedViewReader], None]",
        credit_bytes: int,
        times: ChannelTimes | None = None,
    ) -> None:
        self.channel = channel
        self.credit = SenderCredit(initial_credit)
        self.sequence_number = 0
        """Sequence number of the next message."""
        self.account: Account | None = None
        """The account in which the channel is counted."""
        self.kept_bytes = 0
        """Bytes charged to it for the channel's request."""
        self.view: SubpartitionView | None = None
        self.failure: SluiceError | None = None
        self.queued = False
        """True while the reader is in the queue; only the queue sets it."""
        self.credit_bytes = credit_bytes
        self.checksums = False
        """Whether its messages carry checksums."""
        self.bytes_out = 0
        """Bytes of data that were sent."""
        self.buffers_out = 0
        """Credit that they cost."""
        self._connection_limit_bytes = self._message_limit_bytes = 0
        self._notify = notify
        self.times: ChannelTimes | None = times or ChannelTimes(ServingSeconds(), Histogram())
        """None once it is released."""
        self._since = 0.0
        self.activity = WAITING_FOR_DATA
        self.times.open(self.activity)

    def data_available(self) -> None:
        """Notify the queue: the view has something now, or has failed (the view's listener)."""
        self._notify(self)

    def attach(self, view: SubpartitionView, message_bytes: int = 0) -> None:
        """Give the reader its view.

        Args:
            view: The view.
            message_bytes: Maximum bytes of a message that joins buffers; 0: buffers are not joined.
        """
        self.view = view
        self._connection_limit_bytes = message_bytes
        self._limit_messages()
        self._notify(self)

    def fail(self, error: SluiceError) -> None:
        """End the channel with an error; it is reported in the reader's turn."""
        self.failure = detached(error)
        self._notify(self)

    def add_credit(self, credit: int) -> None:
        """Add credit of the consumer.

        Raises:
            CreditOverflow: The sum is too large to be counted.
        """
        most = self.credit.most_of_a_message
        self.credit.add(credit)
        if self.credit.most_of_a_message != most:
            self._limit_messages()
        self._notify(self)

    def _limit_messages(self) -> None:
        """Limit the buffers of a message, here and in a view whose buffers cost several credits."""
        buffers = self.credit.most_of_a_message
        self._message_limit_bytes = min(self._connection_limit_bytes, buffers * self.credit_bytes)
        view = self.view
        if isinstance(view, StoredPartitionView):
            view.limit_message(buffers)

    def is_available(self) -> bool:
        """True if a turn would send or report something."""
        view = self.view
        if view is None:
            return self.failure is not None
        return view.is_available(self.credit.available) or (
            self.failure is not None or view.failure is not None
        )

    def next_message(self) -> Sequence[OutgoingBuffer]:
        """Take an event of the view, or data for one message: its pieces, in their order.

        Data costs as many credits as buffers that it fills, at least one. An event costs one; the
        end is free, and has the totals of what was sent.

        Returns:
            Nothing if the view has nothing for the credit.

        Raises:
            SluiceError: The channel failed.
        """
        if self.failure is not None:
            raise self.failure
        view = self.view
        if view is None:
            return ()
        credit = self.credit
        buffer = view.next_buffer(credit.available)
        if buffer is None:
            return ()
        if buffer.data_type != DATA:
            if is_end_of_partition(buffer.payload):
                end = encode_end_of_partition(self.bytes_out, self.buffers_out)
                return (OutgoingBuffer(end, None, EVENT),)
            credit.available -= 1
            return (buffer,)
        length = len(buffer.payload)
        message = [buffer]
        most_bytes = min(self._message_limit_bytes, credit.available * self.credit_bytes)
        try:
            while length < most_bytes and len(message) < MAX_PIECES:
                more = view.take_more(most_bytes - length)
                if more is None:
                    break
                message.append(more)
                length += len(more.payload)
        except BaseException:
            release_all(message)
            raise
        buffers = 1 if length <= self.credit_bytes else -(-length // self.credit_bytes)
        credit.available -= buffers
        self.bytes_out += length
        self.buffers_out += buffers
        return message

    def next_sequence_number(self) -> int:
        """Number the next message."""
        number = self.sequence_number
        self.sequence_number = (number + 1) & MAX_U32
        return number

    def begins(self) -> None:
        """Note that the reader is in the queue from now on: it sends."""
        self._does(SENDING)

    def rests(self) -> int:
        """Note that the reader leaves the queue, and whether it waits for data or for credit.

        Returns:
            The backlog to announce to the consumer; 0 for no announcement.
        """
        view = self.view
        if self.credit.available <= 0 and view is not None and view.is_available(1):
            self._does(WAITING_FOR_CREDIT)
        else:
            self._does(WAITING_FOR_DATA)
        return 0

    def resumes(self) -> None:
        """Note that the consumer asks to go on after a blocking event; the view is resumed next."""

    def _does(self, activity: int) -> None:
        before = self.activity
        if activity != before and self.times is not None:
            self._since = self.times.change(before, activity, self._since)
            self.activity = activity

    def release(self) -> None:
        """Release the view. Idempotent."""
        self._notify = _nobody
        times, self.times = self.times, None
        if times is not None:
            times.close(self.activity, self._since)
        view, self.view = self.view, None
        if view is not None:
            view.release()


class UncreditedViewReader(CreditBasedViewReader):
    """Reads a view as far as the connection can be written: credit is never used up.

    The credit that came with the request stays; it bounds the length of one message.
    """

    __slots__ = ()

    def next_message(self) -> Sequence[OutgoingBuffer]:
        """Take an event of the view, or data for one message; credit is not used up.

        Raises:
            SluiceError: The channel failed.
        """
        most = self.credit.available
        try:
            return super().next_message()
        finally:
            self.credit.available = most

    def _limit_messages(self) -> None:
        """Let a message take all buffers that the channel is sure to have."""
        self._message_limit_bytes = self._connection_limit_bytes


class AnnouncingViewReader(CreditBasedViewReader):
    """Reads for a channel that was requested with credit 0, and announces its backlog.

    Args:
        channel: Number chosen by the consumer.
        initial_credit: 0.
        notify: As of the base class.
        credit_bytes: As of the base class.
        times: As of the base class.
    """

    __slots__ = ("_blocked", "_told")

    def __init__(
        self,
        channel: int,
        initial_credit: int,
        notify: "Callable[[CreditBasedViewReader], None]",
        credit_bytes: int,
        times: ChannelTimes | None = None,
    ) -> None:
        super().__init__(channel, initial_credit, notify, credit_bytes, times)
        self._told = False
        self._blocked = False  # since a blocking event was taken

    def next_message(self) -> Sequence[OutgoingBuffer]:
        """Take an event of the view, or data for one message, which has the backlog.

        Raises:
            SluiceError: The channel failed.
        """
        message = super().next_message()
        if message and message[0].data_type != PRIORITY_EVENT:
            self._told = self.view is not None and self.view.backlog > 0
            self._blocked = message[0].data_type == BLOCKING_EVENT
        return message

    def rests(self) -> int:
        """Note that the reader leaves the queue; return the backlog to announce, or 0."""
        super().rests()
        view = self.view
        if self._told or view is None or self.activity != WAITING_FOR_CREDIT:
            return 0
        backlog = view.backlog  # 0 if only a priority event waits
        self._told = backlog > 0
        return backlog

    def resumes(self) -> None:
        """Forget the credit: the consumer gave its buffers away when the blocking event came."""
        if self._blocked:
            self._blocked = self._told = False
            self.credit.available = 0


def _nobody(reader: CreditBasedViewReader) -> None:
    """Tell nobody: the reader is released."""
