"""The status of a TaskManager at one moment: one frozen struct, and its JSON form.

``TaskManager.status()`` puts it together out of the parts that their owners return. The metrics
page, the status endpoint and ``sluice status`` all read it. The JSON form has the same names, with
tuples as lists. Fields are only ever added: a reader ignores fields that it does not know, and
takes the default of a field that an older TaskManager does not have.
"""

import itertools
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from ....protocol import framing
from ....protocol.errors import ErrorCode, SluiceError
from ...counters import BoundedCounts, Counters
from ...metric import Combined, Metric, gauge, total
from ...partition_status import QUEUED, PipelinedPartitionStatus
from ...wait_status import WaitStatus
from ..bounds.accounts import ApplicationStatus
from ..cluster.members_status import MembersStatus
from ..ingest.producing_status import ProducersStatus
from ..integrity.scrub_status import ScrubStatus
from ..replicas.copies_status import CopiesStatus
from ..serve.serving_status import GateStatus, ServedChannelsStatus
from ..store.store_status import RegionAreasStatus, RemoteStatus, ShuffleStatus, TierStatus
from ..tracing.traces_status import TracesStatus
from .latencies_status import LatenciesStatus
from .pool_status import NetworkPoolStatus, PoolStatus
from .process_status import ProcessStatus
from .recent import RecentSample

TaskManagerState: TypeAlias = Literal["starting", "ready", "draining", "stopped"]
Served: TypeAlias = Literal["authenticated", "this host", "anonymous"]
Severity: TypeAlias = Literal["error", "warning", "note"]

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"

STATES: Final = ("starting", "ready", "draining", "stopped")
FLOW_CONTROL_MODES: Final = ("credit", "watermark")
LEGS: Final = {
    "handshake": "handshake",
    "producer": "producer",
    "consumer": "consumer",
    "driver": "driver",
    "copier": "copier",
    "peer in": "peer",
    "peer out": "peer",
}
"""The role of the connecting side, by leg; this TaskManager makes ``peer out`` connections."""

_ROLES: Final = tuple(sorted(set(LEGS.values())))
_KINDS_OF_CONNECTIONS: Final = tuple(
    (leg, role, mode) for (leg, role), mode in itertools.product(LEGS.items(), FLOW_CONTROL_MODES)
)
_INFO = Metric("info", "Identity of this TaskManager.", "taskmanager")
_MESSAGES = total(
    "Messages over accepted connections.",
    "connection_messages",
    by="role",
    zeros=_ROLES,
)
_BYTES = total(
    "Bytes over accepted connections, frame headers included.",
    "connection_bytes",
    by="role",
    zeros=_ROLES,
)


def data_path() -> str:
    """Return ``COMPILED`` if the data path runs as extension modules, else ``INTERPRETED``.

    A wheel has all its extension modules or none, so one of them tells.
    """
    return INTERPRETED if framing.__file__.endswith(".py") else COMPILED


class ControlMemoryStatus(msgspec.Struct, frozen=True, gc=False):
    """Memory of partly received messages and unread replies, all connections together."""

    metric_prefix: ClassVar[str] = "control_memory_"

    used_bytes: Annotated[int, gauge("Memory for partly received messages and unread replies.")] = 0
    capacity_bytes: Annotated[int, gauge("Limit of the control memory.")] = 0
    refusals: Annotated[int, total("Connections closed because control memory was used up.")] = 0


class EventLoopStatus(msgspec.Struct, frozen=True, gc=False):
    """The lag of the event loop, measured once a second."""

    last_lag_seconds: Annotated[
        float,
        gauge(
            "The last measured lag of the event loop.",
            "event_loop_lag_last_seconds",
            combine="max",
        ),
    ] = 0.0
    max_lag_seconds: Annotated[
        float,
        gauge(
            "The worst lag of the event loop in the last minute.",
            "event_loop_lag_max_seconds",
            combine="max",
        ),
    ] = 0.0


