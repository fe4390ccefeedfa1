"""Makes the copies of one application's map outputs.

Map outputs that lack copies are queued, and up to ``copy_streams`` tasks empty the queue. They
offer a map output to TaskManagers on other hosts in their order of placement, and skip those that
drain, are full, or are away. If no TaskManager takes it, it waits until another one connects, or
for a pause that grows. The copy in the remote tier is made after them, and waits for pauses of its
own if the remote tier fails.

Except for the streams, nothing here is shared with another application. An address that does not
answer delays only the application whose driver named it: :class:`OwnerSlots` keep a stream for each
of the others.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from ....transport.loop import start_task
from ...errors import failure_of
from ...names import MapAttemptKey, TaskManagerPlace
from ..bounds.rate_limit import RateLimit
from ..cluster.taskmanager_watch import Presence
from ..store.stored_outputs import MapOutput
from .copier import Pace
from .holdings import Holding
from .stalled_outputs import StalledOutputs
from .target import CopyServices, Outcome, PeerTarget, RemoteTarget
from .unreachable_places import UnreachablePlaces

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunningCopy:
    """A map output whose copies are being made.

    Attributes:
        began_at: Time of the last step, as of ``time.monotonic()``.
        target: The TaskManager or the remote tier that is written or asked; empty between them.
        waits_for_rate: Whether the copy waits for its rate.
    """

    began_at: float
    target: str = ""
    waits_for_rate: bool = False


NAMING_SECONDS: Final = 1.0
"""Minimum time between two scans of all map outputs after the driver named TaskManagers."""


class ApplicationCopies:
    """Makes the copies of one application's map outputs.

    Args:
        application_id: The application.
        services: The parts of the TaskManager.
        restore: Limits the bytes per second of copies made again.
        on_named: Called before TaskManagers that a driver named are used.
        on_idle: Called with the application when nothing is queued or being copied.
    """

    def __init__(
        self,
        application_id: str,
        services: CopyServices,
        restore: RateLimit,
        on_named: Callable[[], None],
        on_idle: Callable[["ApplicationCopies"], None],
    ) -> None:
        self.application_id: Final = application_id
        self._services: Final = services
        self._restore: Final = restore
        self._on_named: Final = on_named
        self._on_idle: Final = on_idle
        # Not a dict: to find its first key, a dict steps over all keys that were taken before.
        self._queue: OrderedDict[MapAttemptKey, None] = OrderedDict()
        self._running: dict[MapAttemptKey, RunningCopy] = {}
        self._again: set[MapAttemptKey] = set()
        """Map outputs that are processed now, and must be processed again afterwards."""
        self._stalled: Final = StalledOutputs(
            "no TaskManager on another host takes a copy", self._enqueue
        )
        self._stalled_remote: Final = StalledOutputs("the remote tier takes no copy", self._enqueue)
        self._named: dict[str, bool] = {}
        """TaskManagers that a driver has just named; True: they had another place before."""
        self._naming: asyncio.TimerHandle | None = None
        self._named_at = -NAMING_SECONDS
        self._absent: Final = UnreachablePlaces(services.config.lost_after_seconds)
        self._waiting: dict[MapAttemptKey, asyncio.Future[None]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Map outputs being copied or queued for it."""
        return len(self._queue) + len(self._running)

    @property
    def running(self) -> dict[MapAttemptKey, RunningCopy]:
        """The map outputs whose copies are being made, for status."""
        return self._running

    @property
    def queued(self) -> int:
        """Map outputs that wait for a stream, for status."""
        return len(self._queue)

    @property
    def stalled(self) -> tuple[StalledOutputs, StalledOutputs]:
        """The map outputs that no TaskManager takes, and those that the remote tier does not."""
        return self._stalled, self._stalled_remote

    @property
    def producers(self) -> list[MapAttemptKey]:
        """The map outputs whose producers wait for copies, for status."""
        return list(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no task makes copies."""
        return not self._workers

    def await_copies(self, attempt: MapAttemptKey) -> None:
        """Let the producer of a map output wait for its copies."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting[attempt] = loop.create_future()
        late = loop.call_later(
            self._services.config.synchronous_timeout_seconds, self._answer, attempt
        )
        waiting.add_done_callback(lambda _: late.cancel())

    def wait(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return what the producer of a map output has to wait for: :meth:`Replication.wait`."""
        return self._waiting.get(attempt)

    def released(self) -> None:
        """Forget everything about map outputs that are no longer here."""
        holdings = self._services.holdings
        for stalled in (self._stalled, self._stalled_remote):
            stalled.retain(lambda attempt: holdings.get(attempt) is not None)
        for attempt in list(self._waiting):
            if holdings.get(attempt) is None:
                self._answer(attempt)

    def named(self, taskmanager_id: str, *, moved: bool) -> None:
        """Use a TaskManager that a driver names; ``moved``: it had another place before."""
        self._named[taskmanager_id] = moved or self._named.get(taskmanager_id, False)
        if self._naming is None and not self._closed:
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._named_at + NAMING_SECONDS)
            self._naming = loop.call_at(due, self._use_named)

    def _use_named(self) -> None:
        self._naming, self._named_at = None, asyncio.get_running_loop().time()
        self._on_named()
        named, self._named = self._named, {}
        for taskmanager_id, moved in named.items():
            place = self._services.known.place_for(self.application_id, taskmanager_id)
            if moved:
                self._services.holdings.doubt(self.application_id, taskmanager_id)
            if place is not None:
                self._is_there(place)

    def changed(self, place: TaskManagerPlace, now: Presence, before: Presence) -> None:
        """Record that a TaskManager is present, away or lost."""
        taskmanager_id = place.taskmanager_id
        if now is Presence.PRESENT:
            if before is not Presence.UNKNOWN:
                self._services.holdings.doubt(self.application_id, taskmanager_id)
            self._is_there(place)
        elif now is Presence.LOST:
            again = self._services.holdings.lost(self.application_id, taskmanager_id)
            if again:
                logger.warning(
                    "TaskManager %s is lost: %d map outputs of %s are copied again",
                    taskmanager_id,
                    len(again),
                    self.application_id,
                    extra={"application": self.application_id, "peer": taskmanager_id},
                )
            self.enqueue(again)
            self._stalled.retry_now()

    async def close(self) -> None:
        """Cancel the copies being made. Idempotent."""
        self._closed = True
        self._queue.clear()
        self._stalled.close()
        self._stalled_remote.close()
        if self._naming is not None:
            self._naming.cancel()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for attempt in list(self._waiting):
            self._answer(attempt)

    # ---- the queue -------------------------------------------------------------------------------

    def enqueue(self, attempts: Iterable[MapAttemptKey]) -> None:
        """Queue map outputs to be processed, or processed again, without a pause."""
        attempts = list(attempts)
        for attempt in attempts:
            self._unstall(attempt)
        self._enqueue(attempts)

    def _unstall(self, attempt: MapAttemptKey) -> None:
        self._stalled.discard(attempt)
        self._stalled_remote.discard(attempt)

    def _enqueue(self, attempts: Iterable[MapAttemptKey]) -> None:
        if self._closed:
            return
        for attempt in attempts:
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
        if not self._workers:
            self._on_idle(self)

    async def _work(self) -> None:
        await self._services.watches.find_members()
        while self._queue:
            await self._services.streams.take(self.application_id)
            try:
                await self._process_next()
            finally:
                self._services.streams.release(self.application_id)
            await asyncio.sleep(0)  # many in a row may be stalled without waiting

    async def _process_next(self) -> None:
        if not self._queue:
            return  # emptied while this task waited for a stream
        attempt, _ = self._queue.popitem(last=False)
        self._running[attempt] = RunningCopy(monotonic())
        try:
            await self._process(attempt)
        except Exception as error:  # noqa: BLE001
            # A bug must not stop the copies of other map outputs.
            failure_of(error, "copying a map output")
            self._answer(attempt)
        finally:
            self._running.pop(attempt, None)
            if self._services.tracing is not None:
                self._services.tracing.forget(attempt)
        if attempt in self._again:
            self._again.discard(attempt)
            self._unstall(attempt)
            self._queue[attempt] = None

    async def _process(self, attempt: MapAttemptKey) -> None:
        """Ask TaskManagers that were away, and make the copies that are missing."""
        holdings = self._services.holdings
        holding, output = holdings.get(attempt), self._services.store.lookup(*attempt)
        if holding is not None and output is not None:
            for taskmanager_id in list(holding.doubtful):
                if holdings.get(attempt) is holding:
                    await self._ask(attempt, output, taskmanager_id)
            if attempt not in self._stalled:
                await self._copy_to_others(attempt, output, holding)
            if attempt not in self._stalled_remote:
                await self._copy_to_remote(attempt, output, holding)
        self._answer(attempt)

    async def _ask(self, attempt: MapAttemptKey, output: MapOutput, taskmanager_id: str) -> None:
        """Copy a map output to a TaskManager that was away, unless it still has it."""
        place = self._services.known.place_for(self.application_id, taskmanager_id)
        if place is None or self._services.watches.presence(place) is not Presence.PRESENT:
            return  # asked when it is present, unless it is lost by then
        self._turns_to(attempt, place.address)
        outcome = await PeerTarget(place, self._services).copy(output, self._pace(attempt))
        if outcome is Outcome.ABSENT:
            is_here = self._services.holdings.get(attempt) is not None
            if is_here and self._services.watches.presence(place) is Presence.PRESENT:
                # Only the connection was lost: no change of presence will cause a retry.
                self._stalled.add(attempt, self._services.placement.last_refusal)
        elif outcome is not Outcome.COPIED:
            self._services.holdings.has_not(attempt, taskmanager_id)

    async def _copy_to_others(
        self, attempt: MapAttemptKey, output: MapOutput, holding: Holding
    ) -> None:
        """Copy a map output to as many TaskManagers as it lacks."""
        holdings = self._services.holdings
        tried: set[str] = set()
        while holdings.get(attempt) is holding and holding.missing:
            place = self._next(attempt, holding, tried)
            if place is None or not await self._copy(attempt, output, holding, place):
                break
            tried.add(place.taskmanager_id)
        if holdings.get(attempt) is holding and holding.missing:
            self._stalled.add(attempt, self._services.placement.last_refusal)

    async def _copy(
        self, attempt: MapAttemptKey, output: MapOutput, holding: Holding, place: TaskManagerPlace
    ) -> bool:
        """Copy a map output to a TaskManager; return whether to try the next one."""
        pace = self._pace(attempt) if holding.settled else None
        self._turns_to(attempt, place.address)
        outcome = await PeerTarget(place, self._services).copy(output, pace)
        if self._services.holdings.get(attempt) is not holding:
            return False  # it was released meanwhile
        if outcome is Outcome.COPIED:
            self._services.watches.watch(place)
            self._absent.forget(place)
            self._stalled.succeeded()
        elif outcome is Outcome.ABSENT:
            self._absent.record(place)
            # If there were copies, this TaskManager may have one, and only restart now.
            return not holding.settled or self._absent.is_lost(place)
        return outcome is not Outcome.FAILED

    async def _copy_to_remote(
        self, attempt: MapAttemptKey, output: MapOutput, holding: Holding
    ) -> None:
        """Copy a map output to the remote tier if it lacks this copy, and notify the drivers."""
        holdings = self._services.holdings
        if holdings.get(attempt) is not holding or not holding.lacks_remote:
            return
        pace = self._pace(attempt) if holding.settled else None
        self._turns_to(attempt, RemoteTarget.name)
        reason = await RemoteTarget(None, self._services).keep(output, pace)
        if not reason:
            self._stalled_remote.succeeded()
        elif holdings.get(attempt) is holding and holding.lacks_remote:
            self._stalled_remote.add(attempt, reason)

    def _turns_to(self, attempt: MapAttemptKey, target: object) -> None:
        """Record to which target a map output is copied now, for status."""
        running = self._running.get(attempt)
        if running is not None:
            running.began_at, running.target = monotonic(), str(target)

    def _pace(self, attempt: MapAttemptKey) -> Pace:
        """Return a pace that waits for the rate, and records it for status."""

        async def take(length: int) -> None:
            running = self._running.get(attempt)
            if running is not None:
                running.waits_for_rate = True
            try:
                await self._restore.take(length)
            finally:
                if running is not None:
                    running.waits_for_rate = False

        return take

    def _next(
        self, attempt: MapAttemptKey, holding: Holding, tried: set[str]
    ) -> TaskManagerPlace | None:
        """Return the place for the next copy, or None."""
        absent = {Presence.LOST} if holding.settled else {Presence.LOST, Presence.AWAY}
        for candidate in self._services.placement.candidates(
            attempt, holding.others, lambda place: self._presence(place) in absent
        ):
            place = candidate.place
            if candidate.adds_safety and place.taskmanager_id not in tried:
                # One that is away may have a copy, and only restart now.
                return None if self._presence(place) is Presence.AWAY else place
        return None

    def _presence(self, place: TaskManagerPlace) -> Presence:
        """Return the state of a TaskManager, as this application or a watch found it last."""
        found = self._absent.presence(place)
        return self._services.watches.presence(place) if found is Presence.UNKNOWN else found

    def _is_there(self, place: TaskManagerPlace) -> None:
        """Use a TaskManager that may take copies again."""
        taskmanager_id = place.taskmanager_id
        self._absent.forget(place)
        self._services.placement.forget_refusal(taskmanager_id, self.application_id)
        self.enqueue(self._services.holdings.doubted(self.application_id, taskmanager_id))
        self._stalled.retry_now()

    def _answer(self, attempt: MapAttemptKey) -> None:
        """Answer the producer that waits for the copies of a map output."""
        waiting = self._waiting.pop(attempt, None)
        if waiting is None or waiting.done():
            return
        if attempt in self._services.holdings.short:
            self._services.counters.commits_without_copies += 1
            logger.warning(
                "map output %d of %s is committed without all of its copies",
                attempt.map_attempt_id,
                attempt.shuffle,
                extra=attempt.log_fields,
            )
        waiting.set_result(None)
