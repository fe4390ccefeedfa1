"""Rules by which segments are distributed.

Each pool is promised the segments that it requires (:class:`PoolBounds`). The spare segments are
shared evenly (:class:`Sharing`), up to each pool's maximum. When all maxima together are more than
the total, the pools get less than they could use: :class:`MemoryDemand` says so in the log.
"""

import bisect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ..errors import InvalidPoolSize

logger = logging.getLogger(__name__)

WARNING_INTERVAL_SECONDS: Final = 60.0
"""Least time between two warnings."""


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """The bounds of a local pool, fixed for its life.

    Attributes:
        required_segments: The pool's limit never goes below this.
        maximum_segments: The limit never goes above this; ``None`` for unbounded.
        max_overdraft_buffers: Segments that the pool may lend beyond its limit.
        max_buffers_per_channel: Segments of one channel that make the pool unavailable; ``None``
            for no such maximum.
    """

    required_segments: int
    maximum_segments: int | None = None
    max_overdraft_buffers: int = 0
    max_buffers_per_channel: int | None = None

    def check(self, pool_name: str) -> None:
        """Check every number of a pool.

        Raises:
            InvalidPoolSize: A number is below its least one, or the maximum is below the required
                number.
        """
        required = self.required_segments
        for what, number, least in (
            ("required segments", required, 0),
            ("maximum segments", self.maximum_segments, max(1, required)),
            ("overdraft buffers", self.max_overdraft_buffers, 0),
            ("buffers per channel", self.max_buffers_per_channel, 1),
        ):
            if number is not None and number < least:
                raise InvalidPoolSize(
                    f"Too few {what} for buffer pool {pool_name}",
                    value=number,
                    limit=least,
                    remedy=f"Set at least {least}",
                )

    @property
    def wanted_segments(self) -> int:
        """Segments that the pool can use: its maximum.

        For an unbounded pool this is an estimate, twice the required number.
        """
        most = self.maximum_segments
        return 2 * self.required_segments if most is None else most

    def room(self, total_segments: int) -> int:
        """Return by how many segments the limit can exceed ``required_segments``."""
        most = self.maximum_segments
        return max(0, (total_segments if most is None else most) - self.required_segments)


class Sharer(Protocol):
    """A pool that takes part in the sharing."""

    @property
    def room(self) -> int:
        """Spare segments that the pool can take at most; fixed."""


SharerT = TypeVar("SharerT", bound=Sharer)


def fair_shares(spare: int, rooms: Sequence[int]) -> Iterator[int]:
    """Share ``spare`` evenly (±1); what a full pool cannot take flows on to the others.

    Args:
        spare: Segments to share, 0 or more.
        rooms: Segments that each pool can take at most, **in ascending order**: the pool with the
            least room is served first, so one pass spreads its remainder over all the others.

    Yields:
        The share of each pool, in the order of ``rooms``. Their sum is ``min(spare, sum(rooms))``;
        two shares differ by at most 1 unless the smaller one fills its room.
    """
    pools = len(rooms)
    for room in rooms:
        share = min(room, spare // pools)
        spare -= share
        pools -= 1
        yield share


class Sharing(Generic[SharerT]):
    """The pools that share the spare segments, in the order of their room.

    A pool without room takes no part. While there is enough for every pool, one that comes or goes
    leaves the others' shares alone: when a thousand gates open together, each costs a look at one
    pool instead of at a thousand.
    """

    __slots__ = ("_all_full", "_new", "_rooms", "_sharers", "_total_room")

    def __init__(self) -> None:
        self._sharers: list[SharerT] = []
        self._rooms: list[int] = []
        self._total_room = 0
        self._all_full = False  # the last shares filled the room of every pool
        self._new: list[SharerT] = []  # added since the last shares

    @property
    def total_room(self) -> int:
        """Spare segments that all pools together can take."""
        return self._total_room

    def add(self, sharer: SharerT) -> None:
        """Let a pool take part."""
        if sharer.room:
            # Behind those with the same room: the order of arrival decides which gets the odd one.
            position = bisect.bisect_right(self._rooms, sharer.room)
            self._sharers.insert(position, sharer)
            self._rooms.insert(position, sharer.room)
            self._total_room += sharer.room
            self._new.append(sharer)

    def remove(self, sharer: SharerT) -> None:
        """Remove a pool that was added."""
        if sharer.room:
            position = self._sharers.index(sharer)
            del self._sharers[position]
            del self._rooms[position]
            self._total_room -= sharer.room
            if sharer in self._new:
                self._new.remove(sharer)

    def shares(self, spare: int) -> Iterator[tuple[SharerT, int]]:
        """Return the shares of ``spare`` segments; those that cannot have changed may be left out.

        The caller must read the iterator to its end.
        """
        enough = spare >= self._total_room
        changed = self._new if enough and self._all_full else self._sharers
        self._all_full, self._new = enough, []
        if enough:
            return iter([(sharer, sharer.room) for sharer in changed])
        return zip(self._sharers, fair_shares(spare, self._rooms), strict=True)


class MemoryDemand:
    """Compares the segments that are wanted with the total, and warns in the log, seldom.

    Too high a demand breaks nothing: the pools get less than they could use, and work slows down.

    Args:
        total_segments: Segments of the network pool.
        clock: Seconds that only grow.

    Attributes:
        wanted_segments: Segments that all pools and exclusive requests could use now.
        warnings: Warnings logged; only grows.
        on_wait: Called once when an owner waits for segments or is refused some; None: not.
    """

    __slots__ = (
        "_clock",
        "_next_warning_seconds",
        "_warned_of",
        "on_wait",
        "total_segments",
        "wanted_segments",
        "warnings",
    )

    def __init__(self, total_segments: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_segments: Final = total_segments
        self.wanted_segments = 0
        self.warnings = 0
        self.on_wait: Callable[[], None] | None = None
        self._clock = clock
        self._warned_of = 0  # highest demand in a warning since demand was normal; 0: no warning
        self._next_warning_seconds = float("-inf")

    def update(self, wanted_segments: int) -> None:
        """Set the demand.

        Warns when it exceeds the total, again when it has grown further, at most once in
        ``WARNING_INTERVAL_SECONDS``. After a warning, logs once that demand is back to normal.
        """
        self.wanted_segments = wanted_segments
        if wanted_segments > self.total_segments:
            if wanted_segments > self._warned_of:
                self._warn()
        elif self._warned_of:
            self._warned_of = 0
            logger.info(
                "network memory: demand is back to normal, %d of %d segments are wanted",
                wanted_segments,
                self.total_segments,
            )

    def somebody_waits(self) -> None:
        """Notify the listener, once."""
        on_wait, self.on_wait = self.on_wait, None
        if on_wait is not None:
            on_wait()

    def _warn(self) -> None:
        now = self._clock()
        if now < self._next_warning_seconds:
            return
        self._next_warning_seconds = now + WARNING_INTERVAL_SECONDS
        self._warned_of = self.wanted_segments
        self.warnings += 1
        logger.warning(
            "network memory: %d segments are wanted and there are %d (%d %%): each pool gets less"
            " than it could use, and transfers slow down; raise network_segments of this"
            " TaskManager, or run fewer tasks at once on it, or lower the buffers per channel",
            self.wanted_segments,
            self.total_segments,
            self.wanted_segments * 100 // self.total_segments,
        )
