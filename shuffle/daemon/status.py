"""What a TaskManager looks like at one moment: frozen snapshots, and their JSON form.

``TaskManager.status()`` builds one :class:`TaskManagerStatus` from live state; the metrics page,
the status endpoint and ``sluice status`` all read that. The JSON form has the same names, tuples
as lists. It only ever grows: a reader ignores fields that it does not know.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from protocol.errors import ErrorCode, Fault, SluiceError
from shuffle.counters import BoundedCounts, Counters

TaskManagerState: TypeAlias = Literal["starting", "ready", "draining", "stopped"]
ChannelKind: TypeAlias = Literal["local", "remote"]


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


@dataclass(frozen=True, slots=True)
class NetworkPoolStatus:
    """The network buffer pool: available + lent + in flight = total."""

    total_segments: int
    segment_size_bytes: int
    available_segments: int
    lent_segments: int
    in_flight_segments: int
    """Segments given to a transport that has not yet let go of them."""
    local_pools: int


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One directory of the storage."""

    tier: str
    """``"memory"`` or ``"disk"``."""
    directory: str
    capacity_bytes: int | None
    """None means as much as the disk allows."""
    used_bytes: int
    """Bytes in extents that hold or receive data."""
    healthy: bool
    free_bytes: int
    """Bytes that can still be given to new extents."""


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
    """Credits of the source not yet used; 0 for a local channel."""
    backlog_buffers: int
    bytes_in: int
    buffers_in: int


@dataclass(frozen=True, slots=True)
class GateStatus:
    """One input gate, opened by one reduce task."""

    gate_id: int
    application_id: str
    shuffle_id: int
    channels: tuple[ChannelStatus, ...]


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


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """One application that has data or connections here."""

    application_id: str
    connections: int
    expires_in_seconds: float | None
    """Time until its data is dropped; None while it has a connection."""
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class TaskManagerStatus:
    """The whole TaskManager."""

    taskmanager_id: str
    version: str
    address: str
    """``host:port`` under which others reach the data port."""
    socket_path: str | None
    state: TaskManagerState
    uptime_seconds: float
    pools: tuple[PoolStatus, ...]
    network_pool: NetworkPoolStatus
    storage: tuple[TierStatus, ...]
    partitions: tuple[ShuffleStatus, ...]
    gates: tuple[GateStatus, ...]
    connections: tuple[ConnectionStatus, ...]
    applications: tuple[ApplicationStatus, ...]
    counters: Counters

    @property
    def not_ready_because(self) -> str | None:
        """Why this TaskManager should get no new work, or None if it should."""
        if self.state != "ready":
            return f"state is {self.state}"
        if not any(tier.healthy for tier in self.storage):
            return "no storage directory is healthy"
        return None

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
    """An answer is not the status of a TaskManager."""

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