class ConnectionStatus(msgspec.Struct, frozen=True, gc=False):
    """One connection, accepted or made."""

    remote: str = ""
    role: str = ""
    leg: Annotated[
        str,
        gauge(
            "Open connections.",
            "connections",
            by="leg role flow_control",
            zeros=_KINDS_OF_CONNECTIONS,
        ),
    ] = ""
    channels: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    write_buffer_bytes: Annotated[
        int,
        gauge("Bytes in write buffers.", "connection_write_buffer_bytes", by="leg", zeros=(*LEGS,)),
    ] = 0
    writable: bool = True
    flow_control: str = "credit"

    @property
    def is_unwritable(
        self,
    ) -> Annotated[
        bool,
        gauge(
            "Connections above the high watermark.",
            "connections_unwritable",
            by="leg",
            zeros=(*LEGS,),
        ),
    ]:
        """Whether more is written than the high watermark allows."""
        return not self.writable


class TrafficStatus(msgspec.Struct, frozen=True, gc=False):
    """Messages and bytes of the accepted connections of one role since the start."""

    key_fields: ClassVar[tuple[str, ...]] = ("role",)

    role: str = ""
    messages_in: Annotated[int, _MESSAGES.at(direction="in")] = 0
    messages_out: Annotated[int, _MESSAGES.at(direction="out")] = 0
    bytes_in: Annotated[int, _BYTES.at(direction="in")] = 0
    """Includes frame headers, as does ``bytes_out``."""
    bytes_out: Annotated[int, _BYTES.at(direction="out")] = 0


class WarningStatus(msgspec.Struct, frozen=True, gc=False):
    """A condition that somebody should know about, in words."""

    severity: Severity = "note"
    """``"error"``: data or work is lost or refused now. ``"warning"``: it soon may be. ``"note"``:
    it happened since the start and may be over."""
    text: str = ""
    """The problem, with the value."""
    remedy: str = ""
    """The remedy."""


