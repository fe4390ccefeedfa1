"""The status of the serving side: the gates of reduce tasks, and all channels that it serves."""

from typing import Annotated, ClassVar, Final

import msgspec

from ...metric import Combine, Metric, gauge

CHANNEL_KINDS: Final = ("local", "remote")

_QUEUED: Final = "Buffers queued in channels"
_USED = gauge("Receive buffers of gates in use: input pool usage.", "input_used_buffers")
_LIMIT = gauge("Receive buffers that gates may have now.", "input_limit_buffers")
_SERVED = gauge(
    "Channels read by other TaskManagers (peer) and reduce tasks (consumer).",
    "served_channels",
    by="leg",
)


def _by_kind(text: str, name: str = "", combine: Combine = "sum") -> Metric:
    return gauge(text, name, by="kind", zeros=CHANNEL_KINDS, combine=combine)


class ChannelStatus(msgspec.Struct, frozen=True, gc=False):
    """One input channel of a gate."""

    metric_prefix: ClassVar[str] = "channel_"

    channel: int = 0
    kind: Annotated[str, _by_kind("Input channels of open gates.", "channels")] = "local"
    source: str = ""
    """Address of the TaskManager that the channel reads from."""
    queued_buffers: Annotated[
        int,
        _by_kind(f"{_QUEUED}."),
        _by_kind(f"{_QUEUED}: the shortest.", "channel_queued_buffers_min", "min"),
        _by_kind(f"{_QUEUED}: the mean.", "channel_queued_buffers_avg", "mean"),
        _by_kind(f"{_QUEUED}: the longest.", "channel_queued_buffers_max", "max"),
    ] = 0
    available_credit: Annotated[int, _by_kind("Credits that sources may use.")] = 0
    """Credits that the source has not used yet; 0 for a local channel."""
    backlog_buffers: Annotated[int, _by_kind("Buffers waiting at sources.")] = 0
    bytes_in: int = 0
    buffers_in: int = 0
    unannounced_credit: Annotated[int, _by_kind("Free buffers not yet announced to sources.")] = 0
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
    connection: str = ""
    """Key of its connection. Numbers of gates are those of a connection: two may have the same."""
    remote: str = ""
    """Its reader, by the name that it has among the waits."""

    @property
    def is_full(
        self,
    ) -> Annotated[bool, gauge("Open input gates whose buffers are all in use.", "gates_full")]:
        """Whether all its buffers are in use; never if it has none."""
        buffers = self.exclusive_buffers + self.floating_limit
        return 0 < buffers <= self.exclusive_used + self.floating_used


class ServedChannelsStatus(msgspec.Struct, frozen=True, gc=False):
    """All channels that one leg serves together."""

    metric_prefix: ClassVar[str] = "served_channel_"
    key_fields: ClassVar[tuple[str, ...]] = ("leg",)

    leg: str = ""
    """``"peer"`` or ``"consumer"``."""
    sending: Annotated[int, _SERVED.at(activity="sending")] = 0
    waiting_for_data: Annotated[int, _SERVED.at(activity="waiting_for_data")] = 0
    """Channels with credit and nothing to send."""
    waiting_for_credit: Annotated[int, _SERVED.at(activity="waiting_for_credit")] = 0
    """Channels with something to send and no credit."""
    available_credit: Annotated[
        int, gauge("Credits granted by consumers and not used yet.", by="leg")
    ] = 0
    credit_wait_longest_seconds: Annotated[
        float,
        gauge(
            "The longest time since when all channels of a gate, or all of another TaskManager, "
            "have waited for credit.",
            by="leg",
            combine="max",
        ),
    ] = 0.0
    """0 if there is none."""
