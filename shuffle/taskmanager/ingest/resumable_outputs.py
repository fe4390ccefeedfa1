"""Map outputs with secured regions, and the connection that writes each of them.

A map output whose producer is away, because its connection was lost or the TaskManager restarted,
is kept until a deadline: the producer may reconnect and resume it. Readers do not see it.

A producer that streams keeps nothing to send again, so every region but the last is secured: it
gets a row in the journal, and an answer. The row of the commit replaces these rows. So a map output
of one region costs one row.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from ....protocol.errors import NotPermitted, SluiceError
from ...names import MapAttemptKey
from ..store.errors import ReleasedDuringCommit
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import Region, release_regions

logger = logging.getLogger(__name__)


class ResumableOutputs:
    """The registry of map outputs that can be resumed.

    Args:
        store: Has the secured regions.
        timeout_seconds: Time for which a map output is kept while its producer is away.
    """

    def __init__(self, store: ShuffleStore, timeout_seconds: float) -> None:
        self.store: Final = store
        self._timeout_seconds = timeout_seconds
        self._deadlines: dict[MapAttemptKey, asyncio.TimerHandle] = {}
        self._writers: dict[MapAttemptKey, tuple[str, Callable[[], None]]] = {}
        """The process of the connection that writes a map output, and its callback."""
        for output in store.open_outputs():
            self.park(MapAttemptKey(output.key, output.map_attempt_id))

    @property
    def parked(self) -> int:
        """Map outputs whose producer is away."""
        return len(self._deadlines)

    def attach(
        self, attempt: MapAttemptKey, process: str, on_taken_over: Callable[[], None]
    ) -> "Resumption":
        """Make one connection the writer of a map output.

        The writer before loses it: the producer has come back on another connection.

        Args:
            attempt: The map attempt.
            process: The random text of the connection's process; empty: unknown.
            on_taken_over: Called when another connection takes the map output over.

        Raises:
            NotPermitted: Another process has begun the map output.
        """
        begun = self.store.open_output(attempt)
        before = self._writers.get(attempt)
        owner = begun.process if begun is not None else "" if before is None else before[0]
        if owner and owner != process:
            raise NotPermitted(
                "Another process of the application writes this map output",
                reason="other process",
                value=f"map attempt {attempt.map_attempt_id}",
            )
        deadline = self._deadlines.pop(attempt, None)
        if deadline is not None:
            deadline.cancel()
        self._writers.pop(attempt, None)
        if before is not None:
            before[1]()
        self._writers[attempt] = process, on_taken_over
        return Resumption(self, attempt, process)

    def park(self, attempt: MapAttemptKey) -> None:
        """Begin the deadline of a map output whose producer is away."""
        self._writers.pop(attempt, None)
        if attempt not in self._deadlines:
            loop = asyncio.get_running_loop()
            self._deadlines[attempt] = loop.call_later(self._timeout_seconds, self._expire, attempt)

    def forget(self, attempt: MapAttemptKey, *, drop: bool) -> None:
        """Forget a map output that is committed or aborted.

        Args:
            attempt: The map attempt.
            drop: Whether its secured regions are released.
        """
        self._writers.pop(attempt, None)
        deadline = self._deadlines.pop(attempt, None)
        if deadline is not None:
            deadline.cancel()
        if drop:
            self.store.drop_open(attempt)

    def close(self) -> None:
        """Stop all deadlines; secured regions stay for the next start."""
        for deadline in self._deadlines.values():
            deadline.cancel()
        self._deadlines.clear()
        self._writers.clear()

    def _expire(self, attempt: MapAttemptKey) -> None:
        del self._deadlines[attempt]
        if self.store.open_output(attempt) is None:
            return  # it was released, or came here as a copy
        self.store.drop_open(attempt)
        logger.info(
            "map attempt %d of %s dropped: its producer was away for %g s",
            attempt.map_attempt_id,
            attempt.shuffle,
            self._timeout_seconds,
            extra=attempt.log_fields,
        )


class Resumption:
    """The secured regions of a map output while one connection writes it.

    Made by :meth:`ResumableOutputs.attach`. Ends with a takeover, :meth:`park` or :meth:`forget`.
    """

    def __init__(self, outputs: ResumableOutputs, attempt: MapAttemptKey, process: str) -> None:
        self._outputs: Final = outputs
        self._attempt: Final = attempt
        self._process: Final = process
        secured = outputs.store.open_output(attempt)
        self.regions = 0 if secured is None else len(secured.regions)
        """Secured regions, including those being secured."""
        self.total_bytes: Final = 0 if secured is None else secured.total_bytes
        """Bytes of the regions that were secured before."""

    async def secure(self, num_subpartitions: int, regions: list[Region]) -> None:
        """Make the next regions survive the process. They belong to the store, or are released.

        Raises:
            SluiceError: They could not be secured.

        Cancellation: safe; the write to the journal continues.
        """
        if not regions:
            return  # they are secured: a row for each repetition would fill the journal
        try:
            secured = self._outputs.store.secure(
                self._attempt, num_subpartitions, regions, self._process
            )
        except SluiceError:
            release_regions(regions)
            raise
        secured.add_done_callback(partial(_release_unsecured, regions))
        self.regions += len(regions)
        await asyncio.shield(secured)

    def take(self, written: list[Region]) -> list[Region]:
        """Return all regions for the commit: the secured ones, then ``written``.

        Raises:
            ReleasedDuringCommit: The secured regions were released; ``written`` are too.
        """
        if not self.regions:
            return written
        secured = self._outputs.store.open_output(self._attempt)
        if secured is None or len(secured.regions) != self.regions:
            release_regions(written)
            raise ReleasedDuringCommit(*self._attempt.shuffle, self._attempt.map_attempt_id)
        return [*secured.take(), *written]

    def park(self) -> None:
        """Keep the secured regions for a while: the producer may resume them."""
        self._outputs.park(self._attempt)

    def forget(self, *, drop: bool) -> None:
        """Forget the map output, which is committed or aborted; ``drop`` releases the regions."""
        self._outputs.forget(self._attempt, drop=drop)


def _release_unsecured(regions: list[Region], done: "asyncio.Future[None]") -> None:
    """Release regions that could not be secured; their producer may be gone by then."""
    if not done.cancelled() and done.exception() is not None:
        release_regions(regions)
