"""Credit arithmetic of both ends of a channel: each data buffer and each event costs 1 credit.

Both ends together keep the invariant ``sent ≤ granted``; the consumer grants only buffers that it
holds. There are two exceptions. The end of a channel is free. A priority event, which must overtake
data that has used up the credit, may be sent on account: the credit falls below 0, to
-MAX_OVERDRAFT_EVENTS at most, until its reader has taken it. So a receiver never queues more than
its buffers and these events.

Announcements are coalesced: one AddCredit announces all buffers freed since the last one. It is due
when the sender's remaining credit is at most that sum, or the sum is enough for a message. A sender
with more credit continues meanwhile, and later sends several buffers together; a sender without
credit is notified of the first free buffer.

A message takes at most a third of the channel's buffers (:func:`buffers_of_a_message`). So while
the receiver reads one message and the credit for another is on its way, the sender can send a
third. If a message took nearly all buffers, each end would wait for the other.

A connection in watermark mode has no credit. The first credit of a request then limits the buffers
of one message (:class:`Uncounted`).
"""

from typing import Final

from .errors import CreditExceeded, CreditOverflow
from .limits import DEFAULT_SEGMENT_SIZE_BYTES, MAX_CREDIT, MAX_LARGE_PAYLOAD_BYTES

MAX_WITHHELD_BUFFERS: Final = MAX_LARGE_PAYLOAD_BYTES // DEFAULT_SEGMENT_SIZE_BYTES
"""This many free buffers are always announced: at the default size they fill the largest
message."""

MIN_OF_A_MESSAGE_BUFFERS: Final = 4
"""A message may take this many buffers even if the channel has few: smaller messages cost more
time than they save."""

MAX_OVERDRAFT_EVENTS: Final = 8
"""Unread priority events that may be sent without credit."""

MESSAGES_UNDER_WAY: Final = 3
"""Number of messages that share the buffers of a channel."""


def buffers_of_a_message(channel_buffers: int) -> int:
    """Return how many of a channel's buffers one message may take."""
    share = -(-channel_buffers // MESSAGES_UNDER_WAY)
    return min(max(share, MIN_OF_A_MESSAGE_BUFFERS), MAX_WITHHELD_BUFFERS)


class SenderCredit:
    """The credit that the producing end may still use; below 0 after priority events on account.

    Args:
        initial: Credit that came with the request.

    Raises:
        CreditOverflow: The credit of the request is above MAX_CREDIT.
    """

    __slots__ = ("_most", "available", "most_of_a_message")

    def __init__(self, initial: int) -> None:
        self.available = 0
        self.most_of_a_message = MIN_OF_A_MESSAGE_BUFFERS
        """Buffers that one message may take, from the highest credit so far."""
        self._most = 0
        self.add(initial)

    def add(self, credit: int) -> None:
        """Add announced credit.

        Raises:
            CreditOverflow: The sum is above MAX_CREDIT.
        """
        total = self.available + credit
        if total > MAX_CREDIT:
            raise CreditOverflow("The channel has too much credit", value=total, limit=MAX_CREDIT)
        self.available = total
        if total > self._most:
            self._most = total
            self.most_of_a_message = buffers_of_a_message(total)


class ReceiverCredit:
    """The credit that the consuming end has granted, and the buffers that it may announce next.

    Args:
        initial: Credit granted with the request.
    """

    __slots__ = ("granted", "unannounced")

    def __init__(self, initial: int) -> None:
        self.granted = initial
        """Credit that is announced and not yet used by the sender."""
        self.unannounced = 0
        """Free buffers that are not announced yet."""

    def free(self, buffers: int) -> bool:
        """Count buffers that became free.

        Returns:
            True if an announcement is due.
        """
        self.unannounced += buffers
        return self._is_due()

    def announce(self) -> int:
        """Return the credit to announce now, which may be 0, and count it as granted."""
        credit = self.unannounced
        self.granted += credit
        self.unannounced = 0
        return credit

    def used(self, channel: int, buffers: int = 1) -> bool:
        """Count data buffers, or an event, that were received.

        Returns:
            True if an announcement is due now, as in :meth:`free`.

        Raises:
            CreditExceeded: They were sent without credit.
        """
        if self.granted < buffers:
            raise CreditExceeded(
                f"Data or event without credit on channel {channel}",
                value=buffers,
                limit=max(self.granted, 0),
            )
        self.granted -= buffers
        return self._is_due()

    def overdraw(self, channel: int) -> None:
        """Count a priority event that was received, with credit or on account.

        Raises:
            CreditExceeded: MAX_OVERDRAFT_EVENTS unread ones were sent on account already.
        """
        if self.granted <= -MAX_OVERDRAFT_EVENTS:
            raise CreditExceeded(
                f"Priority event without credit on channel {channel}",
                value=1 - self.granted,
                limit=MAX_OVERDRAFT_EVENTS,
            )
        self.granted -= 1

    def void(self) -> None:
        """Drop all credit: the buffers are released, and the sender drops it too."""
        self.granted = self.unannounced = 0

    def _is_due(self) -> bool:
        free = self.unannounced
        return 0 < free >= min(self.granted, buffers_of_a_message(self.granted + free))


class Uncounted(ReceiverCredit):
    """The consuming end of a channel without credit, which neither counts nor announces.

    Args:
        most_buffers: Limit of the buffers of one message: those reserved for the channel.
    """

    __slots__ = ()

    def free(self, buffers: int) -> bool:
        """Ignore buffers that became free.

        Returns:
            True if there are any: a waiter for memory must be notified each time.
        """
        return buffers > 0

    def announce(self) -> int:
        """Return 0: there is no credit to announce."""
        return 0

    def used(self, channel: int, buffers: int = 1) -> bool:
        """Return False: data costs no credit, and an announcement is never due."""
        return False

    def overdraw(self, channel: int) -> None:
        """Ignore a priority event: the receiver stops reading instead."""
