"""Every message of the wire protocol (docs/reference/wire.md).

A message is a named tuple: cheap to make on the data path, immutable, and its field order is the
wire order. ``sluice.protocol.codec`` turns them into bytes and back.
"""

from typing import Final, NamedTuple, TypeAlias

ROLE_PEER: Final = 1
ROLE_PRODUCER: Final = 2
ROLE_CONSUMER: Final = 3
ROLE_DRIVER: Final = 4

FLOW_CREDIT: Final = 0
FLOW_WATERMARK: Final = 1

DATA: Final = 0
EVENT: Final = 1
PRIORITY_EVENT: Final = 2
"""An event that overtakes the data that waits before it."""
BLOCKING_EVENT: Final = 3
"""An event behind which the channel gives nothing until ResumeConsumption."""

PARTITION_BLOCKING: Final = 0
PARTITION_PIPELINED: Final = 1
"""Pipelined, and the buffers of the partition are bounded by the whole pool only."""
PARTITION_PIPELINED_BOUNDED: Final = 2

CONSUME_WHEN_REGISTERED: Final = 0
CONSUME_AT_FIRST_OUTPUT: Final = 1
CONSUME_WHEN_FINISHED: Final = 2

EVERY_SUBPARTITION: Final = 2**32 - 1
"""Number that stands for all subpartitions: the bytes are those of each, and are stored once."""


class Hello(NamedTuple):
    """First message of the side that connects."""

    magic: str
    version_min: int
    version_max: int
    role: int
    application_id: str
    token: bytes
    segment_size_bytes: int
    flow_control: int
    features: int
    name: str


class HelloAck(NamedTuple):
    """The acceptor's answer to a Hello it agrees with."""

    version: int
    taskmanager_id: str
    segment_size_bytes: int
    flow_control: int
    features: int
    advertised_host: str
    data_port: int


class PartitionRequest(NamedTuple):
    """Asks for a range of subpartitions of some map attempts' output, with the first credit."""

    channel: int
    application_id: str
    shuffle_id: int
    map_attempt_ids: list[int]
    start_subpartition: int
    end_subpartition: int
    initial_credit: int


class BufferResponse(NamedTuple):
    """One buffer (payload) or event of a channel, with the sender's backlog behind it."""

    channel: int
    sequence_number: int
    backlog: int
    data_type: int


class AddCredit(NamedTuple):
    """The consumer of a channel (or the TaskManager, for a partition) can take more buffers."""

    channel: int
    credit: int


class BacklogAnnouncement(NamedTuple):
    """Buffers wait for a channel that has no credit."""

    channel: int
    backlog: int


class ResumeConsumption(NamedTuple):
    """The consumer goes on after a blocking event."""

    channel: int


class CancelPartitionRequest(NamedTuple):
    """The consumer has no more use for a channel."""

    channel: int


class TaskEvent(NamedTuple):
    """An event that travels from the consumer back to the producer."""

    channel: int
    event_type: int


class ErrorResponse(NamedTuple):
    """A channel, gate, partition or (channel None) the whole connection failed."""

    channel: int | None
    code: int
    fault: int
    retryable: bool
    message: str
    value: str
    limit: str
    map_attempt_id: int | None


class CloseRequest(NamedTuple):
    """Nothing more will be asked on this connection."""


class Ping(NamedTuple):
    """Keeps an application alive; answered by Pong."""

    nonce: int


class Pong(NamedTuple):
    """Answer to Ping."""

    nonce: int


class NewBufferSize(NamedTuple):
    """The consumer wants buffers of at most this size from now on (debloating)."""

    channel: int
    buffer_size_bytes: int


class PipelinedData(NamedTuple):
    """One buffer or event (payload) of a pipelined partition, on its way in."""

    partition: int
    subpartition: int
    data_type: int


class OpenPipelinedPartition(NamedTuple):
    """Begins a pipelined partition, which is read while it is written."""

    partition: int
    shuffle_id: int
    map_attempt_id: int
    num_subpartitions: int
    partition_type: int
    consumption: int


class OpenPartition(NamedTuple):
    """Begins the output of one map attempt."""

    partition: int
    shuffle_id: int
    map_attempt_id: int
    num_subpartitions: int


class PartitionOpened(NamedTuple):
    """Answer to OpenPartition."""

    partition: int


class ResumePartition(NamedTuple):
    """Begins the output of one map attempt, or goes on with what was secured of it."""

    partition: int
    shuffle_id: int
    map_attempt_id: int
    num_subpartitions: int


