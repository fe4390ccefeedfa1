"""The status of a TaskManager at one moment: frozen snapshots, and their JSON form.

``TaskManager.status()`` builds one :class:`TaskManagerStatus` from live state; the metrics page,
the status endpoint and ``sluice status`` all read that. The JSON form has the same names, tuples
as lists. Fields are only ever added: a reader ignores fields that it does not know.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from ....protocol import framing
from ....protocol.errors import ErrorCode, Fault, SluiceError
from ...counters import BoundedCounts, Counters

TaskManagerState: TypeAlias = Literal["starting", "ready", "draining", "stopped"]
ChannelKind: TypeAlias = Literal["local", "remote"]
FlowControl: TypeAlias = Literal["credit", "watermark"]
Served: TypeAlias = Literal["authenticated", "this host", "anonymous"]

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


def data_path() -> str:
    """Return ``COMPILED`` if the data path runs as extension modules, else ``INTERPRETED``.

    A wheel has all its extension modules or none, so one of them tells.
    """
    return INTERPRETED if framing.__file__.endswith(".py") else COMPILED


def utf8_text(value: object) -> str:
    r"""Return the text of a value as UTF-8 can have it, so that every page can show it.

    The name of a file may have any bytes. Those that are not UTF-8 read as in the log: ``\udcff``.
    """
    return str(value).encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One local buffer pool."""

    name: str
    size_segments: int
    """Segments that the pool may hold now, its share of the network pool."""
    required_segments: int
    maximum_segments: int | None
    """Most segments that the pool may ever hold; None means no limit."""
    lent_segments: int
    waiting_listeners: int
    kind: str
    """Use of the pool: ``"gate"``, ``"pipelined"``, ``"map_output"`` or ``"read"``."""
    overdraft_segments: int
    """Segments held beyond ``size_segments``."""
    overdrafts: int
    """Segments lent beyond the limit on purpose since the pool was made."""
    full_channels: int
    """Channels that have their maximum of segments."""


@dataclass(frozen=True, slots=True)
class NetworkPoolStatus:
    """The network buffer pool: available + lent + in flight = total."""

    total_segments: int
    segment_size_bytes: int
    available_segments: int
    lent_segments: int
    in_flight_segments: int
    """Segments that a transport is still sending."""
    local_pools: int
    wanted_segments: int
    """Segments that all pools and requests could use; above the total, work slows down."""
    waiting_requests: int
    """Channels that wait for their exclusive segments."""
    refused_requests: int
    """Pools and exclusive requests refused since the start."""
    expired_requests: int
    """Exclusive requests that ended by their deadline since the start."""
    demand_warnings: int
    """Times since the start that the log warned of a demand above the total."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One directory of the storage, or the remote tier."""

    tier: str
    """``"memory"``, ``"disk"`` or ``"remote"``."""
    directory: str
    """The URL of the remote tier."""
    capacity_bytes: int | None
    """None means as many bytes as the disk, or the remote store, allows."""
    used_bytes: int
    """Bytes in extents that hold or receive data."""
    healthy: bool
    free_bytes: int
    """Bytes that can still be given to new extents."""
    reason: str
    """Why it is not healthy, or takes no new map outputs although it is; else empty."""


