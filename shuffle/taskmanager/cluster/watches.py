"""The watches of one TaskManager on others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from ....transport.address import Address
from ....transport.loop import start_task
from ...names import TaskManagerPlace
from .known_taskmanagers import KnownTaskManagers
from .taskmanager_watch import Presence, TaskManagerWatch
from .watch_leg import WatchLeg


class Watches:
    """Watches configured TaskManagers, and those that share map outputs.

    A driver can name a wrong address for a TaskManager. So each place is watched on its own, and a
    wrong one says nothing about the TaskManager at its right place.

    Args:
        known: The places of other TaskManagers, to which places found by watches are added.
        configured: Addresses of TaskManagers in the settings.
        connect: Connects to an address.
        lost_after_seconds: Time away after which a TaskManager counts as lost.
        changed: Called with the place of a TaskManager, its current and its previous state.
    """

    def __init__(
        self,
        known: KnownTaskManagers,
        configured: Sequence[Address],
        connect: Callable[[Address], Awaitable[WatchLeg]],
        lost_after_seconds: float,
        changed: Callable[[TaskManagerPlace, Presence, Presence], None],
    ) -> None:
        self._known: Final = known
        self._addresses: Final = configured
        self._connect: Final = connect
        self._lost_after_seconds: Final = lost_after_seconds
        self._changed: Final = changed
        self._configured: dict[Address, TaskManagerWatch] = {}
        self._by_place: dict[TaskManagerPlace, TaskManagerWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._configured) + len(self._by_place)

    @property
    def unreachable(self) -> int:
        """Number of TaskManagers that are away or lost."""
        watches = (*self._configured.values(), *self._by_place.values())
        return sum(each.presence in (Presence.AWAY, Presence.LOST) for each in watches)

    def watch_configured(self) -> None:
        """Watch the TaskManagers of the settings. Idempotent."""
        for address in self._addresses:
            if address not in self._configured:
                self._configured[address] = self._new(address, None)

    async def find_configured(self) -> None:
        """Watch the TaskManagers of the settings until each was reached, or could not be.

        Cancellation: safe.
        """
        self.watch_configured()
        for watch in list(self._configured.values()):
            await watch.first_answer()

    def presence(self, place: TaskManagerPlace) -> Presence:
        """Return the state of a TaskManager at a place."""
        watch = self._by_place.get(place) or self._configured_at(place)
        return Presence.UNKNOWN if watch is None else watch.presence

    def keep(self, places: Iterable[TaskManagerPlace]) -> None:
        """Watch the TaskManagers at exactly these places, and configured ones."""
        wanted = {each for each in places if self._configured_at(each) is None}
        for place in wanted:
            self.watch(place)
        for place in self._by_place.keys() - wanted:
            self._end(self._by_place.pop(place))

    def watch(self, place: TaskManagerPlace) -> None:
        """Watch the TaskManager at a place. Idempotent."""
        if place not in self._by_place and self._configured_at(place) is None:
            self._by_place[place] = self._new(place.address, place)

    def forget_configured(self) -> None:
        """End the watches of configured TaskManagers."""
        for watch in self._configured.values():
            self._end(watch)
        self._configured.clear()

    async def close(self) -> None:
        """End all watches. Idempotent."""
        self.keep(())
        self.forget_configured()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _configured_at(self, place: TaskManagerPlace) -> TaskManagerWatch | None:
        return next((each for each in self._configured.values() if each.place == place), None)

    def _new(self, address: Address, place: TaskManagerPlace | None) -> TaskManagerWatch:
        return TaskManagerWatch(address, place, self._connect, self._lost_after_seconds, self._told)

    def _told(self, watch: TaskManagerWatch, before: Presence) -> None:
        if watch.place is None:
            return  # never reached
        if self._configured.get(watch.address) is watch:
            self._known.configure(watch.place)
        self._changed(watch.place, watch.presence, before)

    def _end(self, watch: TaskManagerWatch) -> None:
        closing = start_task(watch.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
