"""Times for which the channels of a serving leg send or wait.

A channel sends, or it waits: for data, with credit left, or for credit, with data there. Channels
that belong together (those of a gate, those of a peer connection) have a common state as well: it
is *busy* while one of them sends; else *idle* while one waits for data, because then the consumer
waits; else *back-pressured*: all open channels wait for credit.

The clock is read when a channel begins or ceases to send, not for each buffer.
"""

from copy import copy
from time import monotonic
from typing import Final

from ...counters import ServingSeconds
from ...histogram import Histogram

WAITING_FOR_DATA: Final = 0
WAITING_FOR_CREDIT: Final = 1
SENDING: Final = 2
"""The activities of a channel; plain numbers, which index :attr:`ChannelTimes.counts`."""


class ChannelTimes:
    """Measures the times of channels that belong together.

    Args:
        total: Takes the sums when the last of these channels is closed for good.
        credit_waits: Takes each wait for credit when it ends.

    Attributes:
        counts: Number of channels of each activity now.
    """

    __slots__ = ("_seconds", "_since", "_total", "counts", "credit_waits")

    def __init__(self, total: ServingSeconds, credit_waits: Histogram) -> None:
        self.counts = [0, 0, 0]
        self.credit_waits = credit_waits
        self._total: ServingSeconds | None = total
        self._seconds = ServingSeconds()
        self._since = 0.0

    def open(self, activity: int) -> None:
        """Count a channel that has opened."""
        self._pass()
        self.counts[activity] += 1

    def change(self, before: int, after: int, since: float) -> float:
        """Count a channel that has changed its activity.

        Args:
            before: Its activity until now.
            after: Its activity from now on.
            since: The time at which ``before`` began.

        Returns:
            The time now.
        """
        self._pass()
        now = self._since
        self.counts[before] -= 1
        self.counts[after] += 1
        if before == WAITING_FOR_CREDIT:
            self.credit_waits.record(now - since)
        return now

    def close(self, activity: int, since: float) -> None:
        """Count a channel that has closed, and whose activity began at a time."""
        self._pass()
        self.counts[activity] -= 1
        if activity == WAITING_FOR_CREDIT:
            self.credit_waits.record(self._since - since)

    @property
    def changed_at(self) -> float:
        """Time of the last change, as of ``time.monotonic()``: since then the counts are these."""
        return self._since

    def credit_wait_seconds(self, unopened: int = 0) -> float:
        """Return the time since when all channels wait for credit; 0 if one does not.

        Args:
            unopened: Channels that wait for data because their sources are not asked yet.
        """
        wait_for_data, wait_for_credit, sending = self.counts
        if wait_for_data > unopened or sending or not wait_for_credit:
            return 0.0
        return max(0.0, monotonic() - self._since)

    def seconds(self) -> ServingSeconds:
        """Return the sums up to now; the caller must not change them."""
        counted, since = self._seconds, self._since
        self._seconds = copy(counted)
        self._pass()
        taken, self._seconds, self._since = self._seconds, counted, since
        return taken

    def end(self) -> None:
        """Add the sums to the total, when no channel will open again. Idempotent."""
        total, self._total = self._total, None
        if total is not None:
            self._pass()
            total.add(self._seconds)

    def _pass(self) -> None:
        """Add the time since the last change to the sums of the activities in it."""
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
