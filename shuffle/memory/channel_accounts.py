"""Who has how many of a pool's segments: the accounts of its channels (subpartitions)."""

from typing import Final

NO_CHANNEL: Final = -1
"""Channel number of a segment that no channel is charged for."""


class ChannelAccount:
    """What one channel has taken; the ``holder`` of its segments while they are out.

    Attributes:
        accounts: The accounts of the pool that it belongs to.
        lent: Segments that the channel has.
    """

    __slots__ = ("accounts", "lent")

    def __init__(self, accounts: "ChannelAccounts") -> None:
        self.accounts: Final = accounts
        self.lent = 0


class ChannelAccounts:
    """Counts segments by channel. A channel has an account from its first segment on.

    Args:
        maximum: Segments at which a channel is full, at least 1.

    Attributes:
        full_channels: Channels with ``maximum`` segments or more.
    """

    __slots__ = ("_by_channel", "full_channels", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum: Final = maximum
        self.full_channels = 0
        self._by_channel: dict[int, ChannelAccount] = {}

    def charge(self, channel: int) -> ChannelAccount:
        """Note one segment more for ``channel``; returns the segment's holder."""
        account = self._by_channel.get(channel)
        if account is None:
            account = self._by_channel[channel] = ChannelAccount(self)
        account.lent += 1
        if account.lent == self.maximum:
            self.full_channels += 1
        return account

    def settle(self, account: ChannelAccount) -> None:
        """Note one segment less."""
        if account.lent == self.maximum:
            self.full_channels -= 1
        account.lent -= 1

    def lent_to(self, channel: int) -> int:
        """Segments that ``channel`` has."""
        account = self._by_channel.get(channel)
        return 0 if account is None else account.lent
