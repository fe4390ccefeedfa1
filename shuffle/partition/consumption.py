"""Whether the readers of a finished pipelined partition have read it, for its writer."""

import asyncio

from ...protocol.errors import SluiceError
from ...transport.errors import DeadlineExceeded
from ..errors import PartitionReleased


class Consumption:
    """The outcome of the reading of one partition; the first one counts."""

    __slots__ = ("_ended", "_failure", "_waiting")

    def __init__(self) -> None:
        self._ended = False
        self._failure: SluiceError | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def end(self, failure: SluiceError | None = None) -> None:
        """Record that all readers have reached the end, or why they will not. Idempotent."""
        if self._ended:
            return
        self._ended, self._failure = True, failure
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, name: str, timeout_seconds: float) -> None:
        """Wait for the outcome.

        Args:
            name: Names the partition in errors.
            timeout_seconds: Deadline.

        Raises:
            DeadlineExceeded: There is no outcome yet; wait again if you like.
            SluiceError: Why the readers will not reach the end.

        Cancellation: safe.
        """
        if not self._ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                async with asyncio.timeout(timeout_seconds):
                    await waiter
            except TimeoutError:
                raise DeadlineExceeded(
                    "The readers of a pipelined partition have not reached its end",
                    value=name,
                    limit=f"{timeout_seconds:g} s",
                    remedy="Look at the tasks that read it, or raise timeout_seconds",
                ) from None
            finally:
                self._waiting.discard(waiter)
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # its frames would pile up


def all_readers_gone(map_attempt_id: int) -> PartitionReleased:
    """Return the error about a pipelined partition that nobody reads before it is finished."""
    return PartitionReleased(
        "All readers of the pipelined partition have gone",
        value=map_attempt_id,
        remedy="Look at the failures of the tasks that read it",
        map_attempt_id=map_attempt_id,
    )


def reader_left(map_attempt_id: int) -> PartitionReleased:
    """Return the error about a finished pipelined partition that a reader has not read whole."""
    return PartitionReleased(
        "A reader of the pipelined partition left before its end",
        value=map_attempt_id,
        remedy="Look at the failures of the tasks that read it",
        map_attempt_id=map_attempt_id,
    )
