"""Credit arithmetic of both ends of a channel: 1 credit = 1 data buffer, events cost none.

The invariant that both halves keep together: ``sent ≤ granted``, where the consumer grants only
buffers it really holds. Announcements are coalesced: what became free since the last AddCredit goes
out as one sum, when the sender has no more left than it would bring, or when it is what the largest
message takes. A sender that still has more goes on meanwhile, and then has several buffers to send
together; one that has none is told of the first free buffer.

A connection in watermark mode has no credit. The first credit of a request is then the most buffers
that one message may take (:class:`Uncounted`).
"""

from typing import Final

from sluice.protocol.errors import CreditExceeded, CreditOverflow
from sluice.protocol.limits import DEFAULT_SEGMENT_SIZE_BYTES, MAX_CREDIT, MAX_LARGE_PAYLOAD_BYTES

MOST_WITHHELD_BUFFERS: Final = MAX_LARGE_PAYLOAD_BYTES // DEFAULT_SEGMENT_SIZE_BYTES
"""Free buffers that are always announced: of the default size they fill the largest message."""


class SenderCredit:
    """What the producing end may still send.

    Args:
        initial: Credit that came with the request.

    Raises:
        CreditOverflow: The request brought more than MAX_CREDIT.
    """

    __slots__ = ("available",)

    def __init__(self, initial: int) -> None:
        self.available = 0
        self.add(initial)

    def add(self, credit: int) -> None:
        """Add announced credit.

        Raises:
            CreditOverflow: The sum is above MAX_CREDIT.
        """
        total = self.available + credit
        if total > MAX_CREDIT:
            raise CreditOverflow("Channel has too much credit", value=total, limit=MAX_CREDIT)
        self.available = total


class ReceiverCredit:
    """What the consuming end has granted and not yet seen used, and what it may announce next.

    Args:
        initial: Credit granted with the request.
    """

    __slots__ = ("granted", "unannounced")

    def __init__(self, initial: int) -> None:
        self.granted = initial
        """Announced and not used by the sender."""
        self.unannounced = 0
        """Buffers that became free and are not announced."""

    def free(self, buffers: int) -> bool:
        """Note that buffers became free.

        Returns:
            True if an announcement is due.
        """
        self.unannounced += buffers
        return self._is_due()

    def announce(self) -> int:
        """Return the credit to announce now (0 for nothing) and count it as granted."""
        credit = self.unannounced
        self.granted += credit
        self.unannounced = 0
        return credit

    def used(self, channel: int, buffers: int = 1) -> bool:
        """Note that data buffers came.

        Returns:
            True if an announcement is due now, as in :meth:`free`.

        Raises:
            CreditExceeded: It was sent without credit.
        """
        if self.granted < buffers:
            raise CreditExceeded(
                f"Data without credit on channel {channel}", value=buffers, limit=self.granted
            )
        self.granted -= buffers
        return self._is_due()

    def _is_due(self) -> bool:
        return 0 < self.unannounced >= min(self.granted, MOST_WITHHELD_BUFFERS)


class Uncounted(ReceiverCredit):
    """The consuming end without credit: nothing is used up and nothing is announced.

    Args:
        most_buffers: What one message may take: the buffers that the channel is sure of.
    """

    __slots__ = ()

    def free(self, buffers: int) -> bool:
        """Note that buffers became free.

        Returns:
            True if there are any: whoever waits for memory is to be told each time.
        """
        return buffers > 0

    def announce(self) -> int:
        """There is never anything to announce."""
        return 0

    def used(self, channel: int, buffers: int = 1) -> bool:
        """Data costs nothing; an announcement is never due."""
        return False
