"""Moves the map outputs of a TaskManager that drains to other TaskManagers.

Applications move side by side, so that none waits for addresses that another one's driver named,
or for that driver. Each map output takes these steps:

1. It is copied to the first target that takes it: the other TaskManagers in their order of
   placement, those that have a copy first, and then the remote tier, if there is one.
2. The drivers of its application acknowledge the new place. If there is no driver, or it does not
   answer in time, the move continues.
3. ``PARTITION_MOVED`` sends readers to the new place.
4. When all have taken these steps, each receiver is asked again for what it received, because it
   may have lost it meanwhile. Only what a receiver still has then counts as moved.

The map output is not removed here before its shuffle is released. So when a receiver is away, at
any time after the move, its map outputs are read here again. When it comes back, it is asked for
each of them: those that it still has are read there again, and the others move again. If it is
lost, all of them move to other targets. The map outputs of a directory that did not answer at the
start move when they are adopted. So a drain stays complete without another one. A TaskManager that
accepts work again, or restarts, has one copy more than it needs.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ....transport.backoff import Backoff
from ....transport.loop import run_together, start_task
from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..cluster.taskmanager_watch import Presence
from ..store.stored_outputs import MapOutput
from .attempt_table import AttemptTable
from .target import CopyServices, Outcome, PeerTarget, RemoteTarget

logger = logging.getLogger(__name__)

CHUNK: Final = 256
"""Maximum number of map outputs announced to drivers at a time."""

PASSES: Final = 3
"""Attempts to move a map output before it stays."""

MAX_REFUSALS: Final = 3
"""Refusals in a row after which a pass skips a target."""

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 2.0


class MigrationProgress(NamedTuple):
    """How far the move of a TaskManager's map outputs has come.

    Attributes:
        active: Whether a move runs.
        moved: Map outputs that are read elsewhere.
        left: Map outputs that are still read here, including those that stay.
        staying: Map outputs that no target takes.
        reason: Why they stay; empty if none stays.
    """

    active: bool
    moved: int
    left: int
    staying: int
    reason: str

    def __str__(self) -> str:
        text = f"{self.moved} map outputs moved, {self.left} left"
        return f"{text}; {self.staying} stay: {self.reason}" if self.staying else text


class _Stay(NamedTuple):
    """Why a map output stays.

    Attributes:
        reason: The reason.
        place: The receiver that took it and may have it still, if it is away.
    """

    reason: str
    place: TaskManagerPlace | None = None


class Migration:
    """Moves the map outputs of one TaskManager.

    Args:
        services: The parts of the TaskManager.
        watch_places: Watches the places at which map outputs are read.
    """

    def __init__(self, services: CopyServices, watch_places: Callable[[], None]) -> None:
        self._services: Final = services
        self._moved: Final = services.moved
        self._watch_places: Final = watch_places
        self._in_remote: AttemptTable[bool] = AttemptTable()
        """Moved map outputs that are in the remote tier, which this TaskManager asked itself."""
        self._staying: AttemptTable[_Stay] = AttemptTable()
        self._awaited: set[TaskManagerPlace] = set()
        """Receivers that are away: when one is back or lost, what stays is moved again."""
        self._refusals: Counter[tuple[str, str]] = Counter()
        """Refusals in a row of this pass, by application and target."""
        self._active = False
        self._is_wanted = False
        """Whether map outputs are to be elsewhere: from the first move until it is undone."""
        self._has_news = False
        """Whether an awaited receiver came back or was lost, or map outputs were adopted, since the
        last move began."""
        self._following: asyncio.Task[None] | None = None
        """Moves again what stays."""

    @property
    def progress(self) -> MigrationProgress:
        """How far the move has come."""
        moved = len(self._moved)
        left = self._services.store.statistics().map_outputs - moved
        reasons = Counter(each.reason for each in self._staying.values())
        ((reason, _),) = reasons.most_common(1) or [("", 0)]
        active = self._active or self._is_following
        return MigrationProgress(active, moved, max(left, 0), reasons.total(), reason)

    @property
    def _is_following(self) -> bool:
        return self._following is not None and not self._following.done()

    async def run(self) -> MigrationProgress:
        """Move all map outputs that are here, and return the progress.

        What a receiver loses later moves again, until :meth:`undo` or :meth:`close`.

        Raises:
            RuntimeError: A move is already running.

        Cancellation: safe; incomplete copies are dropped, moved map outputs stay moved.
        """
        if self._active:
            raise RuntimeError("map outputs are being moved already")
        self._active = self._is_wanted = True
        try:
            await self._end_following()
            await self._run()
            while self._has_news and self._is_wanted:  # map outputs were adopted meanwhile
                await self._run()
        finally:
            self._active = False
            self._follow()
        progress = self.progress
        logger.log(logging.WARNING if progress.staying else logging.INFO, "%s", progress)
        return progress

    async def close(self) -> None:
        """Move nothing again from now on; moved map outputs stay moved. Idempotent."""
        self._is_wanted = False
        await self._end_following()

    def awaited(self) -> Iterator[TaskManagerPlace]:
        """Yield the receivers that may come back with map outputs that stay here meanwhile."""
        if self._is_wanted and len(self._staying):
            yield from self._awaited

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        for table in (self._staying, self._in_remote):
            table.release(key, end)

    def application_released(self, application_id: str) -> None:
        """Forget an ended application."""
        for table in (self._staying, self._in_remote):
            table.release_application(application_id)

    def lost(self, lost: Mapping[ShuffleKey, Sequence[int]]) -> None:
        """Forget map outputs that are not here any longer and had not moved."""
        for key, map_attempt_ids in lost.items():
            self._staying.discard(key, map_attempt_ids)

    async def _run(self) -> None:
        tracing = self._services.tracing
        if tracing is None:
            await self._move_all()
            return
        tracing.begin_migration()
        try:
            await self._move_all()
        finally:
            progress = self.progress
            tracing.end_migration(progress.staying, progress.reason)

    async def _move_all(self) -> None:
        services = self._services
        applications: set[str] = set()
        self._has_news = False
        try:
            await services.watches.find_members()
            backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            for number in range(PASSES):
                if number:
                    await asyncio.sleep(backoff.next_seconds())  # others may have room again
                self._refusals.clear()
                applications = {each.key.application_id for each in services.store.shuffles()}
                await run_together(self._run_once(each) for each in applications)
                await run_together(self._confirm(each) for each in applications)
                if not len(self._staying):
                    break
        finally:
            self._awaited = {each.place for each in self._staying.values() if each.place}
            self._watch_places()
            services.connections.close_idle(applications)

    def _follow(self) -> None:
        """Move again if a receiver or a directory came back, or a receiver was lost."""
        if self._is_wanted and self._has_news and not self._active and not self._is_following:
            self._following = start_task(self._run_again())

    async def _run_again(self) -> None:
        try:
            while self._has_news and self._is_wanted:
                await self._run()
                logger.info("after a receiver or a directory changed: %s", self.progress)
        except Exception:  # it goes on after the next change, or with another drain
            logger.exception("cannot move map outputs again")

    async def _end_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def undo(self) -> None:
        """Let moved map outputs be read here again, and notify the drivers."""
        self._is_wanted = False
        if self._following is not None:
            self._following.cancel()
        self._staying.clear()
        self._in_remote.clear()
        for key, map_attempt_ids in self._moved.take_back_all().items():
            self._tell_back(key, map_attempt_ids)
        self._watch_places()

    def changed(self, place: TaskManagerPlace, now: Presence) -> None:
        """Serve again what has moved to a TaskManager that is away or lost.

        It may come back with its data. Until then readers get the data here, as they would have to
        wait there. When it is back, it is asked; when it is lost, others are.
        """
        if now in (Presence.AWAY, Presence.LOST):
            self._take_back_from(place, f"{place}, which took it, does not answer")
        # It may be back at another address.
        ids = {each.taskmanager_id for each in self.awaited()}
        if now is not Presence.AWAY and place.taskmanager_id in ids:
            self._has_news = True
            self._follow()

    def adopted(self) -> None:
        """Move adopted map outputs too, if the others move or have moved."""
        self._has_news = True
        self._follow()

    def _take_back_from(self, place: TaskManagerPlace, reason: str) -> None:
        back = self._moved.take_back_all(place)
        for key, map_attempt_ids in back.items():
            self._tell_back(key, map_attempt_ids, _Stay(reason, place))
        if back:
            self._awaited.add(place)
            count = sum(map(len, back.values()))
            extra = {"peer": str(place)}
            logger.warning(
                "%d moved map outputs are read here again: %s", count, reason, extra=extra
            )

    def _tell_back(
        self, key: ShuffleKey, map_attempt_ids: Sequence[int], stay: _Stay | None = None
    ) -> None:
        """Notify the drivers of map outputs that are read here again.

        Those with a reason stay until a pass moves them again.
        """
        lookup = self._services.store.lookup
        here = [each for each in map_attempt_ids if lookup(key, each) is not None]
        if stay is not None:
            for each in here:
                self._staying.put(MapAttemptKey(key, each), stay)
        if here:
            self._services.drivers.tell_held(key, here)

    async def _confirm(self, application_id: str) -> None:
        """Ask the receivers of an application's map outputs again; take back what they lost."""
        services = self._services
        asked = (
            (MapAttemptKey(key, each), place)
            for key, places in self._moved.of(application_id).items()
            for each, place in places.items()
        )

        async def ask_some() -> None:
            for attempt, place in asked:
                await services.streams.take(application_id)
                try:
                    output = services.store.lookup(*attempt)
                    is_remote = self._in_remote.get(attempt)
                    if output is None or is_remote or self._moved.place(*attempt) != place:
                        continue
                    outcome, reason = await PeerTarget(place, services).confirm(output)
                finally:
                    services.streams.release(application_id)
                if outcome is Outcome.ABSENT:  # asking for each of many would take too long
                    self._take_back_from(place, reason)
                elif outcome is not Outcome.COPIED and self._moved.place(*attempt) == place:
                    self._moved.take_back(attempt.shuffle, [attempt.map_attempt_id])
                    self._tell_back(attempt.shuffle, [attempt.map_attempt_id], _Stay(reason))

        await run_together(ask_some() for _ in range(services.config.copy_streams))

    async def _run_once(self, application_id: str) -> None:
        """Try each map output of an application that has not moved once."""
        tracing = self._services.tracing
        tried: set[MapAttemptKey] = set()
        while chunks := list(self._chunks(application_id, tried)):
            for key, map_attempt_ids in chunks:
                tried.update(MapAttemptKey(key, each) for each in map_attempt_ids)
                await self._move(key, map_attempt_ids)
                if tracing is None:
                    continue
                for attempt in (MapAttemptKey(key, each) for each in map_attempt_ids):
                    stay = self._staying.get(attempt)
                    place = self._moved.place(*attempt)
                    tracing.end_move(attempt, place, stay.reason if stay else "")

    def _chunks(
        self, application_id: str, tried: set[MapAttemptKey]
    ) -> Iterator[tuple[ShuffleKey, list[int]]]:
        """Yield the map outputs that have not moved and were not tried yet."""
        for key in [each.key for each in self._services.store.shuffles(application_id)]:
            left = [
                each
                for each in self._services.store.map_outputs(key)
                if self._moved.place(key, each) is None and MapAttemptKey(key, each) not in tried
            ]
            for first in range(0, len(left), CHUNK):
                yield key, left[first : first + CHUNK]

    async def _move(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Move some map outputs of a shuffle."""
        services = self._services
        waiting = iter(map_attempt_ids)
        places: dict[int, TaskManagerPlace] = {}
        copied: dict[int, MapOutput] = {}

        async def copy_some() -> None:
            for map_attempt_id in waiting:
                await services.streams.take(key.application_id)
                try:
                    output = services.store.lookup(key, map_attempt_id)
                    if output is None:
                        continue
                    attempt = MapAttemptKey(key, map_attempt_id)
                    if services.tracing is not None:
                        services.tracing.begin_move(attempt)
                    place = await self._copy(attempt, output)
                finally:
                    services.streams.release(key.application_id)
                if place is not None:
                    places[map_attempt_id], copied[map_attempt_id] = place, output

        streams = min(services.config.copy_streams, len(map_attempt_ids))
        await run_together(copy_some() for _ in range(streams))
        if not places:
            return
        noted: list[asyncio.Future[None]] = []
        by_place = sorted(places, key=lambda each: places[each])
        for place, attempts in itertools.groupby(by_place, key=lambda each: places[each]):
            noted += services.drivers.tell_moved(key, place, list(attempts))
        if noted:
            seconds = services.config.move_noted_timeout_seconds
            _, late = await asyncio.wait(noted, timeout=seconds)
            if late:
                logger.warning(
                    "a driver did not acknowledge a move within %g s",
                    seconds,
                    extra=key.log_fields,
                )
        here = services.store.map_outputs(key)  # others were released or replaced meanwhile
        is_same = {each: here.get(each) is copied[each] for each in places}
        if any(each in here and not is_same[each] for each in places):
            self._has_news = True  # the new bytes move in the next pass
        places = {each: place for each, place in places.items() if is_same[each]}
        if places:
            self._moved.move(key, places)
            self._staying.discard(key, places)
            self._watch_places()
            services.counters.map_outputs_moved += len(places)

    async def _copy(self, attempt: MapAttemptKey, output: MapOutput) -> TaskManagerPlace | None:
        """Copy a map output to a target; return its place, or None if it stays."""
        with output.kept():  # it may be released between two attempts
            place, reason = await self._elsewhere(attempt, output)
        if place is None and self._services.store.lookup(*attempt) is output:
            stay = self._staying.get(attempt)
            self._staying.put(attempt, _Stay(reason, stay.place if stay else None))
        return place

    async def _elsewhere(
        self, attempt: MapAttemptKey, output: MapOutput
    ) -> tuple[TaskManagerPlace | None, str]:
        """Return the place of a target that took a map output, or None and the reason."""
        services = self._services
        application_id = attempt.shuffle.application_id
        holding = services.holdings.get(attempt)
        holders = set() if holding is None else set(holding.others)
        if output.origin:
            holders.add(output.origin)
        stay = self._staying.get(attempt)
        if stay is not None and stay.place is not None and not self._in_remote.get(attempt):
            holders.add(stay.place.taskmanager_id)  # it may have it still, and is asked first
        candidates = services.placement.candidates(
            attempt, holders, lambda place: services.watches.presence(place) is Presence.LOST
        )
        reason = stay.reason if stay else "no other TaskManager is known"
        for target in services.targets([each.place for each in candidates]):
            refusals = application_id, target.name
            if self._refusals[refusals] < MAX_REFUSALS:
                pace = _at_once if target.name in holders else None
                outcome = await target.copy(output, pace, moved=True)
                if outcome is Outcome.COPIED:
                    del self._refusals[refusals]
                    self._in_remote.discard(attempt.shuffle, [attempt.map_attempt_id])
                    is_here = services.store.lookup(*attempt) is output
                    if target.name == RemoteTarget.name and is_here:
                        self._in_remote.put(attempt, True)
                    return target.place, ""
                if outcome is not Outcome.FAILED:
                    self._refusals[refusals] += 1
            reason = services.placement.last_refusal
        return None, reason


async def _at_once(length: int) -> None:
    """Return at once: moves have no rate limit."""
