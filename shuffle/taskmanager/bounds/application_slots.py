"""Slots for work that waits for others, such as connecting: none waits for another application.

A slot that waits for an address that does not answer cannot be taken back. So an application may
always have one, and more only while fewer than the total are taken.
"""

import asyncio
from typing import Final


class ApplicationSlots:
    """Slots that applications share.

    Args:
        total: Slots of all applications together, except for the first one of each.
        per_application: Maximum number of slots of an application.
    """

    def __init__(self, total: int, per_application: int) -> None:
        self._total: Final = total
        self._per_application: Final = per_application
        self._held: dict[str, int] = {}
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """Requests by application, the oldest first; the application served last is the last."""
        self.held = 0
        """Slots that are taken."""

    def held_by(self, application_id: str) -> int:
        """Return how many slots an application has."""
        return self._held.get(application_id, 0)

    async def take(self, application_id: str) -> None:
        """Wait for a slot; pass it to :meth:`give_back` later.

        Cancellation: safe; no slot is taken.
        """
        if application_id not in self._waiting and self._has_room(application_id):
            self._hold(application_id)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(application_id, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(application_id, turn)
            else:  # it was granted in the same turn of the loop
                self.give_back(application_id)
            raise

    def give_back(self, application_id: str) -> None:
        """Return a slot, and give it to the waiting application that has the fewest."""
        self.held -= 1
        self._held[application_id] -= 1
        if not self._held[application_id]:
            del self._held[application_id]
        while self._waiting:
            neediest = min(self._waiting, key=self.held_by)
            if not self._has_room(neediest):
                return
            turn = next(iter(self._waiting[neediest]))
            self._forget(neediest, turn)
            if neediest in self._waiting:
                self._waiting[neediest] = self._waiting.pop(neediest)
            if not turn.done():  # else it is being cancelled
                self._hold(neediest)
                turn.set_result(None)

    def _has_room(self, application_id: str) -> bool:
        held = self.held_by(application_id)
        return not held or (held < self._per_application and self.held < self._total)

    def _hold(self, application_id: str) -> None:
        self.held += 1
        self._held[application_id] = self.held_by(application_id) + 1

    def _forget(self, application_id: str, turn: asyncio.Future[None]) -> None:
        requests = self._waiting.get(application_id, {})
        requests.pop(turn, None)
        if not requests:
            self._waiting.pop(application_id, None)
