"""Slots for work that waits for other hosts, such as connecting.

A slot whose work waits for an address that does not answer cannot be taken back, so fair turns
(``FairSlots``) are not enough here. Each owner, an application or a tenant, may always have one
slot, and more only while fewer than the total are taken.
"""

import asyncio
from typing import Final


class OwnerSlots:
    """Slots that owners share.

    Args:
        total: Slots of all owners together, except for the first one of each.
        per_owner: Maximum number of slots of an owner.
    """

    def __init__(self, total: int, per_owner: int) -> None:
        self._total: Final = total
        self._per_owner: Final = per_owner
        self._held: dict[str, int] = {}
        self.waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """Waiting requests by owner, the oldest first; the owner served last is the last."""
        self.held = 0
        """Slots that are taken."""

    def held_by(self, owner: str) -> int:
        """Return how many slots an owner has."""
        return self._held.get(owner, 0)

    async def take(self, owner: str) -> None:
        """Wait for a slot, which :meth:`release` returns later.

        Cancellation: safe; no slot is taken.
        """
        if owner not in self.waiting and self._has_room(owner):
            self._hold(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(owner, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(owner, turn)
            else:  # it was granted in the same turn of the loop
                self.release(owner)
            raise

    def release(self, owner: str) -> None:
        """Release a slot, and give it to the waiting owner that has the fewest."""
        self.held -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while self.waiting:
            neediest = min(self.waiting, key=self.held_by)
            if not self._has_room(neediest):
                return
            turn = next(iter(self.waiting[neediest]))
            self._forget(neediest, turn)
            if neediest in self.waiting:
                self.waiting[neediest] = self.waiting.pop(neediest)
            if not turn.done():  # else it is being canceled
                self._hold(neediest)
                turn.set_result(None)

    def _has_room(self, owner: str) -> bool:
        held = self.held_by(owner)
        return not held or (held < self._per_owner and self.held < self._total)

    def _hold(self, owner: str) -> None:
        self.held += 1
        self._held[owner] = self.held_by(owner) + 1

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        requests = self.waiting.get(owner, {})
        requests.pop(turn, None)
        if not requests:
            self.waiting.pop(owner, None)
