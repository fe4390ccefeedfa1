"""The status of the serving side: the gates of reduce tasks, and all channels that it serves."""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from ...metric import Combine, Metric, gauge

ChannelKind: TypeAlias = Literal["local", "remote"]

CHANNEL_KINDS: Final = ("local", "remote")

_QUEUED: Final = "Buffers received and not sent on, by channel"
_USED = gauge(
    "input_used_buffers",
    "Receive buffers of gates that hold data or receive it: input pool usage.",
)
_LIMIT = gauge("input_limit_buffers", "Receive buffers that gates have, or may have now.")
_SERVED = gauge(
    "served_channels",
    "Channels that other TaskManagers (leg peer) and reduce tasks (leg consumer) read.",
    "leg",
)


def _by_kind(name: str, text: str, combine: Combine = "sum") -> Metric:
    return gauge(name, text, "kind", zeros=CHANNEL_KINDS, combine=combine)


class ChannelStatus(msgspec.Struct, frozen=True, gc=False):
    """One input channel of a gate."""

    channel: int = 0
    kind: Annotated[
        ChannelKind,
        _by_kind("channels", "Input channels of open gates."),
    ] = "local"
    source: str = ""
    """Address of the TaskManager that the channel reads from."""
    queued_buffers: Annotated[
        int,
        _by_kind("channel_queued_buffers", f"{_QUEUED}."),
        _by_kind("channel_queued_buffers_min", f"{_QUEUED}: the shortest.", "min"),
        _by_kind("channel_queued_buffers_avg", f"{_QUEUED}: the mean.", "mean"),
        _by_kind("channel_queued_buffers_max", f"{_QUEUED}: the longest.", "max"),
    ] = 0
    available_credit: Annotated[
        int,
        _by_kind("channel_available_credit", "Credits that sources may use."),
    ] = 0
    """Credits that the source has not used yet; 0 for a local channel."""
    backlog_buffers: Annotated[
        int,
        _by_kind("channel_backlog_buffers", "Buffers waiting at sources."),
    ] = 0
    bytes_in: int = 0
    buffers_in: int = 0
    unannounced_credit: Annotated[
        int,
        _by_kind(
            "channel_unannounced_credit", "Free buffers that are not announced to sources yet."
        ),
    ] = 0
    """Buffers that are free and not announced to the source yet; 0 for a local channel."""


class GateStatus(msgspec.Struct, frozen=True, gc=False):
    """One input gate, opened by one reduce task."""

    gate_id: int = 0
    application_id: str = ""
    shuffle_id: int = 0
    channels: tuple[ChannelStatus, ...] = ()
    exclusive_buffers: Annotated[int, _LIMIT.at(kind="exclusive")] = 0
    """Buffers that belong to single channels."""
    exclusive_used: Annotated[int, _USED.at(kind="exclusive")] = 0
    floating_limit: Annotated[int, _LIMIT.at(kind="floating")] = 0
    floating_used: Annotated[int, _USED.at(kind="floating")] = 0
    idle_seconds: float = 0.0
    """Time in which its reader waited for data."""
    busy_seconds: float = 0.0
    """Time in which data went to its reader."""
    back_pressured_seconds: float = 0.0
    """Time in which there was data that its reader did not take."""

    @property
    def is_full(
        self,
    ) -> Annotated[bool, gauge("gates_full", "Open input gates whose buffers are all in use.")]:
        """Whether all its buffers are in use; never if it has none."""
        buffers = self.exclusive_buffers + self.floating_limit
        return 0 < buffers <= self.exclusive_used + self.floating_used


class ServedChannelsStatus(msgspec.Struct, frozen=True, gc=False):
    """All channels that one leg serves together."""

    leg: Literal["peer", "consumer"] = "peer"
    sending: Annotated[int, _SERVED.at(activity="sending")] = 0
    waiting_for_data: Annotated[int, _SERVED.at(activity="waiting_for_data")] = 0
    """Channels with credit and nothing to send."""
    waiting_for_credit: Annotated[int, _SERVED.at(activity="waiting_for_credit")] = 0
    """Channels with something to send and no credit."""
    available_credit: Annotated[
        int,
        gauge(
            "served_channel_available_credit",
            "Credits that consumers granted and that are not used yet.",
            "leg",
        ),
    ] = 0
