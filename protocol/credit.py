"""Credit arithmetic of both ends of a channel: a data buffer costs 1 credit, an event costs none.

Both ends together keep the invariant ``sent ≤ granted``; the consumer grants only buffers that it
holds. Announcements are coalesced: the buffers freed since the last AddCredit are announced as one
sum, as soon as the sender has no more credit left than the sum would add, or the sum is enough for
a message. A sender with more credit goes on in the meantime, and later has several buffers to send
together; a sender without credit is told of the first free buffer.

A message takes a third of the channel's buffers at most (:func:`buffers_of_a_message`). So while
one message is being read and the credit for another is on its way, the sender has a third one to
send. With messages of nearly all buffers the two ends take turns, and each waits for the other.

A connection in watermark mode has no credit. The first credit of a request is then the most buffers
that one message may take (:class:`Uncounted`).
"""

from typing import Final

from .errors import CreditExceeded, CreditOverflow
from .limits import DEFAULT_SEGMENT_SIZE_BYTES, MAX_CREDIT, MAX_LARGE_PAYLOAD_BYTES

MAX_WITHHELD_BUFFERS: Final = MAX_LARGE_PAYLOAD_BYTES // DEFAULT_SEGMENT_SIZE_BYTES
"""Number of free buffers that is always announced: as many of the default size fill the largest
message."""

MIN_OF_A_MESSAGE_BUFFERS: Final = MAX_WITHHELD_BUFFERS // 2
"""A message may take as many buffers however few the channel has: smaller ones cost more than the
time that they save."""

MESSAGES_UNDER_WAY: Final = 3
"""Messages into which the buffers of a channel are divided."""


def buffers_of_a_message(channel_buffers: int) -> int:
    """Return the most buffers of one message of a channel that has so many in all."""
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
        """Buffers that one message may take, by the most credit that there has been."""
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
        """Note that buffers became free.

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
        """Note that data buffers were received.

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
        """Forget all credit: the buffers are given up, and the sender forgets it too."""
        self.granted = self.unannounced = 0

    def _is_due(self) -> bool:
        free = self.unannounced
        return 0 < free >= min(self.granted, buffers_of_a_message(self.granted + free))


class Uncounted(ReceiverCredit):
    """The consuming end of a channel without credit, which neither counts nor announces.

    Args:
        most_buffers: Most buffers of one message: those that the channel is sure of.
    """

    __slots__ = ()

    def free(self, buffers: int) -> bool:
        """Note that buffers became free.

        Returns:
            True if there are any: a waiter for memory must be told each time.
        """
        return buffers > 0

    def announce(self) -> int:
        """Return 0: there is never credit to announce."""
        return 0

    def used(self, channel: int, buffers: int = 1) -> bool:
        """Return False: data costs no credit, and an announcement is never due."""
        return False
