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

from typing import TYPE_CHECKING

from ....protocol.credit import SenderCredit
from ....protocol.errors import SluiceError
from ....protocol.events import is_end_of_partition
from ....protocol.limits import MAX_U32
from ....protocol.schema import BLOCKING_EVENT, DATA, PRIORITY_EVENT
from ...counters import ServingSeconds
from ...errors import detached
from ...partition.view import OutgoingBuffer, SubpartitionView
from .channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA, ChannelTimes
from .stored_partition_view import StoredPartitionView

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bounds.accounts import Account


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
        "_notify",
        "account",
        "activity",
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
        self._notify = notify
        self.times: ChannelTimes | None = times or ChannelTimes(ServingSeconds())
        """None once it is released."""
        self.activity = WAITING_FOR_DATA
        self.times.open(self.activity)

    def data_available(self) -> None:
        """Notify the queue: the view has something now, or has failed (the view's listener)."""
        self._notify(self)

    def attach(self, view: SubpartitionView) -> None:
        """Give the reader its view."""
        self.view = view
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
        """Tell a view whose messages take several buffers how many they may take."""
        view = self.view
        if isinstance(view, StoredPartitionView):
            view.limit_message(self.credit.most_of_a_message)

    def is_available(self) -> bool:
        """True if a turn would send or report something."""
        view = self.view
        if view is None:
            return self.failure is not None
        return view.is_available(self.credit.available) or (
            self.failure is not None or view.failure is not None
        )

    def next_buffer(self) -> OutgoingBuffer | None:
        """Take the next buffer, group of buffers, or event of the view.

        Each buffer costs one credit, and so does each event except the end.

        Raises:
            SluiceError: The channel failed.
        """
        if self.failure is not None:
            raise self.failure
        if self.view is None:
            return None
        buffer = self.view.next_buffer(self.credit.available)
        if buffer is None:
            return None
        if buffer.data_type == DATA:
            length = len(buffer.payload)
            buffers = 1 if length <= self.credit_bytes else -(-length // self.credit_bytes)
            self.credit.available -= buffers
            self.bytes_out += length
        elif not is_end_of_partition(buffer.payload):
            self.credit.available -= 1
        return buffer

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
            self.times.change(before, activity)
            self.activity = activity

    def release(self) -> None:
        """Release the view. Idempotent."""
        self._notify = _nobody
        times, self.times = self.times, None
        if times is not None:
            times.close(self.activity)
        view, self.view = self.view, None
        if view is not None:
            view.release()


class UncreditedViewReader(CreditBasedViewReader):
    """Reads a view as far as the connection can be written: credit is never used up.

    The credit that came with the request stays; it bounds the length of one message.
    """

    __slots__ = ()

    def next_buffer(self) -> OutgoingBuffer | None:
        """Take the next buffer, or group of buffers, of the view.

        Raises:
            SluiceError: The channel failed.
        """
        most = self.credit.available
        try:
            return super().next_buffer()
        finally:
            self.credit.available = most

    def _limit_messages(self) -> None:
        """Limit nothing: a message may take all buffers that the channel is sure to have."""


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

    def next_buffer(self) -> OutgoingBuffer | None:
        """Take the next buffer, or group of buffers, of the view; its message has the backlog.

        Raises:
            SluiceError: The channel failed.
        """
        buffer = super().next_buffer()
        if buffer is not None and buffer.data_type != PRIORITY_EVENT:
            self._told = self.view is not None and self.view.backlog > 0
            self._blocked = buffer.data_type == BLOCKING_EVENT
        return buffer

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
