"""Lag of the event loop: how late its timers fire."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from ...histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_SECONDS: Final = 1.0
"""At one timer a second the cost is too small to be measured."""

WINDOW: Final = 60
"""Measurements over which the maximum is taken: a minute, longer than scrapers usually pause."""


class EventLoopLag:
    """Measures the lag of the running event loop, once a second.

    The maximum is that of a window, not that since the last look, because there may be several
    readers.
    """

    def __init__(self) -> None:
        self.lags = Histogram()
        """All lags."""
        self.on_measured: Callable[[float], None] = _nobody
        """Called with each lag."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last_seconds(self) -> float:
        """The last lag measured; 0 before the first."""
        return self._recent[-1] if self._recent else 0.0

    @property
    def max_seconds(self) -> float:
        """The longest lag of the last ``WINDOW`` measurements."""
        return max(self._recent, default=0.0)

    def start(self) -> None:
        """Begin to measure the running event loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + PERIOD_SECONDS
        self._timer = loop.call_at(self._due, self._measure)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        self.on_measured = _nobody
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self) -> None:
        lag = max(0.0, asyncio.get_running_loop().time() - self._due)
        self._recent.append(lag)
        self.lags.record(lag)
        self.on_measured(lag)
        self.start()


def _nobody(lag_seconds: float) -> None:
    """Ignore: no part of the TaskManager samples."""
