"""Keeps as many copies of map outputs as their producers ask for.

A map output that lacks copies is queued, and ``copy_streams`` tasks empty the queue. They offer the
map output to TaskManagers on other hosts in their order of placement, and skip those that refuse:
they drain, are full, or are away. If no TaskManager takes it, the map output waits until another
one connects, or for a pause that grows.

TaskManagers that share a map output with this one are watched. When one comes back, it is asked
whether it still has each map output, one message for each. The map outputs of a lost TaskManager
are copied again, no faster than ``restore_bytes_per_second``.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ....transport.backoff import Backoff
from ....transport.loop import start_task
from ...errors import failure_of
from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..cluster.taskmanager_watch import Presence
from ..store.stored_outputs import MapOutput
from .holdings import Holding
from .target import CopyServices, Outcome, PeerTarget

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class Replication:
    """Makes copies of the map outputs of one TaskManager, and makes them again after losses.

    Args:
        services: The parts of the TaskManager.
    """

    def __init__(self, services: CopyServices) -> None:
        self.holdings: Final = services.holdings
        self._services: Final = services
        self._restore: Final = RateLimit(services.config.restore_bytes_per_second)
        self._queue: dict[MapAttemptKey, None] = {}
        self._running: set[MapAttemptKey] = set()
        self._again: set[MapAttemptKey] = set()
        """Map outputs that are processed now, and must be processed again afterwards."""
        self._stalled: set[MapAttemptKey] = set()
        """Map outputs that no TaskManager takes now."""
        self._awaited: set[str] = set()
        """TaskManagers that were absent when a copy was to be made, until they are present."""
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

    # ---- changes of map outputs ------------------------------------------------------------------

    def adopt(self) -> None:
        """Queue copies for the map outputs adopted at start.

        Nothing is copied before ``lost_after_seconds``. Until then the drivers name the other
        TaskManagers, and those that also start again come back.
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
        """Record a committed map output: a copy, or one of which copies are made."""
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        self.holdings.add(attempt, output.origin, output.replicas)
        if output.origin:
            self._watch_shared()
            self._services.drivers.tell_held(output.key, [output.map_attempt_id])
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
        """Return what the producer of a committed map output has to wait for.

        Returns:
            A future that completes when the copies are made, cannot be made now, or the deadline
            has passed; None if the producer need not wait. Shield it, because it is shared.
        """
        return self._waiting.get(MapAttemptKey(output.key, output.map_attempt_id))

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        self.holdings.release(key, end)
        self._purge()

    def application_released(self, application_id: str) -> None:
        """Forget an ended application, and the TaskManagers that its drivers named."""
        self.holdings.release_application(application_id)
        self._purge()
        self._services.known.forget(application_id)
        self._watch_shared()

    def lost(self, lost: Mapping[ShuffleKey, Sequence[int]]) -> None:
        """Forget map outputs lost with a directory; other TaskManagers restore them."""
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

    # ---- changes of other TaskManagers -----------------------------------------------------------

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
        """Record that a TaskManager is present, away or lost."""
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
        """Cancel the copies being made, which continue after the next start. Idempotent."""
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
        self._start_workers()  # the queue may have grown after the worker found it empty

    async def _work(self) -> None:
        await self._services.watches.find_configured()
        while self._queue:
            attempt = next(iter(self._queue))
            del self._queue[attempt]
            self._running.add(attempt)
            try:
                await self._process(attempt)
            except Exception as error:  # noqa: BLE001
                # A bug must not stop the copies of other map outputs.
                failure_of(error, "copying a map output")
                self._answer(attempt)
            finally:
                self._running.discard(attempt)
            if attempt in self._again:
                self._again.discard(attempt)
                self._queue[attempt] = None
            if not self._queue and not self._running:
                self._services.connections.close_idle()
            await asyncio.sleep(0)  # many in a row may be stalled without waiting

    async def _process(self, attempt: MapAttemptKey) -> None:
        """Ask TaskManagers that were away, and make the copies that are missing."""
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
        """Copy a map output to a TaskManager that was away, unless it still has it."""
        place = self._services.known.place_for(attempt.shuffle.application_id, taskmanager_id)
        if place is None or self._services.watches.presence(taskmanager_id) is not Presence.PRESENT:
            return  # asked when it is present, unless it is lost by then
        outcome = await PeerTarget(place, self._services).copy(output, self._restore.take)
        if outcome not in (Outcome.COPIED, Outcome.ABSENT):
            self.holdings.has_not(attempt, taskmanager_id)

    async def _copy(
        self, attempt: MapAttemptKey, output: MapOutput, holding: Holding, place: TaskManagerPlace
    ) -> bool:
        """Copy a map output to a TaskManager; return whether to try the next one."""
        pace = self._restore.take if holding.settled else None
        outcome = await PeerTarget(place, self._services).copy(output, pace)
        if self.holdings.get(attempt) is not holding:
            return False  # it was released meanwhile
        if outcome is Outcome.COPIED:
            self._services.watches.watch(place.taskmanager_id)
            self._backoff.reset()
            self._warned = False
        elif outcome is Outcome.ABSENT:
            self._awaited.add(place.taskmanager_id)
            self._services.watches.watch(place.taskmanager_id)
            # If there were copies, this TaskManager may have one, and only restart now.
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
                "no TaskManager on another host takes a copy of map output %d of %s; "
                "copies of other map outputs may wait too. Last reason: %s",
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
        """Retry the map outputs that no TaskManager took, because something has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._backoff.reset()
        self._enqueue(list(self._stalled))

    def _answer(self, attempt: MapAttemptKey) -> None:
        """Answer the producer that waits for the copies of a map output."""
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
        """Copy the map outputs adopted at start that still lack copies."""
        self._settling = None
        for taskmanager_id in self.holdings.taskmanagers():
            if not self._services.known.places(taskmanager_id):
                self.holdings.lost(taskmanager_id)
        self._enqueue(list(self.holdings.short))

    def _purge(self) -> None:
        """Forget everything about map outputs that are no longer here."""
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


class RateLimit:
    """Limits the bytes per second of all its users together.

    Args:
        bytes_per_second: The rate.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, length: int) -> None:
        """Wait until the rate allows these bytes.

        Cancellation: safe; the bytes are counted anyway.
        """
        now = asyncio.get_running_loop().time()
        wait_seconds = self._free_at - now
        self._free_at = max(self._free_at, now) + length / self._bytes_per_second
        if wait_seconds > 0:
            await asyncio.sleep(wait_seconds)
