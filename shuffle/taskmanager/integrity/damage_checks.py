"""Verifies the map outputs that readers report as damaged, and drops those that are.

::

    reader ──ReportDamage──▶ its TaskManager ──VerifyOutputs──▶ the TaskManager that has the bytes
                                                                DamageChecks ─▶ ShuffleStore.drop

A report is not trusted: the TaskManager reads its own bytes again and compares them with the
checksums of their regions. So that false reports cost little

* one map output is verified at a time, at most ``VERIFIED_BYTES_PER_SECOND``, and the applications
  take turns;
* the disk reads take the turns of the application, and a queued check counts for its quota;
* the map outputs that wait are limited for each application, in number and in bytes;
* after a report of which every verified map output is intact, new reports of its application are
  ignored for a time that doubles.

A reader may not know which map output of its channel was damaged. So a report is true if one of its
map outputs is damaged, and it is judged only after all that were queued for it are verified.

A damaged map output is dropped and reported as lost. Drivers then run its map task again, unless
another TaskManager has a copy: that one notices that the copy here is gone, and sends it again
(:mod:`sluice.shuffle.taskmanager.cluster.watchers`).
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ....transport.backoff import Backoff
from ....transport.loop import start_task
from ...counters import BoundedCounts
from ...errors import failure_of
from ...names import MapAttemptKey, ShuffleKey, SubpartitionRange
from ..bounds.accounts import QuotaExceeded, Resource
from ..bounds.rate_limit import RateLimit
from ..store.extent_reader import is_damaged
from ..store.output_index import DAMAGED
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput, Region

logger = logging.getLogger(__name__)

VERIFIED_BYTES_PER_SECOND: Final = 128 * 1024 * 1024
"""Maximum rate at which all reported map outputs together are verified."""

MAX_WAITING: Final = 256
"""Maximum map outputs of an application that wait to be verified."""

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Maximum bytes of these map outputs, unless one alone has more: half a minute of verification."""

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""First and maximum time for which the reports of an application are ignored after a false one."""

CHECK_BYTES: Final = 512
"""Approximate memory of a map output that waits to be verified."""


class _Report:
    """A report, until all its map outputs are verified.

    Attributes:
        open: Its map outputs that are not verified yet.
        is_true: Whether one of its map outputs is damaged.
        is_false: Whether all of them that are verified are intact, and none was being verified for
            an earlier report.
    """

    __slots__ = ("_has_intact", "_is_shared", "is_true", "open")

    def __init__(self) -> None:
        self.open = 0
        self.is_true = False
        self._has_intact = False
        self._is_shared = False

    @property
    def is_false(self) -> bool:
        return self._has_intact and not self.is_true and not self._is_shared

    def share(self) -> None:
        """Record that a map output is already being verified for an earlier report."""
        self._is_shared = True

    def verified(self, *, is_wrong: bool) -> None:
        """Record what was found about a map output."""
        if is_wrong:
            self.is_true = True
        else:
            self._has_intact = True


class _Check(NamedTuple):
    """A reported map output, and the range of subpartitions that arrived damaged."""

    output: MapOutput
    start: int
    end: int
    report: _Report
    done: "asyncio.Future[None]"

    @property
    def attempt(self) -> MapAttemptKey:
        """Its map attempt."""
        return MapAttemptKey(self.output.key, self.output.map_attempt_id)

    @property
    def regions(self) -> list[Region]:
        """The regions that have bytes of the range."""
        return [each for each in self.output.regions if each.slice(self.start, self.end)[1]]

    @property
    def length(self) -> int:
        """The bytes that it reads."""
        return sum([each.offsets[-1] for each in self.regions])


class _Reports:
    """The reports of one application.

    Attributes:
        waiting: What they ask to verify.
        waiting_bytes: The bytes that these checks read.
        ignored_until: Until then, by the loop's clock, its reports are ignored.
        backoff: How much longer they are ignored after the next false one.
    """

    __slots__ = ("backoff", "ignored_until", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting: deque[_Check] = deque()
        self.waiting_bytes = 0
        self.ignored_until = 0.0
        self.backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


class DamageChecks:
    """Verifies reported map outputs of a store.

    Args:
        store: Has the map outputs.

    Attributes:
        dropped: Map outputs that were found damaged, and dropped.
        results: Reported map outputs by what was found.
    """

    def __init__(self, store: ShuffleStore) -> None:
        self.dropped = 0
        self.results: Final = BoundedCounts()
        self._store: Final = store
        self._applications: OrderedDict[str, _Reports] = OrderedDict()
        """The applications that have reported damage a short time ago, in their turns."""
        self._checks: dict[MapAttemptKey, _Check] = {}
        """Map outputs that wait to be verified, or are being verified."""
        self._rate: Final = RateLimit(VERIFIED_BYTES_PER_SECOND)
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Map outputs that are being verified, or wait for it."""
        return len(self._checks)

    def report(self, wanted: SubpartitionRange, map_attempt_ids: Sequence[int]) -> None:
        """Verify subpartitions of map outputs that arrived damaged, if they are here.

        Args:
            wanted: The subpartitions; the range may be anything.
            map_attempt_ids: The map attempts.
        """
        report = _Report()
        for map_attempt_id in map_attempt_ids:
            output = self._store.lookup(wanted.shuffle, map_attempt_id)
            if output is None or output.is_moved or self._closed:
                # What another TaskManager has put into the remote tier is not dropped here.
                self.results.bump("unknown")
                if self._store.why_lost(wanted.shuffle, map_attempt_id) == DAMAGED:
                    report.verified(is_wrong=True)  # for another report, or by the scrub
            elif MapAttemptKey(wanted.shuffle, map_attempt_id) in self._checks:
                self.results.bump("repeated")
                report.share()
            elif not self._enqueue(output, wanted, report):
                self.results.bump("refused")

    async def settle(
        self, key: ShuffleKey, map_attempt_ids: Sequence[int], deadline: float
    ) -> None:
        """Wait until reported map outputs are verified: a reader shall not get them damaged again.

        Args:
            key: The shuffle.
            map_attempt_ids: The map attempts that are requested.
            deadline: Latest return, by the loop's clock.

        Cancellation: safe, without effect on the checks.
        """
        if not self._checks:
            return
        waiting = [
            check.done
            for each in map_attempt_ids
            if (check := self._checks.get(MapAttemptKey(key, each))) is not None
        ]
        if waiting:
            left_seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait(waiting, timeout=left_seconds)

    async def verify(
        self,
        output: MapOutput,
        regions: Sequence[Region] | None = None,
        pace: RateLimit | None = None,
    ) -> bool | None:
        """Verify the bytes of a map output, and drop it if they are damaged.

        Args:
            output: The map output.
            regions: Those of its regions to verify; by default all.
            pace: Limits the bytes per second.

        Returns:
            Whether they are damaged; False if the map output is no longer here, None if they
            cannot be read now.

        Cancellation: safe; nothing is dropped.
        """
        if not self._is_here(output):
            return False
        take = None if pace is None else pace.take
        is_wrong = await is_damaged(self._store.read_all, output, regions, take)
        if not is_wrong:
            return is_wrong
        if self._is_here(output):
            logger.error(
                "map output %d of %s is damaged in storage, and is dropped",
                output.map_attempt_id,
                output.key,
                extra=output.key.log_fields | {"map_attempt": output.map_attempt_id},
            )
            self.dropped += 1
            self._store.drop(output, DAMAGED)
        return True

    async def close(self) -> None:
        """Verify nothing more. Idempotent.

        Cancellation: safe; the check that runs is cancelled.
        """
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        for reports in self._applications.values():
            reports.waiting.clear()
        for check in list(self._checks.values()):
            self._end(check)

    def _is_here(self, output: MapOutput) -> bool:
        return self._store.lookup(output.key, output.map_attempt_id) is output

    # ---- the queue -------------------------------------------------------------------------------

    def _enqueue(self, output: MapOutput, wanted: SubpartitionRange, report: _Report) -> bool:
        """Queue a check; return False if its application has reported too much."""
        loop = asyncio.get_running_loop()
        application_id = output.key.application_id
        reports = self._applications.get(application_id)
        if reports is None:
            self._forget_idle(loop.time())
            reports = self._applications[application_id] = _Reports()
        if len(reports.waiting) >= MAX_WAITING or loop.time() < reports.ignored_until:
            return False
        check = _Check(output, wanted.start, wanted.end, report, loop.create_future())
        if reports.waiting and reports.waiting_bytes + check.length > MAX_WAITING_BYTES:
            return False
        try:
            self._store.accounts.of(application_id).take(Resource.METADATA_BYTES, CHECK_BYTES)
        except QuotaExceeded:
            return False
        self._checks[check.attempt] = check
        reports.waiting.append(check)
        reports.waiting_bytes += check.length
        report.open += 1
        if self._worker is None:
            self._worker = start_task(self._work())
        return True

    def _forget_idle(self, now: float) -> None:
        """Forget the applications without checks whose last false report was long ago."""
        checked = {each.shuffle.application_id for each in self._checks}
        for application_id in self._applications.keys() - checked:
            if now > self._applications[application_id].ignored_until + LONGEST_PAUSE_SECONDS:
                del self._applications[application_id]

    def _next(self) -> _Check | None:
        """Take a check of the application whose turn it is."""
        for application_id, reports in list(self._applications.items()):
            if reports.waiting:
                self._applications.move_to_end(application_id)
                check = reports.waiting.popleft()
                reports.waiting_bytes -= check.length
                return check
        return None

    async def _work(self) -> None:
        while (check := self._next()) is not None:
            try:
                if self._is_here(check.output):
                    is_wrong = await self.verify(check.output, check.regions, self._rate)
                    if is_wrong is None:
                        self.results.bump("unknown")
                    else:
                        self.results.bump("damaged" if is_wrong else "intact")
                        check.report.verified(is_wrong=is_wrong)
                else:  # released meanwhile
                    self.results.bump("unknown")
            except Exception as error:  # noqa: BLE001 - a bug must not stop the other checks
                failure_of(error, "verifying a map output that was reported as damaged")
            finally:
                self._end(check)
        self._worker = None

    def _judge(self, report: _Report, application_id: str) -> None:
        """Ignore further reports of an application for a while if one is false."""
        reports = self._applications.get(application_id)
        if reports is None:
            return
        if report.is_true:
            reports.backoff.reset()
        elif report.is_false:
            pause_seconds = reports.backoff.next_seconds()
            reports.ignored_until = asyncio.get_running_loop().time() + pause_seconds

    def _end(self, check: _Check) -> None:
        """Complete a check, wake the requests that wait for it, and judge a complete report."""
        if self._checks.pop(check.attempt, None) is not None:
            account = self._store.accounts.of(check.output.key.application_id)
            account.give_back(Resource.METADATA_BYTES, CHECK_BYTES)
            check.done.set_result(None)
            check.report.open -= 1
            if not check.report.open:
                self._judge(check.report, check.output.key.application_id)
