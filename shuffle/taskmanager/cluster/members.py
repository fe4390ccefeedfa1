"""The addresses of the other TaskManagers of the cluster, as they join and leave.

::

    [cluster] taskmanagers ─┬─ HOST:PORT ──────────────────────────▶ ┐
                            └─ dns:NAME ──▶ resolved at intervals ─▶ ├─▶ addresses ─▶ Watches
    members that TaskManagers report ──────────────────────────────▶ ┘

An address here is a claim. :class:`.watches.Watches` connects to it, and only a TaskManager that
proves itself there becomes a member.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ....transport.address import Address
from ....transport.loop import start_task
from ....transport.member_address import DnsName
from ....transport.name_lookup import look_up
from ...names import TaskManagerPlace

logger = logging.getLogger(__name__)

MAX_ADDRESSES: Final = 4096
"""Maximum number of addresses of a name that are used."""

MAX_REPORTED: Final = 1024
"""Maximum number of reported TaskManagers that no name or setting lists."""

LOOKUP_SECONDS: Final = 5.0
"""Time in which a name service must answer."""

LEAST_PAUSE_SECONDS: Final = 1.0
"""Minimum time between two lookups of a name, even if many members are gone."""


class Members:
    """Combines configured addresses, resolved names and reported members.

    A name that cannot be resolved keeps its last addresses.

    Args:
        sources: Configured addresses and names.
        interval_seconds: Interval at which the names are resolved.
        changed: Called when :attr:`addresses` has changed.
        resolve: Returns the addresses of a name.
    """

    def __init__(
        self,
        sources: Sequence[Address | DnsName],
        interval_seconds: float,
        changed: Callable[[], None],
        resolve: Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]] = look_up,
    ) -> None:
        self.configured: Final = frozenset(each for each in sources if isinstance(each, Address))
        """The configured addresses, without those of names."""
        self._names: Final = tuple(
            dict.fromkeys(each for each in sources if isinstance(each, DnsName))
        )
        self._interval_seconds: Final = interval_seconds
        self._changed: Final = changed
        self._resolve: Final = resolve
        self._resolved: dict[DnsName, frozenset[Address]] = {}
        self._failing: set[DnsName] = set()
        self._has_refused = False
        self._reported: dict[Address, TaskManagerPlace] = {}
        self._someone_is_gone = asyncio.Event()
        self._first: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._addresses: dict[Address, TaskManagerPlace | None] = {}
        self._combine()

    @property
    def addresses(self) -> dict[Address, TaskManagerPlace | None]:
        """The addresses, each with the TaskManager reported there; None: any TaskManager."""
        return self._addresses

    @property
    def failing(self) -> int:
        """Number of names that cannot be resolved now."""
        return len(self._failing)

    def host_of(self, address: Address) -> str:
        """Return the host that a certificate must name: the name of an address, or its host."""
        names = (
            name
            for name, addresses in self._resolved.items()
            if address in addresses and address not in self.configured
        )
        return next((each.host for each in names), address.host)

    def start(self) -> None:
        """Begin to resolve the names. Idempotent."""
        if not self._names:
            self._first.set()
        elif self._task is None:
            self._task = start_task(self._run())

    async def first_answer(self) -> None:
        """Wait until each name is resolved or has failed, or the members are closed.

        Cancellation: safe.
        """
        await self._first.wait()

    def report(self, place: TaskManagerPlace) -> None:
        """Add a TaskManager that another one reports."""
        if (
            not place.port
            or self._reported.get(place.address) == place
            or place.address in self._listed
        ):
            return
        if len(self._reported) >= MAX_REPORTED and place.address not in self._reported:
            if not self._has_refused:
                logger.warning(
                    "TaskManager %s is ignored: members have already reported %d others",
                    place,
                    MAX_REPORTED,
                    extra={"peer": str(place)},
                )
            self._has_refused = True
            return
        self._reported[place.address] = place
        self._update()

    def drop_report(self, address: Address, taskmanager_id: str) -> None:
        """Forget that a TaskManager was reported at an address, unless another one is by now."""
        place = self._reported.get(address)
        if place is not None and place.taskmanager_id == taskmanager_id:
            del self._reported[address]
            self._has_refused &= bool(self._reported)
            self._update()

    def member_gone(self) -> None:
        """Resolve the names soon, because a member no longer answers."""
        self._someone_is_gone.set()

    async def close(self) -> None:
        """End the lookups. Idempotent."""
        self._first.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._someone_is_gone.clear()
            await asyncio.gather(*(self._look_up(each) for each in self._names))
            self._update()
            self._first.set()
            await asyncio.sleep(LEAST_PAUSE_SECONDS)
            try:
                async with asyncio.timeout(self._interval_seconds):
                    await self._someone_is_gone.wait()
            except TimeoutError:
                pass

    async def _look_up(self, name: DnsName) -> None:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._resolve(*name)
        except OSError as error:  # TimeoutError is one
            if name not in self._failing:
                self._failing.add(name)
                logger.warning(
                    "%s cannot be resolved, so its last addresses (%d) stay members: %s",
                    name,
                    len(self._resolved.get(name, ())),
                    str(error) or f"no answer within {LOOKUP_SECONDS:g} s",
                    extra={"peer": str(name)},
                )
            return
        if name in self._failing:
            self._failing.discard(name)
            logger.info("%s can be resolved again", name, extra={"peer": str(name)})
        if len(found) > MAX_ADDRESSES:
            logger.warning(
                "%s has %d addresses, but only %d are used",
                name,
                len(found),
                MAX_ADDRESSES,
                extra={"peer": str(name)},
            )
        self._resolved[name] = frozenset(Address(*each) for each in found[:MAX_ADDRESSES])

    def _update(self) -> None:
        before = self._addresses
        self._combine()
        if self._addresses != before:
            self._changed()

    def _combine(self) -> None:
        self._listed = self.configured.union(*self._resolved.values())
        self._addresses = dict(self._reported) | dict.fromkeys(self._listed)
