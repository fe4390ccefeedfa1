"""The output flusher, which flushes buffers that fill slowly at regular intervals.

One flusher serves all partitions of a task or client. It only notifies: a flush has no effect if
the reader knows of data or has no credit, so it is harmless under back pressure.

No timer runs while no buffer is open. A partition reports an open buffer with
:meth:`OutputFlusher.arm`; from then on it is flushed every interval until no buffer of it is open.
A buffer that stays open, read to its last byte, is finished after some intervals: an idle channel
costs neither a timer nor memory.
"""

import asyncio
import logging
from typing import Final, Protocol

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_SECONDS: Final = 0.1

IDLE_INTERVALS: Final = 10
"""Intervals without a new byte in any open buffer of a partition, after which these buffers are
finished: a second at the default, long enough that a steady trickle of records shares a buffer."""


class Flushable(Protocol):
    """A partition, as the flusher sees it."""

    def flush_open(self) -> int:
        """Flush; return how many open buffers have unread bytes."""

    def finish_read_buffers(self) -> None:
        """Finish the open buffers of which every byte was read."""

    @property
    def has_open_buffers(self) -> bool:
        """Whether a further flush may have an effect."""


class OutputFlusher:
    """Flushes the partitions that have open buffers, every interval.

    Args:
        interval_seconds: Time after which open buffers are flushed. 0: the writer flushes after
            every record and the flusher does nothing; negative: only full buffers are sent.
    """

    def __init__(self, interval_seconds: float = DEFAULT_INTERVAL_SECONDS) -> None:
        self.interval_seconds: Final = interval_seconds
        self._partitions: dict[Flushable, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def is_running(self) -> bool:
        """Whether a timer is set."""
        return self._timer is not None

    def arm(self, partition: Flushable) -> None:
        """Flush a partition, which has an open buffer, from the next interval on."""
        if self.interval_seconds <= 0 or self._closed:
            return
        self._partitions[partition] = 0
        if self._timer is None:
            self._set_timer()

    def remove(self, partition: Flushable) -> None:
        """Stop flushing a partition. Idempotent."""
        self._partitions.pop(partition, None)

    def close(self) -> None:
        """Stop for good. Idempotent."""
        self._closed = True
        self._partitions.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.interval_seconds, self._flush)

    def _flush(self) -> None:
        self._timer = None
        partitions = self._partitions
        for partition, idle_intervals in list(partitions.items()):
            try:
                idle = 0 if partition.flush_open() else idle_intervals + 1
                if idle >= IDLE_INTERVALS:
                    partition.finish_read_buffers()
                is_open = partition.has_open_buffers
            except Exception:
                # A bug in one partition, or in the reader it notifies, must not stop the others.
                logger.exception("flushing a partition failed")
                is_open = False
            if partition in partitions:
                if is_open:
                    partitions[partition] = idle
                else:
                    del partitions[partition]
        if partitions and self._timer is None:
            self._set_timer()