@dataclass(frozen=True, slots=True)
class ShuffleStatus:
    """The map outputs of one shuffle on this TaskManager."""

    application_id: str
    shuffle_id: int
    committed_map_outputs: int
    open_map_outputs: int
    stored_bytes: int
    regions: int


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One input channel of a gate."""

    channel: int
    kind: ChannelKind
    source: str
    """Address of the TaskManager that the channel reads from."""
    queued_buffers: int
    available_credit: int
    """Credits that the source has not used yet; 0 for a local channel."""
    backlog_buffers: int
    bytes_in: int
    buffers_in: int
    unannounced_credit: int
    """Buffers that are free and not announced to the source yet; 0 for a local channel."""


@dataclass(frozen=True, slots=True)
class GateStatus:
    """One input gate, opened by one reduce task."""

    gate_id: int
    application_id: str
    shuffle_id: int
    channels: tuple[ChannelStatus, ...]
    exclusive_buffers: int
    """Buffers that belong to single channels."""
    exclusive_used: int
    """Exclusive buffers that hold data or receive it."""
    floating_limit: int
    """Floating buffers that the gate may have now."""
    floating_used: int
    """Floating buffers that hold data or receive it."""
    idle_seconds: float
    """Time in which its reader waited for data."""
    busy_seconds: float
    """Time in which data went to its reader."""
    back_pressured_seconds: float
    """Time in which there was data that its reader did not take."""

    @property
    def is_full(self) -> bool:
        """Whether all its buffers are in use; never if it has none."""
        buffers = self.exclusive_buffers + self.floating_limit
        return 0 < buffers <= self.exclusive_used + self.floating_used


@dataclass(frozen=True, slots=True)
class PipelinedPartitionStatus:
    """One pipelined partition that is being written or read."""

    application_id: str
    shuffle_id: int
    map_attempt_id: int
    partition_type: str
    """``"PIPELINED"`` or ``"PIPELINED_BOUNDED"``."""
    state: str
    """``"open"``, or ``"finished"`` while it is still being read."""
    subpartitions: int
    queued_buffers: int
    """Buffers and events that wait in all subpartitions."""
    shortest_queue: int
    longest_queue: int
    used_segments: int
    """Segments with data, without those that lie ready for the producer."""
    limit_segments: int
    overdraft_segments: int
    available_credit: int
    """Credits that the producer has not used yet."""
    back_pressured: bool
    """Whether its producer lacks credit now, because memory for more is lacking."""
    back_pressured_seconds: float
    bytes_out: int
    buffers_out: int


@dataclass(frozen=True, slots=True)
class ProducersStatus:
    """All producers of one kind of partition together."""

    kind: Literal["map_output", "pipelined"]
    available_credit: int
    """Credits that the producers have not used yet."""
    without_credit: int
    """Number of producers that would send and have no credit."""


@dataclass(frozen=True, slots=True)
class ControlMemoryStatus:
    """Long control parts under way and unread answers, over all connections."""

    used_bytes: int
    capacity_bytes: int
    refusals: int
    """Number of connections that were closed because there was no room."""


@dataclass(frozen=True, slots=True)
class RegionAreasStatus:
    """The memory that producers on this host share with the TaskManager."""

    areas: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """The work of the remote tier; all zero without one. Totals begin with the process."""

    upload_bytes: int = 0
    """Memory of parts that are being filled or sent."""
    waiting_uploads: int = 0
    """Uploads that wait for memory; their producers get no credit."""
    waiting_deletes: int = 0
    """Objects that wait to be deleted."""
    requests: int = 0
    errors: int = 0
    """Requests that failed, repetitions included."""
    read_bytes: int = 0
    written_bytes: int = 0
    moved_map_outputs: int = 0
    """Map outputs that were moved from here."""
    found_map_outputs: int = 0
    """Map outputs that were found by their names."""
    removed_orphans: int = 0


@dataclass(frozen=True, slots=True)
class CopiesStatus:
    """Copies of map outputs on other TaskManagers, and moves there."""

    waiting: int
    """Map outputs that are being copied or wait for their turn."""
    short: int
    """Map outputs with fewer copies than they shall have, which this TaskManager has to make."""
    watched: int
    """TaskManagers that are watched because they share map outputs with this one."""
    migrating: bool
    """Whether all map outputs are being moved."""
    moved: int
    """Map outputs that are read elsewhere."""
    staying: int
    """Map outputs that no other TaskManager takes."""
    reason: str
    """Why they stay; empty if none does."""


@dataclass(frozen=True, slots=True)
class ServedChannelsStatus:
    """All channels that one leg serves together."""

    leg: Literal["peer", "consumer"]
    sending: int
    waiting_for_data: int
    """Channels with credit and nothing to send."""
    waiting_for_credit: int
    """Channels with something to send and no credit."""
    available_credit: int
    """Credits that consumers have granted and that are not used yet."""


@dataclass(frozen=True, slots=True)
class EventLoopStatus:
    """The lag of the event loop, measured once a second."""

    last_lag_seconds: float
    max_lag_seconds: float
    """The longest lag of the last minute."""


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """One connection, accepted or made."""

    remote: str
    role: str
    leg: str
    channels: int
    bytes_in: int
    bytes_out: int
    write_buffer_bytes: int
    writable: bool
    flow_control: FlowControl


@dataclass(frozen=True, slots=True)
class TrafficStatus:
    """Messages and bytes of the accepted connections of one role since the start."""

    role: str
    messages_in: int
    messages_out: int
    bytes_in: int
    """Includes the heads of frames, as does ``bytes_out``."""
    bytes_out: int


@dataclass(frozen=True, slots=True)
class HoldingStatus:
    """The holding of one resource by an application."""

    resource: str
    """The end of the key of ``[quotas]``, such as ``channels``."""
    held: int
    quota: int | None
    """The most that it may hold; None: as much as there is."""


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """One application with data or connections on this TaskManager."""

    application_id: str
    connections: int
    expires_in_seconds: float | None
    """Time until its data is dropped; None while it has a connection."""
    stored_bytes: int
    holdings: tuple[HoldingStatus, ...]


@dataclass(frozen=True, slots=True)
class TaskManagerStatus:
    """The whole TaskManager."""

    taskmanager_id: str
    version: str
    data_path: str
    """``compiled`` or ``interpreted``."""
    address: str
    """``host:port`` under which others reach the data port."""
    socket_path: str | None
    state: TaskManagerState
    uptime_seconds: float
    pools: tuple[PoolStatus, ...]
    network_pool: NetworkPoolStatus
    storage: tuple[TierStatus, ...]
    partitions: tuple[ShuffleStatus, ...]
    pipelined_partitions: tuple[PipelinedPartitionStatus, ...]
    gates: tuple[GateStatus, ...]
    served_channels: tuple[ServedChannelsStatus, ...]
    producers: tuple[ProducersStatus, ...]
    region_areas: RegionAreasStatus
    remote: RemoteStatus
    copies: CopiesStatus
    control_memory: ControlMemoryStatus
    connections: tuple[ConnectionStatus, ...]
    traffic: tuple[TrafficStatus, ...]
    applications: tuple[ApplicationStatus, ...]
    event_loop: EventLoopStatus
    tls_certificate_expires_at: float | None
    """The end of the certificate in use, in seconds since 1970; None without TLS."""
    counters: Counters
    serves: Served
    """Whose connections are accepted: those with a credential, those of this host, or any."""
    no_room_because: str | None
    """The reason why no tier takes a region; None if one does."""

    @property
    def not_ready_because(self) -> str | None:
        """The reason why this TaskManager should get no new work; None if it should get some."""
        if self.state != "ready":
            return f"state is {self.state}"
        if not any(tier.healthy for tier in self.storage):
            reasons = "; ".join(f"{tier.directory}: {tier.reason}" for tier in self.storage)
            return f"no storage directory is healthy: {reasons}"
        return self.no_room_because

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, made of dicts, lists, texts and numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: object) -> TaskManagerStatus:
        """Read the JSON form.

        Raises:
            InvalidStatus: The document is not a status, or a field is missing or of a wrong type.
        """
        return typing.cast("TaskManagerStatus", _read(cls, document, "status"))


class InvalidStatus(SluiceError):
    """A document is not the status of a TaskManager."""

    code: ClassVar[ErrorCode] = ErrorCode.MALFORMED_MESSAGE
    fault: ClassVar[Fault] = Fault.REMOTE


def _read(kind: Any, value: object, where: str) -> object:
    """Build a value of the annotated type ``kind`` out of JSON."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        missing = [field.name for field in dataclasses.fields(kind) if field.name not in value]
        if missing:
            raise InvalidStatus(f"{where} has no {missing[0]}")
        return kind(**{name: _read(hints[name], value[name], name) for name in hints})
    if kind is BoundedCounts and isinstance(value, dict):
        return BoundedCounts(value)
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(arguments[0], item, where) for item in value)
    if origin is Literal and value in arguments:
        return value
    allowed = arguments if origin in (types.UnionType, typing.Union) else (kind,)
    if type(value) in allowed or (value is None and types.NoneType in allowed):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and float in allowed:
        return float(value)
    raise InvalidStatus(f"{where} is not what a TaskManager reports", value=value)
