"""Keeps as many copies of map outputs as their producers ask for.

A map output that is short of copies is in a queue, which ``copy_streams`` tasks work off. For each
they go through the other TaskManagers in its rendezvous order, on other hosts than this one, and
pass over those that refuse: they drain, are full, or are away. Where nobody takes it, it waits
until a TaskManager comes, or for a pause that grows.

TaskManagers that share a map output with this one are watched. One that comes back is asked whether
it has what it had, at the cost of a message for each map output. What a lost one had is copied
again, no faster than ``restore_bytes_per_second``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ....transport.backoff import Backoff
from ....transport.loop import start_task
from ...errors import failure_of
from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..cluster.taskmanager_watch import Presence
from ..store.stored_outputs import MapOutput
from .holdings import Holding
from .rate_limit import RateLimit
from .target import CopyServices, Outcome

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class Replication:
    """Makes copies of the map outputs of one TaskManager, and makes them again after losses.

    Args:
        services: The parts of the TaskManager.
        tell_held: Called with a shuffle and map attempts that are copies, to tell their drivers.
    """

    def __init__(
        self,
        services: CopyServices,
        tell_held: Callable[[ShuffleKey, Sequence[int]], None],
    ) -> None:
        self.holdings: Final = services.holdings
        self._services: Final = services
        self._tell_held: Final = tell_held
        self._restore: Final = RateLimit(services.config.restore_bytes_per_second)
        self._queue: dict[MapAttemptKey, None] = {}
        self._running: set[MapAttemptKey] = set()
        self._again: set[MapAttemptKey] = set()
        """Map outputs to look at again after the work on them."""
        self._stalled: set[MapAttemptKey] = set()
        """Map outputs that no TaskManager takes now."""
        self._awaited: set[str] = set()
        """TaskManagers that were not there when they were to get a copy, until they are."""
        self._waiting: dict[MapAttemptKey, asyncio.Future[None]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._backoff: Final = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._settling: asyncio.TimerHandle | None = None
        self._warned = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Map outputs being copied or queued for it."""
        return len(self._queue) + len(self._running)

    # ---- what happens to map outputs -------------------------------------------------------------

    def adopt(self) -> None:
        """Record the map outputs that were found at the start.

        Nothing is copied before ``lost_after_seconds``: until then the drivers name the other
        TaskManagers, and those that are started too come back.
        """
        store = self._services.store
        for key in [shuffle.key for shuffle in store.shuffles()]:
            for map_attempt_id, output in store.map_outputs(key).items():
                if output.origin or output.replicas > 1:
                    attempt = MapAttemptKey(key, map_attempt_id)
                    holding = self.holdings.add(
                        attempt, output.origin, output.replicas, settled=True
                    )
                    holding.doubtful |= holding.others
        if len(self.holdings):
            self._settling = asyncio.get_running_loop().call_later(
                self._services.config.lost_after_seconds, self._settled
            )

    def committed(self, output: MapOutput) -> None:
        """Record a map output that is committed here: a copy, or one that shall have some."""
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        self.holdings.add(attempt, output.origin, output.replicas)
        if output.origin:
            self._watch_shared()
            self._tell_held(output.key, [output.map_attempt_id])
        else:
            if output.is_synchronous and not self._closed:
                self._await_copies(attempt)
            self._enqueue([attempt])

    def _await_copies(self, attempt: MapAttemptKey) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting[attempt] = loop.create_future()
        late = loop.call_later(
            self._services.config.synchronous_timeout_seconds, self._answer, attempt
        )
        waiting.add_done_callback(lambda _: late.cancel())

    def wait(self, output: MapOutput) -> "asyncio.Future[None] | None":
        """Return what the producer of a committed map output waits for, also if it comes back.

        Returns:
            A future that ends when the copies are made, cannot be made now, or the deadline has
            passed; None if there is nothing to wait for. Others wait for it too: shield it.
        """
        return self._waiting.get(MapAttemptKey(output.key, output.map_attempt_id))

    def released(self, keys: Callable[[ShuffleKey], bool]) -> None:
        """Forget the map outputs of shuffles that are released."""
        self.holdings.remove(keys)
        self._purge()

    def application_released(self, application_id: str) -> None:
        """Forget an application that has ended, and the TaskManagers that its drivers named."""
        self.released(lambda key: key.application_id == application_id)
        self._services.known.forget(application_id)
        self._watch_shared()

    def lost(self, lost: Mapping[ShuffleKey, Sequence[int]]) -> None:
        """Forget map outputs that were lost with a directory; other TaskManagers restore them."""
        for key, map_attempt_ids in lost.items():
            self.holdings.discard(key, map_attempt_ids)
        self._purge()

    def held_of(self, application_id: str) -> dict[ShuffleKey, list[int]]:
        """Return the map attempts of an application that are copies here, by shuffle."""
        held: dict[ShuffleKey, list[int]] = {}
        for attempt in self.holdings.attempts():
            if attempt.shuffle.application_id == application_id:
                holding = self.holdings.get(attempt)
                if holding is not None and holding.origin:
                    held.setdefault(attempt.shuffle, []).append(attempt.map_attempt_id)
        return held

    # ---- what happens to other TaskManagers ------------------------------------------------------

    def known(self, application_id: str, place: TaskManagerPlace) -> None:
        """Record a TaskManager that a driver names.

        Raises:
            LimitExceeded: The application has named as many as it may.
        """
        if self._services.known.tell(application_id, place):
            self._services.placement.forget_refusals(place.taskmanager_id)
            self._watch_shared()
            self._enqueue(self.holdings.doubted(place.taskmanager_id))
            self._retry_now()

    def changed(self, taskmanager_id: str, now: Presence, before: Presence) -> None:
        """Record that a TaskManager has come, is away, or is lost."""
        if now is Presence.PRESENT:
            self._awaited.discard(taskmanager_id)
            if before is not Presence.UNKNOWN:
                self.holdings.doubt(taskmanager_id)
            self._services.placement.forget_refusals(taskmanager_id)
            self._enqueue(self.holdings.doubted(taskmanager_id))
            self._retry_now()
        elif now is Presence.LOST:
            again = self.holdings.lost(taskmanager_id)
            if again:
                logger.warning(
                    "TaskManager %s is lost: %d map outputs are copied again",
                    taskmanager_id,
                    len(again),
                )
            self._enqueue(again)
            self._retry_now()

    async def close(self) -> None:
        """Give up what is under way; it goes on after the next start. Idempotent."""
        self._closed = True
        self._queue.clear()
        for timer in (self._timer, self._settling):
            if timer is not None:
                timer.cancel()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for attempt in list(self._waiting):
            self._answer(attempt)
        await self._services.watches.close()
        self._services.connections.keep(())

    # ---- the queue -------------------------------------------------------------------------------

    def _enqueue(self, attempts: Iterable[MapAttemptKey]) -> None:
        if self._closed:
            return
        for attempt in attempts:
            self._stalled.discard(attempt)
            if attempt in self._running:
                self._again.add(attempt)
            else:
                self._queue[attempt] = None
        self._start_workers()

    def _start_workers(self) -> None:
        free = self._services.config.copy_streams - len(self._workers)
        for _ in range(min(free, len(self._queue))):
            worker = start_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._start_workers()  # for what came between its last look at the queue and its end

    async def _work(self) -> None:
        await self._services.watches.find_configured()
        while self._queue:
            attempt = next(iter(self._queue))
            del self._queue[attempt]
            self._running.add(attempt)
            try:
                await self._see_to(attempt)
            except Exception as error:  # noqa: BLE001
                # A bug costs the copies of this map output, not those of all others.
                failure_of(error, "copying a map output")
                self._answer(attempt)
            finally:
                self._running.discard(attempt)
            if attempt in self._again:
                self._again.discard(attempt)
                self._queue[attempt] = None
            if not self._queue and not self._running:
                self._services.connections.close_idle()
            await asyncio.sleep(0)  # many in a row may be stalled, and wait for nothing

    async def _see_to(self, attempt: MapAttemptKey) -> None:
        """Ask those who were away, and make the copies that are missing."""
        holding, output = self.holdings.get(attempt), self._services.store.lookup(*attempt)
        if holding is not None and output is not None:
            for taskmanager_id in list(holding.doubtful):
                if self.holdings.get(attempt) is holding:
                    await self._ask(attempt, output, taskmanager_id)
            tried: set[str] = set()
            while self.holdings.get(attempt) is holding and holding.missing:
                place = self._next(attempt, holding, tried)
                if place is None or not await self._copy(attempt, output, holding, place):
                    break
                tried.add(place.taskmanager_id)
            if self.holdings.get(attempt) is holding and holding.missing:
                self._stall(attempt)
        self._answer(attempt)

    async def _ask(self, attempt: MapAttemptKey, output: MapOutput, taskmanager_id: str) -> None:
        """Ask a TaskManager that was away whether it has a map output; it gets it if not."""
        place = self._services.known.place_for(attempt.shuffle.application_id, taskmanager_id)
        if place is None or self._services.watches.presence(taskmanager_id) is not Presence.PRESENT:
            return  # it is asked when it is there, or counts as lost
        outcome = await self._services.peer(place).copy(output, self._restore.take)
        if not outcome.is_there and outcome is not Outcome.ABSENT:
            self.holdings.has_not(attempt, taskmanager_id)

    async def _copy(
        self, attempt: MapAttemptKey, output: MapOutput, holding: Holding, place: TaskManagerPlace
    ) -> bool:
        """Copy a map output to a TaskManager; return whether to go on with the next one."""
        pace = self._restore.take if holding.settled else None
        outcome = await self._services.peer(place).copy(output, pace)
        if self.holdings.get(attempt) is not holding:
            return False  # it was released meanwhile
        if outcome.is_there:
            self._services.watches.watch(place.taskmanager_id)
            self._backoff.reset()
            self._warned = False
        elif outcome is Outcome.ABSENT:
            self._awaited.add(place.taskmanager_id)
            self._services.watches.watch(place.taskmanager_id)
            # If there were copies, it may have one, and be away for a restart only.
            return not holding.settled
        return outcome is not Outcome.FAILED

    def _next(
        self, attempt: MapAttemptKey, holding: Holding, tried: set[str]
    ) -> TaskManagerPlace | None:
        """Return the place for the next copy, or None."""
        absent = {Presence.LOST} if holding.settled else {Presence.LOST, Presence.AWAY}
        candidates = self._services.placement.candidates(attempt, holding.others, absent)
        for candidate in candidates:
            if candidate.adds_safety and candidate.place.taskmanager_id not in tried:
                return candidate.place
        return None

    def _stall(self, attempt: MapAttemptKey) -> None:
        self._stalled.add(attempt)
        if not self._warned:
            self._warned = True
            logger.warning(
                "no TaskManager on another host takes a copy of map output %d of %s now; "
                "those of others may wait too. The reason found last: %s",
                attempt.map_attempt_id,
                attempt.shuffle,
                self._services.placement.last_refusal,
            )
        if self._timer is None and not self._closed:
            pause_seconds = self._backoff.next_seconds()
            self._timer = asyncio.get_running_loop().call_later(pause_seconds, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._enqueue(list(self._stalled))

    def _retry_now(self) -> None:
        """Look again at what no TaskManager took: something has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._backoff.reset()
        self._enqueue(list(self._stalled))

    def _answer(self, attempt: MapAttemptKey) -> None:
        """End the wait of a producer for copies."""
        waiting = self._waiting.pop(attempt, None)
        if waiting is None or waiting.done():
            return
        if attempt in self.holdings.short:
            self._services.counters.commits_without_copies += 1
            logger.warning(
                "map output %d of %s is committed without all of its copies",
                attempt.map_attempt_id,
                attempt.shuffle,
            )
        waiting.set_result(None)

    def _settled(self) -> None:
        """See to the map outputs that were found at the start."""
        self._settling = None
        for taskmanager_id in self.holdings.taskmanagers():
            if not self._services.known.places(taskmanager_id):
                self.holdings.lost(taskmanager_id)
        self._enqueue(list(self.holdings.short))

    def _purge(self) -> None:
        """Forget all that belongs to map outputs that are no longer here."""
        self._stalled = {each for each in self._stalled if self.holdings.get(each) is not None}
        for attempt in list(self._waiting):
            if self.holdings.get(attempt) is None:
                self._answer(attempt)
        applications = self.holdings.applications()
        if not applications:
            self._awaited.clear()
        self._services.connections.keep(applications)
        self._watch_shared()
        if not applications:
            self._services.watches.forget_configured()

    def _watch_shared(self) -> None:
        if self._closed:
            return
        if len(self.holdings):
            # Without a driver, this is the only way to find the origin of a copy.
            self._services.watches.watch_configured()
        self._services.watches.keep(self.holdings.taskmanagers() | self._awaited)
