"""How many of a pool's segments each channel (subpartition) has."""

from typing import Final

from ..errors import SegmentNotLent
from .segment import MemorySegment

NO_CHANNEL: Final = -1
"""Channel number of a segment that no channel is charged for."""


class ChannelAccount:
    """The segments that one channel has; the ``holder`` of each of them while it is out.

    Attributes:
        accounts: The accounts of the pool that it belongs to.
        lent: Number of segments that the channel has.
    """

    __slots__ = ("accounts", "lent")

    def __init__(self, accounts: "ChannelAccounts") -> None:
        self.accounts: Final = accounts
        self.lent = 0


class ChannelAccounts:
    """Counts a pool's segments by channel, if the pool has a maximum per channel.

    A channel has an account from its first segment on.

    Args:
        pool: The pool: the holder of segments that no channel is charged for.
        pool_name: For errors.
        maximum: Segments at which a channel is full, at least 1; ``None``: nothing is counted.

    Attributes:
        full_channels: Channels with ``maximum`` segments or more.
    """

    __slots__ = ("_by_channel", "_maximum", "_pool", "_pool_name", "full_channels")

    def __init__(self, pool: object, pool_name: str, maximum: int | None) -> None:
        self._pool: object = pool
        self._pool_name = pool_name
        self._maximum: Final = 0 if maximum is None else maximum  # 0: nothing is counted
        self._by_channel: dict[int, ChannelAccount] = {}
        self.full_channels = 0

    def charge(self, channel: int) -> object:
        """Charge a channel for a segment; return the segment's holder."""
        maximum = self._maximum
        if maximum == 0:
            return self._pool
        account = self._by_channel.get(channel)
        if account is None:
            account = self._by_channel[channel] = ChannelAccount(self)
        account.lent += 1
        if account.lent == maximum:
            self.full_channels += 1
        return account

    def settle(self, segment: MemorySegment) -> None:
        """Take a segment that comes back off its channel's account.

        Raises:
            SegmentNotLent: No channel of this pool has the segment.
        """
        account = segment.holder
        if not isinstance(account, ChannelAccount) or account.accounts is not self:
            raise SegmentNotLent(self._pool_name, segment.index)
        if account.lent == self._maximum:
            self.full_channels -= 1
        account.lent -= 1

    def close(self) -> None:
        """Forget the pool and the channels, which have no segments. Idempotent."""
        self._pool = None
        self._by_channel.clear()