class TaskManagerStatus(msgspec.Struct, frozen=True):
    """The whole TaskManager."""

    taskmanager_id: Annotated[str, _INFO] = ""
    version: Annotated[str, _INFO] = ""
    data_path: Annotated[str, _INFO] = ""
    """``compiled`` or ``interpreted``."""
    address: str = ""
    """``host:port`` under which others reach the data port."""
    socket_path: str | None = None
    state: Annotated[
        TaskManagerState,
        gauge("1 for the current state.", "taskmanager_state", by="state", zeros=STATES),
    ] = "starting"
    uptime_seconds: Annotated[float, gauge("Time since the daemon started.", combine="max")] = 0.0
    pools: tuple[PoolStatus, ...] = ()
    network_pool: NetworkPoolStatus = NetworkPoolStatus()
    storage: tuple[TierStatus, ...] = ()
    partitions: Annotated[
        tuple[ShuffleStatus, ...], gauge("Shuffles with map outputs here.", "shuffles")
    ] = ()
    pipelined_partitions: tuple[PipelinedPartitionStatus, ...] = ()
    gates: Annotated[tuple[GateStatus, ...], gauge("Open input gates.")] = ()
    served_channels: tuple[ServedChannelsStatus, ...] = ()
    producers: tuple[ProducersStatus, ...] = ()
    region_areas: RegionAreasStatus = RegionAreasStatus()
    remote: RemoteStatus = RemoteStatus()
    copies: CopiesStatus = CopiesStatus()
    cluster: MembersStatus = MembersStatus()
    scrub: ScrubStatus = ScrubStatus()
    traces: TracesStatus = TracesStatus()
    control_memory: ControlMemoryStatus = ControlMemoryStatus()
    connections: tuple[ConnectionStatus, ...] = ()
    traffic: tuple[TrafficStatus, ...] = ()
    applications: Annotated[tuple[ApplicationStatus, ...], gauge("Applications known.")] = ()
    event_loop: EventLoopStatus = EventLoopStatus()
    latencies: LatenciesStatus = LatenciesStatus()
    tls_certificate_expires_at: Annotated[
        float | None,
        gauge(
            "Time at which the TLS certificate expires, since 1970; absent without TLS.",
            "tls_certificate_expiry_timestamp_seconds",
            combine="min",
        ),
    ] = None
    counters: Counters = msgspec.field(default_factory=Counters)
    serves: Served | None = None
    """Whose connections are accepted: those with a credential, those of this host, or any."""
    no_room_because: Annotated[str | None, Combined("every")] = None
    """The reason why no tier takes a region; None if one does."""
    cpu_seconds: float = 0.0
    """CPU time of the process since it started."""
    processes: tuple[ProcessStatus, ...] = ()
    """Its data processes; empty if it is a single process."""
    warnings: tuple[WarningStatus, ...] = ()
    """Problems and their remedies, errors first; the HTTP thread computes them."""
    waits: tuple[WaitStatus, ...] = ()
    """The waits, the longest first."""
    waits_omitted: int = 0
    """Estimated number of the other waits."""
    recent: tuple[RecentSample, ...] = ()
    """Samples of the last minutes, the oldest first."""

    @property
    def not_ready_because(self) -> str | None:
        """The reason why this TaskManager should get no new work; None if it should get some."""
        if self.state != "ready":
            return f"state is {self.state}"
        if self.processes and not any(each.state == "ready" for each in self.processes):
            states = ", ".join(f"{each.process} is {each.condition}" for each in self.processes)
            return f"no data process is ready: {states}"
        if not any(tier.healthy for tier in self.storage):
            reasons = "; ".join(f"{tier.directory}: {tier.reason}" for tier in self.storage)
            return f"no storage directory is healthy: {reasons}"
        return self.no_room_because

    @property
    def takes_work(
        self,
    ) -> Annotated[
        bool,
        gauge(
            "1 while /readyz is 200.",
            "taskmanager_takes_work",
        ),
    ]:
        """Whether this TaskManager should get new work."""
        return self.not_ready_because is None

    @property
    def allows_anonymous(
        self,
    ) -> Annotated[
        bool,
        gauge("1 if clients without a credential are served.", "anonymous_allowed"),
    ]:
        """Whether connections without a credential are accepted from any host."""
        return self.serves == "anonymous"

    @property
    def mean_queue(
        self,
    ) -> Annotated[float, gauge(f"{QUEUED}: the mean.", "subpartition_queued_buffers_avg")]:
        """Mean length of the queues of all subpartitions; 0 without subpartitions."""
        queued = sum(partition.queued_buffers for partition in self.pipelined_partitions)
        queues = sum(partition.subpartitions for partition in self.pipelined_partitions)
        return queued / queues if queues else 0.0

    def encode(self) -> bytes:
        """Return the JSON form."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, document: object) -> "TaskManagerStatus":
        """Read the JSON form of this or another version.

        Raises:
            InvalidStatus: The document is not a status, or a field has a wrong type.
        """
        try:
            status = msgspec.convert(document, cls, dec_hook=_counts)
        except msgspec.ValidationError as error:
            raise InvalidStatus(f"status is not what a TaskManager reports: {error}") from None
        if not status.taskmanager_id:
            raise InvalidStatus("status has no taskmanager_id")
        return status


class InvalidStatus(SluiceError):
    """A document is not the status of a TaskManager."""

    code = ErrorCode.MALFORMED_MESSAGE


def _counts(kind: type, value: object) -> BoundedCounts:
    """Read the counts by name, a type that JSON does not have."""
    if kind is not BoundedCounts or not isinstance(value, dict):
        raise ValueError("Expected counts by name")
    if not all(type(count) is int for count in value.values()):
        raise ValueError("Expected counts by name, got something else than a whole number")
    return BoundedCounts(value)
