"""Keeps as many copies of map outputs as their producers ask for.

:class:`ApplicationCopies` makes the copies of each application. TaskManagers that share a map
output with this one are watched. When one comes back, it is asked whether it still has each map
output, one message for each. The map outputs of a lost TaskManager are copied again, no faster than
``restore_bytes_per_second``.

A TaskManager is watched at the place where an application may use it. What is found there counts
for the applications that use it at this place, and for no other.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..bounds.rate_limit import RateLimit
from ..cluster.taskmanager_watch import Presence
from ..store.stored_outputs import MapOutput
from .application_copies import ApplicationCopies
from .target import CopyServices


class Replication:
    """Makes copies of the map outputs of one TaskManager, and makes them again after losses.

    Args:
        services: The parts of the TaskManager.
        awaited: Returns other places to watch: receivers of moved map outputs that are away.
    """

    def __init__(
        self,
        services: CopyServices,
        awaited: Callable[[], Iterable[TaskManagerPlace]] = tuple,
    ) -> None:
        self._awaited: Final = awaited
        self.holdings: Final = services.holdings
        self._services: Final = services
        self._restore: Final = RateLimit(services.config.restore_bytes_per_second)
        self._applications: dict[str, ApplicationCopies] = {}
        """The copies of each application with map outputs here."""
        self._settling: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def applications(self) -> list[ApplicationCopies]:
        """The copies of each application, for status."""
        return list(self._applications.values())

    @property
    def waiting(self) -> int:
        """Map outputs being copied or queued for it."""
        return sum(each.waiting for each in self._applications.values())

    # ---- changes of map outputs ------------------------------------------------------------------

    def adopt(self) -> None:
        """Queue copies for the map outputs adopted at start.

        Nothing is copied to other TaskManagers before ``lost_after_seconds``. Until then the
        drivers name the other TaskManagers, and those that also start again come back.
        """
        store = self._services.store
        for key in [shuffle.key for shuffle in store.shuffles()]:
            for map_attempt_id, output in store.map_outputs(key).items():
                if output.has_copies:
                    attempt = MapAttemptKey(key, map_attempt_id)
                    holding = self.holdings.add(
                        attempt,
                        output.origin,
                        output.replicas,
                        settled=True,
                        to_remote=output.to_remote,
                    )
                    holding.doubtful |= holding.others
                    copies = self._of(key.application_id)
                    if holding.lacks_remote and not holding.missing:
                        copies.enqueue([attempt])  # it needs no other TaskManager
        if len(self.holdings):
            self._settling = asyncio.get_running_loop().call_later(
                self._services.config.lost_after_seconds, self._settled
            )

    def committed(self, output: MapOutput) -> None:
        """Record a committed map output: a copy, or one of which copies are made."""
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        application_id = output.key.application_id
        self.holdings.add(attempt, output.origin, output.replicas, to_remote=output.to_remote)
        if self._closed:
            return
        copies = self._of(application_id)
        if output.origin:
            place = self._services.known.place_for(application_id, output.origin)
            if place is not None and (output.replicas > 1 or output.to_remote):
                self._services.watches.watch(place)
            self._services.drivers.tell_held(output.key, [output.map_attempt_id])
        else:
            if output.is_synchronous:
                copies.await_copies(attempt)
            copies.enqueue([attempt])

    def wait(self, output: MapOutput) -> "asyncio.Future[None] | None":
        """Return what the producer of a committed map output has to wait for.

        Returns:
            A future that completes when the copies are made, cannot be made now, or the deadline
            has passed; None if the producer need not wait. Shield it, because it is shared.
        """
        copies = self._applications.get(output.key.application_id)
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        return None if copies is None else copies.wait(attempt)

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        self.holdings.release(key, end)
        self._purge(key.application_id)

    def application_released(self, application_id: str) -> None:
        """Forget an ended application, and the TaskManagers that its drivers named."""
        self.holdings.release_application(application_id)
        self._services.known.forget(application_id)
        self._services.connections.end_application(application_id)
        self._purge(application_id)

    def lost(self, lost: Mapping[ShuffleKey, Sequence[int]]) -> None:
        """Forget map outputs lost with a directory; other TaskManagers restore them."""
        for key, map_attempt_ids in lost.items():
            self.holdings.discard(key, map_attempt_ids)
        for application_id in {key.application_id for key in lost}:
            self._purge(application_id)

    def held_of(self, application_id: str) -> dict[ShuffleKey, list[int]]:
        """Return the map attempts of an application that are copies here, by shuffle."""
        held: dict[ShuffleKey, list[int]] = {}
        for attempt in self.holdings.attempts():
            if attempt.shuffle.application_id == application_id:
                holding = self.holdings.get(attempt)
                if holding is not None and holding.origin:
                    held.setdefault(attempt.shuffle, []).append(attempt.map_attempt_id)
        return held

    # ---- changes of other TaskManagers -----------------------------------------------------------

    def known(self, application_id: str, place: TaskManagerPlace) -> None:
        """Record a TaskManager that a driver names.

        Raises:
            LimitExceeded: The application has named as many as it may.
        """
        known = self._services.known
        before = known.place_for(application_id, place.taskmanager_id)
        if not known.tell(application_id, place):
            return
        copies = self._applications.get(application_id)
        now = known.place_for(application_id, place.taskmanager_id)
        if copies is not None and now != before:
            copies.named(place.taskmanager_id, moved=before is not None)

    def changed(self, place: TaskManagerPlace, now: Presence, before: Presence) -> None:
        """Record that the TaskManager at a place is present, away or lost."""
        for copies in list(self._applications.values()):
            used = self._services.known.place_for(copies.application_id, place.taskmanager_id)
            if used == place:
                copies.changed(place, now, before)

    def watch_shared(self) -> None:
        """Watch the TaskManagers that have map outputs of this one, and no others."""
        if self._closed:
            return
        self._services.watches.keep(self._shared())

    async def close(self) -> None:
        """Cancel the copies being made, which continue after the next start. Idempotent."""
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        for copies in list(self._applications.values()):
            await copies.close()
        await self._services.watches.close()
        self._services.connections.close()

    # ---- inside ----------------------------------------------------------------------------------

    def _of(self, application_id: str) -> ApplicationCopies:
        copies = self._applications.get(application_id)
        if copies is None:
            copies = self._applications[application_id] = ApplicationCopies(
                application_id, self._services, self._restore, self.watch_shared, self._ended
            )
        return copies

    def _settled(self) -> None:
        """Copy the map outputs adopted at start that still lack copies."""
        self._settling = None
        for application_id, taskmanager_id in self.holdings.holders():
            if self._services.known.place_for(application_id, taskmanager_id) is None:
                self.holdings.lost(application_id, taskmanager_id)
        short: dict[str, list[MapAttemptKey]] = {}
        for attempt in self.holdings.short:
            short.setdefault(attempt.shuffle.application_id, []).append(attempt)
        for application_id, attempts in short.items():
            self._of(application_id).enqueue(attempts)

    def _purge(self, application_id: str) -> None:
        """Forget everything about map outputs of an application that are no longer here."""
        copies = self._applications.get(application_id)
        if copies is not None:
            copies.released()
            if copies.is_idle:
                self._ended(copies)
            if not self.holdings.has_application(application_id):
                self._services.connections.end_application(application_id)
        self.watch_shared()
        if not len(self.holdings) and not len(self._services.moved) and not any(self._awaited()):
            self._services.watches.look_again()

    def _ended(self, copies: ApplicationCopies) -> None:
        """Forget the copies of an application without map outputs, once none is being made."""
        application_id = copies.application_id
        self._services.connections.close_idle([application_id])
        if not self.holdings.has_application(application_id):
            self._applications.pop(application_id, None)

    def _shared(self) -> Iterable[TaskManagerPlace]:
        """Yield the places of the TaskManagers that have map outputs of this one."""
        yield from self._services.moved.places()
        yield from self._awaited()
        for application_id, taskmanager_id in self.holdings.holders():
            place = self._services.known.place_for(application_id, taskmanager_id)
            if place is not None:
                yield place