class PartitionResumed(NamedTuple):
    """Answer to ResumePartition: the regions there are. If committed, nothing was opened."""

    partition: int
    regions: int
    total_bytes: int
    committed: bool


class SecureRegion(NamedTuple):
    """Asks that a map output's regions up to this one outlive the TaskManager's process."""

    partition: int
    region: int


class RegionSecured(NamedTuple):
    """Answer to SecureRegion: the producer needs these regions no more."""

    partition: int
    region: int


class BeginRegion(NamedTuple):
    """Announces a region: how many bytes for each subpartition, and the checksum of all.

    With ``EVERY_SUBPARTITION`` as the first one there is one length: the bytes are those of each
    subpartition.
    """

    partition: int
    region: int
    first_subpartition: int
    lengths: list[int]
    crc32c: int


class AttachRegionArea(NamedTuple):
    """Asks for a region area: memory that a producer on the same host shares with the TaskManager.

    With an empty token a new one of that size is asked for; of size 0, none: what was attached to
    the connection is given up.
    """

    token: str
    size_bytes: int


class RegionAreaAttached(NamedTuple):
    """Answer to AttachRegionArea; without a token no area is attached to the connection."""

    token: str
    path: str
    size_bytes: int


class SharedRegion(NamedTuple):
    """A BeginRegion whose bytes lie in the connection's region area; no RegionData follows."""

    partition: int
    region: int
    first_subpartition: int
    lengths: list[int]
    crc32c: int
    area_offset: int


class RegionOpened(NamedTuple):
    """How large the payloads of a region may be; sent before its first credit."""

    partition: int
    region: int
    payload_bytes: int


class RegionData(NamedTuple):
    """The next bytes (payload) of the region that was begun."""

    partition: int
    offset: int


class FinishPartition(NamedTuple):
    """Commits the output of a map attempt."""

    partition: int
    total_bytes: int
    regions: int


class PartitionFinished(NamedTuple):
    """The output is committed; it outlives a killed TaskManager."""

    partition: int


class AbortPartition(NamedTuple):
    """Gives up the output of a map attempt."""

    partition: int


class PartitionAborted(NamedTuple):
    """Answer to AbortPartition."""

    partition: int


class GateChannel(NamedTuple):
    """One input channel of an OpenGate: a TaskManager and the map attempts wanted from it."""

    channel: int
    taskmanager_id: str
    host: str
    port: int
    map_attempt_ids: list[int]


class OpenGate(NamedTuple):
    """Opens an input gate for a reduce task."""

    gate: int
    shuffle_id: int
    start_subpartition: int
    end_subpartition: int
    initial_credit: int
    channels: list[GateChannel]


class GateOpened(NamedTuple):
    """Answer to OpenGate."""

    gate: int


class CloseGate(NamedTuple):
    """The reduce task has done with its gate."""

    gate: int


class GateClosed(NamedTuple):
    """Nothing of the gate follows any more."""

    gate: int


class ReleaseShuffle(NamedTuple):
    """Frees all map outputs of a shuffle of the connection's application."""

    shuffle_id: int


class ShuffleReleased(NamedTuple):
    """Answer to ReleaseShuffle."""

    shuffle_id: int
    freed_bytes: int


class ReleaseApplication(NamedTuple):
    """Frees everything of the connection's application."""


class ApplicationReleased(NamedTuple):
    """Answer to ReleaseApplication."""

    freed_bytes: int


Message: TypeAlias = (
    Hello
    | HelloAck
    | PartitionRequest
    | BufferResponse
    | AddCredit
    | BacklogAnnouncement
    | ResumeConsumption
    | CancelPartitionRequest
    | TaskEvent
    | ErrorResponse
    | CloseRequest
    | Ping
    | Pong
    | NewBufferSize
    | PipelinedData
    | OpenPipelinedPartition
    | OpenPartition
    | PartitionOpened
    | BeginRegion
    | RegionData
    | RegionOpened
    | AttachRegionArea
    | RegionAreaAttached
    | SharedRegion
    | FinishPartition
    | PartitionFinished
    | AbortPartition
    | PartitionAborted
    | ResumePartition
    | PartitionResumed
    | SecureRegion
    | RegionSecured
    | OpenGate
    | GateOpened
    | CloseGate
    | GateClosed
    | ReleaseShuffle
    | ShuffleReleased
    | ReleaseApplication
    | ApplicationReleased
)
