"""What the channels of a serving leg do with their time.

A channel sends, or it waits: for data, with credit left, or for credit, with data there. What
belongs together (the channels of a gate, those of a peer connection) is seen as one as well: it is
*busy* while one of its channels sends; else *idle* while one waits for data, because then its
consumer waits; else *back-pressured*: all that is open waits for credit.

The clock is read when a channel begins or ceases to send, not for each buffer.
"""

from time import monotonic
from typing import Final

from sluice.shuffle.counters import ServingSeconds

WAITING_FOR_DATA: Final = 0
WAITING_FOR_CREDIT: Final = 1
SENDING: Final = 2
"""What a channel does; plain numbers, which index :attr:`ChannelTimes.counts`."""


class ChannelTimes:
    """The time of channels that belong together.

    Args:
        total: Where the sums go when these channels are no more.

    Attributes:
        counts: How many channels there are now of each activity.
    """

    __slots__ = ("_seconds", "_since", "_total", "counts")

    def __init__(self, total: ServingSeconds) -> None:
        self.counts = [0, 0, 0]
        self._total: ServingSeconds | None = total
        self._seconds = ServingSeconds()
        self._since = 0.0

    def open(self, activity: int) -> None:
        """There is one channel more."""
        self._pass()
        self.counts[activity] += 1

    def change(self, before: int, after: int) -> None:
        """A channel does something else now."""
        self._pass()
        self.counts[before] -= 1
        self.counts[after] += 1

    def close(self, activity: int) -> None:
        """There is one channel less."""
        self._pass()
        self.counts[activity] -= 1

    def seconds(self) -> ServingSeconds:
        """Return the sums up to now; the caller changes nothing in them."""
        self._pass()
        return self._seconds

    def busy_seconds(self) -> float:
        """Return the time so far in which something was open and nothing waited for data."""
        seconds = self.seconds()
        return seconds.busy + seconds.back_pressured

    def end(self) -> None:
        """Nothing is open any more: add the sums to the total. Idempotent."""
        total, self._total = self._total, None
        if total is not None:
            self._pass()
            total.add(self._seconds)

    def _pass(self) -> None:
        """Time has passed since the last change: count it for what was done in it."""
        now = monotonic()
        passed = now - self._since
        self._since = now
        wait_for_data, wait_for_credit, sending = self.counts
        seconds = self._seconds
        if wait_for_data:
            seconds.data_wait += wait_for_data * passed
        if wait_for_credit:
            seconds.credit_wait += wait_for_credit * passed
        if sending:
            seconds.busy += passed
        elif wait_for_data:
            seconds.idle += passed
        elif wait_for_credit:
            seconds.back_pressured += passed
