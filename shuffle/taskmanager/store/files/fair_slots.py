"""Bounds the concurrent requests of the event loop; waiting requests get fair turns."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import monotonic

from .....transport.fair_queue import FairQueue, Flow
from .io_threads import WaitingCall


class FairSlots:
    """A semaphore that serves its waiters in the order of a ``FairQueue``.

    While a slot is free, every request gets its turn at once.

    Args:
        count: Maximum number of concurrent requests.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._requests: dict[asyncio.Future[None], tuple[str, float]] = {}
        """The application and the time of each request."""

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    def calls(self) -> list[WaitingCall]:
        """Return the running and the queued requests of applications, for status."""
        return [
            WaitingCall(application_id, began_at, turn.done())
            for turn, (application_id, began_at) in self._requests.items()
            if application_id
        ]

    @contextlib.asynccontextmanager
    async def turn(self, flow: Flow, cost: int) -> AsyncIterator[None]:
        """Wait for the turn of a request, which lasts as long as the context.

        Args:
            flow: The flow of the request.
            cost: Cost of the request, at least 1.

        Cancellation: safe; a request that waited costs nothing.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(flow, cost, turn)
        self._requests[turn] = flow.application_id, monotonic()
        self._serve()
        try:
            await turn
            yield
        finally:
            del self._requests[turn]
            if not self._queue.withdraw(flow, turn):  # it had its turn
                self._free += 1
                self._serve()

    def _serve(self) -> None:
        while self._free and (turn := self._queue.take()) is not None:
            self._free -= 1
            if not turn.done():  # canceled: its owner will release the slot
                turn.set_result(None)
        if self._free == self._count:
            self._queue.forget_idle()
