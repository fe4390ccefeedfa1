"""Watches whether another TaskManager is present, away for a short time, or lost.

::

    UNKNOWN ──connected──▶ PRESENT ──connection lost──▶ AWAY ──lost_after_seconds──▶ LOST
       │                      ▲                          ▲│                           │
       └───not connected──────┼──────────────────────────┘│                           │
                              └────────connected──────────┴────────connected──────────┘
"""

import asyncio
import enum
import logging
from typing import TYPE_CHECKING, Final

from ....protocol.errors import ErrorCode, SluiceError
from ....transport.address import Address
from ....transport.backoff import Backoff
from ....transport.errors import code_field
from ....transport.loop import ON_TIME_SLICES, start_task
from .watch_leg import WatchLeg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...names import TaskManagerPlace

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
LONGEST_UNPROVEN_PAUSE_SECONDS: Final = 60.0
"""Longest pause while no TaskManager has ever answered at an address."""
_REFUSALS: Final = frozenset(
    {
        ErrorCode.AUTHENTICATION_REQUIRED,
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.NOT_PERMITTED,
    }
)
LEAST_REPORTED_SECONDS: Final = 1.0
"""Minimum time between two attempts that reports of others cause."""
PINGS: Final = 3
"""Number of pings in the time after which a TaskManager counts as lost."""
LONGEST_PING_SECONDS: Final = 10.0


class Presence(enum.Enum):
    """The state of a watched TaskManager."""

    UNKNOWN = "unknown"
    PRESENT = "present"
    AWAY = "away"
    LOST = "lost"


class TaskManagerWatch:
    """Watches one TaskManager until it is closed.

    Args:
        address: Its address.
        place: Its place; None: that of any TaskManager at the address. When that one is lost,
            another one that answers replaces it.
        connect: Connects to the address of a watch.
        lost_after_seconds: Time away after which it counts as lost.
        changed: Called with this watch and the previous state when the state changes.
    """

    def __init__(
        self,
        address: Address,
        place: "TaskManagerPlace | None",
        connect: "Callable[[TaskManagerWatch], Awaitable[WatchLeg]]",
        lost_after_seconds: float,
        changed: "Callable[[TaskManagerWatch, Presence], None]",
    ) -> None:
        self.address: Final = address
        self.place = place
        """Its place: as it was given, or as any TaskManager reported it last."""
        self.is_any: Final = place is None
        """Whether any TaskManager may be at the address."""
        self.is_proven = False
        """Whether it has answered at the address. Until then its place may only be a claim."""
        self.presence = Presence.UNKNOWN
        self._has_refused = False
        self._connect = connect
        self._lost_after_seconds = lost_after_seconds
        self._changed = changed
        self._tried = asyncio.Event()
        self._try_now = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._soon_from = 0.0
        self._task = start_task(self._run())

    @property
    def may_end(self) -> bool:
        """Whether the watch may end: the TaskManager is lost, or was never there."""
        return self.place is None or self.presence in (Presence.LOST, Presence.UNKNOWN)

    def try_now(self) -> None:
        """Connect without a further pause, if it is not connected. Idempotent."""
        if self.presence is not Presence.PRESENT:
            self._tried.clear()
            self._try_now.set()

    def try_soon(self) -> None:
        """Do the same, unless it was done less than ``LEAST_REPORTED_SECONDS`` ago."""
        now = asyncio.get_running_loop().time()
        if now >= self._soon_from:
            self._soon_from = now + LEAST_REPORTED_SECONDS
            self.try_now()

    async def answer(self) -> None:
        """Wait until the first connection, or the one tried now, succeeds or fails.

        Returns at once if the watch is closed.

        Cancellation: safe.
        """
        await self._tried.wait()

    async def close(self) -> None:
        """End the watch. Idempotent."""
        self._tried.set()  # it is no longer tried
        self._stop_deadline()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        unproven = Backoff(FIRST_PAUSE_SECONDS, LONGEST_UNPROVEN_PAUSE_SECONDS)
        ping_seconds = min(self._lost_after_seconds / PINGS, LONGEST_PING_SECONDS)
        while True:
            leg = await self._reach()
            if leg is not None:
                try:
                    backoff.reset()
                    self._is(Presence.PRESENT)
                    self._tried.set()
                    await leg.until_ended(ping_seconds)
                finally:
                    leg.close()
            if self.presence in (Presence.PRESENT, Presence.UNKNOWN):
                self._is(Presence.AWAY)
            self._tried.set()
            try:
                pauses = backoff if self.is_proven else unproven
                async with asyncio.timeout(pauses.next_seconds()):
                    await self._try_now.wait()
            except TimeoutError:
                pass
            self._try_now.clear()

    async def _reach(self) -> WatchLeg | None:
        """Connect to it; return None if that fails."""
        try:
            leg = await self._connect(self)
        except SluiceError as error:
            # A TaskManager is there, and a setting must be changed.
            is_refusal = error.code in _REFUSALS and not self._has_refused
            self._has_refused = error.code in _REFUSALS
            level = logging.WARNING if is_refusal else logging.DEBUG
            extra = {"peer": str(self.address), **code_field(error)}
            logger.log(
                level, "cannot watch the TaskManager at %s: %s", self.address, error, extra=extra
            )
            return None
        self._has_refused = False
        try:
            self._check(leg)
        except SluiceError as error:
            is_new = self.presence in (Presence.PRESENT, Presence.UNKNOWN)
            level = logging.WARNING if is_new else logging.DEBUG
            extra = {"peer": str(self.address), **code_field(error)}
            logger.log(level, "%s: %s", self.address, error, extra=extra)
            leg.close()
            return None
        return leg

    def _check(self, leg: WatchLeg) -> None:
        """Record which TaskManager answers.

        Raises:
            TASKMANAGER_MISMATCH: It is not the same TaskManager as before.
        """
        expected = "" if self.place is None else self.place.taskmanager_id
        if leg.place.taskmanager_id != expected:
            if not self.is_any or (expected and self.presence is not Presence.LOST):
                raise SluiceError(
                    "Another TaskManager answers",
                    code=ErrorCode.TASKMANAGER_MISMATCH,
                    value=leg.place.taskmanager_id,
                    limit=expected,
                )
            self.presence = Presence.UNKNOWN  # of the new one
        if self.is_any:
            self.place = leg.place
        self.is_proven = True

    def _is(self, presence: Presence) -> None:
        before, self.presence = self.presence, presence
        if presence is Presence.AWAY:
            self._start_deadline()
        else:
            self._stop_deadline()
        if presence is not before:
            self._changed(self, before)

    def _start_deadline(self, slices: int = ON_TIME_SLICES) -> None:
        """Count the time away, as far as the loop is on time and can learn of an answer."""
        if not slices:
            self._is(Presence.LOST)
            return
        self._deadline = asyncio.get_running_loop().call_later(
            self._lost_after_seconds / ON_TIME_SLICES, self._start_deadline, slices - 1
        )

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
