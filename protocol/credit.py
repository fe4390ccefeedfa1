"""Credit arithmetic of both ends of a channel: a data buffer costs 1 credit, an event costs none.

Both ends together keep the invariant ``sent ≤ granted``; the consumer grants only buffers that it
holds. Announcements are coalesced: one AddCredit announces all buffers freed since the last one. It
is due when the sender's remaining credit is at most that sum, or the sum is enough for a message.
A sender with more credit continues meanwhile, and later sends several buffers together; a sender
without credit is notified of the first free buffer.

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

MIN_OF_A_MESSAGE_BUFFERS: Final = MAX_WITHHELD_BUFFERS // 2
"""A message may take this many buffers even if the channel has few: smaller messages cost more
time than they save."""

MESSAGES_UNDER_WAY: Final = 3
"""Number of messages that share the buffers of a channel."""


def buffers_of_a_message(channel_buffers: int) -> int:
    """Return how many of a channel's buffers one message may take."""
    share = -(-channel_buffers // MESSAGES_UNDER_WAY)
    return min(max(share, MIN_OF_A_MESSAGE_BUFFERS), MAX_WITHHELD_BUFFERS)


class SenderCredit:
    """The credit that the producing end may still use.

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
        """Count data buffers that were received.

        Returns:
            True if an announcement is due now, as in :meth:`free`.

        Raises:
            CreditExceeded: They were sent without credit.
        """
        if self.granted < buffers:
            raise CreditExceeded(
                f"Data without credit on channel {channel}", value=buffers, limit=self.granted
            )
        self.granted -= buffers
        return self._is_due()

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
