"""The watches of one TaskManager on others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from ....transport.address import Address
from ....transport.loop import start_task
from .known_taskmanagers import KnownTaskManagers
from .taskmanager_watch import Presence, TaskManagerWatch
from .watch_leg import WatchLeg


class Watches:
    """Watches configured TaskManagers, and those that share map outputs.

    Args:
        known: The places of other TaskManagers, to which places found by watches are added.
        configured: Addresses of TaskManagers in the settings.
        connect: Connects to an address.
        lost_after_seconds: Time away after which a TaskManager counts as lost.
        changed: Called with the id of a TaskManager, its current and its previous state.
    """

    def __init__(
        self,
        known: KnownTaskManagers,
        configured: Sequence[Address],
        connect: Callable[[Address], Awaitable[WatchLeg]],
        lost_after_seconds: float,
        changed: Callable[[str, Presence, Presence], None],
    ) -> None:
        self._known: Final = known
        self._addresses: Final = configured
        self._connect: Final = connect
        self._lost_after_seconds: Final = lost_after_seconds
        self._changed: Final = changed
        self._configured: dict[Address, TaskManagerWatch] = {}
        self._by_id: dict[str, TaskManagerWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._configured) + len(self._by_id)

    def watch_configured(self) -> None:
        """Watch the TaskManagers of the settings. Idempotent."""
        for address in self._addresses:
            if address not in self._configured:
                self._configured[address] = self._new(partial(list, [address]), "")

    async def find_configured(self) -> None:
        """Watch the TaskManagers of the settings until each was reached, or could not be.

        Cancellation: safe.
        """
        self.watch_configured()
        for watch in list(self._configured.values()):
            await watch.first_answer()

    def presence(self, taskmanager_id: str) -> Presence:
        """Return the state of a TaskManager."""
        watch = self._by_id.get(taskmanager_id)
        if watch is None:
            watch = next(
                (w for w in self._configured.values() if w.taskmanager_id == taskmanager_id), None
            )
        return Presence.UNKNOWN if watch is None else watch.presence

    def keep(self, taskmanager_ids: Iterable[str]) -> None:
        """Watch exactly these TaskManagers, if their places are known."""
        wanted = {each for each in taskmanager_ids if self._known.places(each)}
        wanted -= {watch.taskmanager_id for watch in self._configured.values()}
        for taskmanager_id in wanted:
            self.watch(taskmanager_id)
        for taskmanager_id in self._by_id.keys() - wanted:
            self._end(self._by_id.pop(taskmanager_id))

    def watch(self, taskmanager_id: str) -> None:
        """Watch a TaskManager, if any place of it is known. Idempotent."""
        if taskmanager_id in self._by_id or not self._known.places(taskmanager_id):
            return
        if all(watch.taskmanager_id != taskmanager_id for watch in self._configured.values()):

            def addresses() -> list[Address]:
                return [place.address for place in self._known.places(taskmanager_id)]

            self._by_id[taskmanager_id] = self._new(addresses, taskmanager_id)

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

    def _new(self, addresses: Callable[[], list[Address]], taskmanager_id: str) -> TaskManagerWatch:
        return TaskManagerWatch(
            addresses, taskmanager_id, self._connect, self._lost_after_seconds, self._told
        )

    def _told(self, watch: TaskManagerWatch, before: Presence) -> None:
        if self._configured.get(watch.address) is watch and watch.place is not None:
            self._known.configure(watch.place)
        if watch.taskmanager_id:
            self._changed(watch.taskmanager_id, watch.presence, before)

    def _end(self, watch: TaskManagerWatch) -> None:
        closing = start_task(watch.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
