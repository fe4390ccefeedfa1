"""Reclaims segments held without progress while another application waits for segments.

While no application waits, holders are not watched, and a slow reader does no harm. The watch
starts when an application waits for segments or is refused some. At the deadline, segments of
holders without progress are reclaimed, from the tenant and of it the application with the most
promised segments first, until no other application waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from ....protocol.errors import ErrorCode, SluiceError
from ...counters import Counters
from ...memory import NetworkBufferPool, SegmentOwner
from .progress import OURS, Mark, ProgressWatch


class Unmoved(NamedTuple):
    """A holder of segments that waits for the other side of its connection.

    Attributes:
        number: Its number on the connection.
        owner: The application.
        mark: Changes when the holder makes progress.
    """

    number: int
    owner: SegmentOwner | None
    mark: Mark


class SegmentHolder(Protocol):
    """The part of a connection's handler that is used here."""

    @property
    def held_kind(self) -> str:
        """The kind of its things, in one word for metrics."""

    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the things that hold segments and wait for the other side."""

    def take_back(self, number: int, error: SluiceError) -> bool:
        """Reclaim a thing's segments, and send its client the error; False if it is gone."""


_Thing: TypeAlias = tuple[SegmentHolder | None, int]

_WAITERS: _Thing = None, 0
"""Stands for waiting applications: the watch continues while any application waits."""


class SegmentPressure:
    """Watches the holders of segments while other applications wait for segments.

    Args:
        pool: The TaskManager's segments.
        holders: Returns the handlers of all connections that can hold segments.
        counters: The TaskManager's counters.
        timeout_seconds: Time without progress after which segments are reclaimed.
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
        self._loop = asyncio.get_running_loop()
        self._watch: ProgressWatch[_Thing] = ProgressWatch(
            timeout_seconds, self._marks, self._late, self._rest
        )
        self._rest()

    def gone(self, holder: object) -> None:
        """Forget the handler of a closed connection."""
        if self._watch.is_watching:
            for thing in [each for each in self._owners if each[0] is holder]:
                del self._owners[thing]
                self._watch.forget(thing)

    def look(self) -> None:
        """Reclaim segments without progress since the last check; called by the timer."""
        self._watch.look()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._pool.demand.on_wait = None
        self._watch.close()
        self._owners.clear()

    def _rest(self) -> None:
        """Watch nothing until an application waits."""
        self._owners.clear()
        self._pool.demand.on_wait = self._somebody_waits

    def _somebody_waits(self) -> None:
        # In a later turn, because the pool calls this partway through its work.
        self._loop.call_soon(self._watch.watch)

    def _marks(self) -> list[tuple[_Thing, Mark]]:
        self._pool.refused.age()
        waiting = self._pool.waiting_owners()
        waiting.update(owner for owner, _ in self._pool.refused)
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
        found.sort(key=self._rank, reverse=True)
        return [*found, (_WAITERS, OURS)]

    def _rank(self, found: tuple[_Thing, Mark]) -> tuple[int, int]:
        owner = self._owners[found[0]]
        return (0, 0) if owner is None else owner.rank_with()

    def _late(self, thing: _Thing) -> None:
        holder, number = thing
        owner = self._owners.get(thing)
        if holder is None or not self._others_wait(owner):
            return
        error = SluiceError(
            f"The {holder.held_kind} made no progress while another application waited for "
            "segments; its segments were reclaimed",
            code=ErrorCode.DEADLINE_EXCEEDED,
            value=f"{holder.held_kind} {number}",
            limit=f"{self._watch.timeout_seconds} s without progress",
            remedy="Read open gates and close unneeded ones, or raise network_segments or "
            "gate_progress_timeout_seconds",
        )
        if holder.take_back(number, error):  # otherwise it ended with an earlier one
            self._counters.progress_deadlines.bump(holder.held_kind)

    def _others_wait(self, owner: SegmentOwner | None) -> bool:
        if self._pool.waiting_owners() - {owner}:
            return True
        unpromised = self._pool.unpromised_segments
        return any(
            segments > unpromised for other, segments in self._pool.refused if other is not owner
        )
