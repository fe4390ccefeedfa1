"""The books of a local pool: its numbers, and how they are seen."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sluice.shuffle.errors import InvalidPoolSize
from sluice.shuffle.memory.channel_accounts import ChannelAccounts
from sluice.shuffle.memory.statistics import LocalBufferPoolStatistics

if TYPE_CHECKING:
    from asyncio import Future

    from sluice.shuffle.memory.listener import ListenerHandle
    from sluice.shuffle.memory.segment import MemorySegment


class LocalPoolBooks:
    """What a local pool has and whom it owes; the pool alone writes here.

    Args:
        name: For errors, logs and status pages.
        required_segments: The limit never goes below this.
        maximum_segments: The limit never goes above this; ``None`` for unbounded.
        total_segments: Segments of the network pool.
        max_overdraft_buffers: Segments that may be lent beyond the limit.
        max_buffers_per_channel: Segments of one channel at which the pool stops being available;
            ``None`` for no such maximum, and no accounts.
        kind: What it is for, in a word: metrics add up the pools of a kind.

    Raises:
        InvalidPoolSize: A number below its least one, or a maximum below the required number.

    Attributes:
        room: Segments by which the limit can be above ``required_segments``.
        overdrafts: Segments ever lent beyond the limit; only grows.
    """

    __slots__ = (
        "_channels",
        "_held",
        "_idle",
        "_is_destroyed",
        "_limit",
        "_listeners",
        "_waiters",
        "kind",
        "max_overdraft_buffers",
        "maximum_segments",
        "name",
        "overdrafts",
        "required_segments",
        "room",
    )

    def __init__(
        self,
        name: str,
        required_segments: int,
        maximum_segments: int | None,
        total_segments: int,
        max_overdraft_buffers: int,
        max_buffers_per_channel: int | None,
        kind: str,
    ) -> None:
        for what, number, least in (
            ("required segments", required_segments, 0),
            ("maximum segments", maximum_segments, max(1, required_segments)),
            ("overdraft buffers", max_overdraft_buffers, 0),
            ("buffers per channel", max_buffers_per_channel, 1),
        ):
            if number is not None and number < least:
                raise InvalidPoolSize(
                    f"{what} of pool {name} below {least}", value=number, limit=least
                )
        self.name: Final = name
        self.kind: Final = kind
        self.required_segments: Final = required_segments
        self.maximum_segments: Final = maximum_segments
        self.max_overdraft_buffers: Final = max_overdraft_buffers
        self.overdrafts = 0
        ceiling = total_segments if maximum_segments is None else maximum_segments
        self.room: Final = max(0, ceiling - required_segments)
        self._limit = required_segments
        self._held = 0
        self._idle: list[MemorySegment] = []
        self._listeners: OrderedDict[ListenerHandle, None] = OrderedDict()
        self._waiters: dict[Future[None], None] = {}  # for the pool to become available
        self._channels = (
            None if max_buffers_per_channel is None else ChannelAccounts(max_buffers_per_channel)
        )
        self._is_destroyed = False

    @property
    def wanted_segments(self) -> int:
        """What the pool could use: its maximum; an unbounded one, for an estimate, twice its least.

        Fixed for the life of the pool.
        """
        most = self.maximum_segments
        return 2 * self.required_segments if most is None else most

    @property
    def size_segments(self) -> int:
        """The current limit: how many segments the pool may hold."""
        return self._limit

    @property
    def held_segments(self) -> int:
        """Segments drawn from the network pool: idle and lent."""
        return self._held

    @property
    def idle_segments(self) -> int:
        """Segments that lie here ready to be lent."""
        return len(self._idle)

    @property
    def lent_segments(self) -> int:
        """Segments in the hands of this pool's users."""
        return self._held - len(self._idle)

    @property
    def overdraft_segments(self) -> int:
        """Segments held beyond the limit: lent by overdraft, or out since before the limit fell."""
        return max(0, self._held - self._limit)

    @property
    def max_buffers_per_channel(self) -> int | None:
        """Segments of one channel at which the pool stops being available."""
        return None if self._channels is None else self._channels.maximum

    @property
    def full_channels(self) -> int:
        """Channels that have ``max_buffers_per_channel`` segments or more."""
        return 0 if self._channels is None else self._channels.full_channels

    def lent_to(self, channel: int) -> int:
        """Segments that ``channel`` has; 0 in a pool without a maximum per channel."""
        return 0 if self._channels is None else self._channels.lent_to(channel)

    @property
    def waiting_listeners(self) -> int:
        """Listeners (waiting ``request_segment`` calls too) that are still to be served."""
        return len(self._listeners)

    @property
    def waiting_for_availability(self) -> int:
        """Tasks in ``wait_available``."""
        return len(self._waiters)

    @property
    def is_destroyed(self) -> bool:
        """Whether the pool gives out no more segments."""
        return self._is_destroyed

    def statistics(self) -> LocalBufferPoolStatistics:
        """A frozen snapshot."""
        return LocalBufferPoolStatistics(
            name=self.name,
            kind=self.kind,
            required_segments=self.required_segments,
            maximum_segments=self.maximum_segments,
            size_segments=self._limit,
            idle_segments=len(self._idle),
            lent_segments=self.lent_segments,
            waiting_listeners=len(self._listeners),
            overdraft_segments=self.overdraft_segments,
            overdrafts=self.overdrafts,
            full_channels=self.full_channels,
            is_destroyed=self._is_destroyed,
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}: {self.lent_segments} lent,"
            f" {len(self._idle)} idle, limit {self._limit}>"
        )
