"""Map outputs with secured regions, and the connection that writes each of them.

A map output whose producer is away, because its connection was lost or the process is a new one, is
kept until a deadline: the producer may come back and go on. Readers see nothing of it.

A producer that streams keeps nothing to send again, so a region that others follow is secured: it
gets a row in the journal, and an answer. The last one stays with the producer until the commit,
whose row replaces all of these, so that a map output of one region costs one row.
"""

import asyncio
import logging
from collections.abc import Callable

from ...names import MapAttemptKey
from ..store.shuffle_store import ShuffleStore

logger = logging.getLogger(__name__)


class ResumableOutputs:
    """The registry of map outputs that can be resumed.

    Args:
        store: Has the secured regions.
        timeout_seconds: Time for which a map output is kept while its producer is away.
    """

    def __init__(self, store: ShuffleStore, timeout_seconds: float) -> None:
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._deadlines: dict[MapAttemptKey, asyncio.TimerHandle] = {}
        self._writers: dict[MapAttemptKey, Callable[[], None]] = {}
        for output in store.open_outputs():
            self.park(MapAttemptKey(output.key, output.map_attempt_id))

    @property
    def parked(self) -> int:
        """Map outputs whose producer is away."""
        return len(self._deadlines)

    def attach(self, attempt: MapAttemptKey, take_over: Callable[[], None]) -> None:
        """Make one connection the writer of a map output.

        The writer before loses it: the producer has come back on another connection.

        Args:
            attempt: The map attempt.
            take_over: Called when another connection takes the map output over.
        """
        deadline = self._deadlines.pop(attempt, None)
        if deadline is not None:
            deadline.cancel()
        before = self._writers.pop(attempt, None)
        if before is not None:
            before()
        self._writers[attempt] = take_over

    def park(self, attempt: MapAttemptKey) -> None:
        """Begin the deadline of a map output whose producer is away."""
        self._writers.pop(attempt, None)
        if attempt not in self._deadlines:
            loop = asyncio.get_running_loop()
            self._deadlines[attempt] = loop.call_later(self._timeout_seconds, self._expire, attempt)

    def forget(self, attempt: MapAttemptKey, *, drop: bool) -> None:
        """Forget a map output that is committed, or given up by its producer.

        Args:
            attempt: The map attempt.
            drop: Whether its secured regions are given up.
        """
        self._writers.pop(attempt, None)
        deadline = self._deadlines.pop(attempt, None)
        if deadline is not None:
            deadline.cancel()
        if drop:
            self._store.drop_open(attempt)

    def close(self) -> None:
        """Stop all deadlines; secured regions stay for the next start."""
        for deadline in self._deadlines.values():
            deadline.cancel()
        self._deadlines.clear()
        self._writers.clear()

    def _expire(self, attempt: MapAttemptKey) -> None:
        del self._deadlines[attempt]
        if self._store.open_output(attempt) is None:
            return  # it was released, or came here as a copy
        self._store.drop_open(attempt)
        logger.info(
            "map attempt %d of %s is given up: its producer was away for %g s",
            attempt.map_attempt_id,
            attempt.shuffle,
            self._timeout_seconds,
        )
