"""Whether the network memory is enough for everybody who wants some of it."""

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

WARNING_INTERVAL_SECONDS: Final = 60.0
"""Least time between two warnings."""


class MemoryDemand:
    """Compares what is wanted with what there is, and says so in the log, seldom.

    Too high a demand breaks nothing: the pools get less than they could use, and work slows down.

    Args:
        total_segments: What there is.
        clock: Seconds that only grow.

    Attributes:
        wanted_segments: What all pools and exclusive requests could use now.
        warnings: Warnings logged; only grows.
    """

    __slots__ = (
        "_clock",
        "_next_warning_seconds",
        "_warned_of",
        "total_segments",
        "wanted_segments",
        "warnings",
    )

    def __init__(self, total_segments: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_segments: Final = total_segments
        self.wanted_segments = 0
        self.warnings = 0
        self._clock = clock
        self._warned_of = 0  # the highest demand that was warned of since all was well; 0: none
        self._next_warning_seconds = float("-inf")

    @property
    def is_exceeded(self) -> bool:
        """Whether more is wanted than there is."""
        return self.wanted_segments > self.total_segments

    def update(self, wanted_segments: int) -> None:
        """Take note of the demand.

        Warns when it exceeds the total, again when it has grown further, at most once in
        ``WARNING_INTERVAL_SECONDS``. Says once that all is well again, if a warning came before.
        """
        self.wanted_segments = wanted_segments
        if wanted_segments > self.total_segments:
            if wanted_segments > self._warned_of:
                self._warn()
        elif self._warned_of:
            self._warned_of = 0
            logger.info(
                "network memory: demand is back to normal, %d of %d segments are wanted",
                wanted_segments,
                self.total_segments,
            )

    def _warn(self) -> None:
        now = self._clock()
        if now < self._next_warning_seconds:
            return
        self._next_warning_seconds = now + WARNING_INTERVAL_SECONDS
        self._warned_of = self.wanted_segments
        self.warnings += 1
        logger.warning(
            "network memory: %d segments are wanted and there are %d (%d %%): each pool gets less"
            " than it could use, and transfers slow down; raise network_segments of this"
            " TaskManager, or run fewer tasks at once on it, or lower the buffers per channel",
            self.wanted_segments,
            self.total_segments,
            self.wanted_segments * 100 // self.total_segments,
        )
