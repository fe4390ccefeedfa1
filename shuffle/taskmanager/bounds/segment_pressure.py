"""Takes segments back from those who do not move while another application waits for segments.

Nothing is watched while nobody waits: then a slow reader is as good as any. When an application
begins to wait for segments, or is refused some, the watch begins. What has not moved at the end of
the time is taken back, from the application with the most promised segments first, until nobody
else waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from ...counters import Counters
from ...errors import NoProgress
from ...memory import NetworkBufferPool, SegmentOwner
from .progress import OURS, Mark, ProgressWatch


class Unmoved(NamedTuple):
    """Something that holds segments and waits for the other side of its connection.

    Attributes:
        number: Its number on the connection.
        owner: The application.
        mark: Differs from the one before if it has moved.
    """

    number: int
    owner: SegmentOwner | None
    mark: Mark


class SegmentHolder(Protocol):
    """The handler of a connection, as far as it matters here."""

    @property
    def held_kind(self) -> str:
        """The things that it has, in a word for metrics."""

    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the things that hold segments, and wait for the other side."""

    def take_back(self, number: int, error: NoProgress) -> bool:
        """Take the segments of a thing back, and tell its client the error; False if it is gone."""


_Thing: TypeAlias = tuple[SegmentHolder | None, int]

_WAITERS: _Thing = None, 0
"""Stands for those who wait: the watch goes on for as long as there are any."""


class SegmentPressure:
    """Watches who holds segments while others wait for them.

    Args:
        pool: The TaskManager's segments.
        holders: Returns the handlers of all connections that can hold segments.
        counters: The TaskManager's counters.
        timeout_seconds: Time without a move after which segments are taken back.
    """

    def __init__(
        self,
        pool: NetworkBufferPool,
        holders: Callable[[], Iterable[SegmentHolder]],
        counters: Counters,
        timeout_seconds: float,
    ) -> None:
        self._pool = pool
        self._holders = holders
        self._counters = counters
        self._owners: dict[_Thing, SegmentOwner | None] = {}
        self._refused: dict[SegmentOwner, int] = {}
        """The promised segments that each owner would have had, if it had not been refused some
        since the look before the last."""
        self._refused_lately: dict[SegmentOwner, int] = {}
        self._loop = asyncio.get_running_loop()
        self._watch: ProgressWatch[_Thing] = ProgressWatch(
            timeout_seconds, self._marks, self._late, self._rest
        )
        self._rest()

    def gone(self, holder: object) -> None:
        """Forget the handler of a connection that has ended."""
        if self._watch.is_watching:
            for thing in [each for each in self._owners if each[0] is holder]:
                del self._owners[thing]
                self._watch.forget(thing)

    def look(self) -> None:
        """Take back what has not moved since the last look; the timer calls this."""
        self._watch.look()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._pool.demand.on_wait = None
        self._watch.close()
        self._owners.clear()

    def _rest(self) -> None:
        """Watch nothing until somebody waits."""
        self._owners.clear()
        self._pool.demand.on_wait = self._somebody_waits

    def _somebody_waits(self) -> None:
        # In a turn of its own: the pool is in the midst of its work.
        self._loop.call_soon(self._watch.watch)

    def _marks(self) -> list[tuple[_Thing, Mark]]:
        demand = self._pool.demand
        lately, self._refused_lately = (
            self._refused_lately,
            {
                owner: wanted
                for owner, wanted in demand.refused.items()
                if isinstance(owner, SegmentOwner)
            },
        )
        demand.refused.clear()
        self._refused = lately | self._refused_lately
        waiting = self._pool.waiting_owners()
        for owner, wanted in self._refused.items():
            if owner.promised_segments < wanted:
                waiting.add(owner)
        self._owners.clear()
        if not waiting:
            return []
        found: list[tuple[_Thing, Mark]] = []
        for holder in self._holders():
            for each in holder.unmoved():
                if waiting - {each.owner}:
                    thing = holder, each.number
                    self._owners[thing] = each.owner
                    found.append((thing, each.mark))
        found.sort(key=self._promised, reverse=True)
        return [*found, (_WAITERS, OURS)]

    def _promised(self, found: tuple[_Thing, Mark]) -> int:
        owner = self._owners[found[0]]
        return 0 if owner is None else owner.promised_segments

    def _late(self, thing: _Thing) -> None:
        holder, number = thing
        owner = self._owners.get(thing)
        if holder is None or not self._others_wait(owner):
            return
        error = NoProgress(
            f"A {holder.held_kind} holds segments and does not move while another application "
            "waits for some, so they are taken back",
            value=f"{holder.held_kind} {number}",
            limit=f"{self._watch.timeout_seconds} s without a move",
            remedy="Read what is open, and close what is not needed; more network_segments, or a "
            "longer gate_progress_timeout_seconds, leave more time",
        )
        if holder.take_back(number, error):  # otherwise it ended with one before it
            self._counters.progress_deadlines.bump(holder.held_kind)

    def _others_wait(self, owner: SegmentOwner | None) -> bool:
        if self._pool.waiting_owners() - {owner}:
            return True
        unpromised = self._pool.unpromised_segments
        return any(
            wanted - other.promised_segments > unpromised
            for other, wanted in self._refused.items()
            if other is not owner
        )
