"""Every message of the wire protocol (docs/reference/wire.md).

A message is a named tuple: cheap to make on the data path, immutable, and its field order is the
wire order. ``sluice.protocol.codec`` turns them into bytes and back.
"""

from typing import Final, NamedTuple, TypeAlias

from .copy_messages import CopyMessage
from .driver_messages import DriverMessage

ROLE_PEER: Final = 1
ROLE_PRODUCER: Final = 2
ROLE_CONSUMER: Final = 3
ROLE_DRIVER: Final = 4
ROLE_COPIER: Final = 5
"""A TaskManager that writes map outputs of an application to another TaskManager."""

FLOW_CREDIT: Final = 0
FLOW_WATERMARK: Final = 1

DATA: Final = 0
EVENT: Final = 1
PRIORITY_EVENT: Final = 2
"""An event that overtakes the data waiting in front of it."""
BLOCKING_EVENT: Final = 3
"""An event that stops the channel until ResumeConsumption."""

PARTITION_BLOCKING: Final = 0
PARTITION_PIPELINED: Final = 1
"""A pipelined partition whose buffers only the whole pool bounds."""
PARTITION_PIPELINED_BOUNDED: Final = 2

CONSUME_WHEN_REGISTERED: Final = 0
CONSUME_AT_FIRST_OUTPUT: Final = 1
CONSUME_WHEN_FINISHED: Final = 2

EVERY_SUBPARTITION: Final = 2**32 - 1
"""Number that stands for all subpartitions: they share the bytes, which are stored once."""


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
    """Answer of the accepting side to a Hello that it agrees with."""

    version: int
    taskmanager_id: str
    segment_size_bytes: int
    flow_control: int
    features: int
    advertised_host: str
    data_port: int
    instance_id: str = ""  # empty: not sent, because the other side does not know it


class Challenge(NamedTuple):
    """Answer of the accepting side to a Hello with a claim, which is to be proven."""

    nonce: bytes


class Proof(NamedTuple):
    """Shows that its sender has the key that the Hello claimed; both sides send one."""

    proof: bytes


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


class ChecksummedBuffer(NamedTuple):
    """A BufferResponse with the CRC-32C of its payload, continued from the channel's number."""

    channel: int
    sequence_number: int
    backlog: int
    data_type: int
    crc32c: int


class AddCredit(NamedTuple):
    """The consumer of a channel (or the TaskManager, for a partition) can take more buffers."""

    channel: int
    credit: int


class BacklogAnnouncement(NamedTuple):
    """Announces buffers that wait for a channel without credit."""

    channel: int
    backlog: int


class ResumeConsumption(NamedTuple):
    """Lets a channel go on after a blocking event."""

    channel: int


class CancelPartitionRequest(NamedTuple):
    """Ends a channel that the consumer no longer needs."""

    channel: int


class TaskEvent(NamedTuple):
    """An event that travels from the consumer back to the producer."""

    channel: int
    event_type: int


class ErrorResponse(NamedTuple):
    """Reports that a channel, gate, partition or (channel None) the whole connection failed."""

    channel: int | None
    code: int
    fault: int
    retryable: bool
    message: str
    value: str
    limit: str
    map_attempt_id: int | None


class CloseRequest(NamedTuple):
    """Announces that no further requests follow on this connection."""


class Ping(NamedTuple):
    """Keeps an application alive; answered by Pong."""

    nonce: int


class Pong(NamedTuple):
    """Answer to Ping."""

    nonce: int


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
    """Begins the output of one map attempt, or goes on behind its secured regions."""

    partition: int
    shuffle_id: int
    map_attempt_id: int
    num_subpartitions: int


class PartitionResumed(NamedTuple):
    """Answer to ResumePartition: the secured regions. If committed, no partition was opened."""

    partition: int
    regions: int
    total_bytes: int
    committed: bool


class SecureRegion(NamedTuple):
    """Asks that a map output's regions up to this one outlive the TaskManager's process."""

    partition: int
    region: int


class RegionSecured(NamedTuple):
    """Answer to SecureRegion: the producer may forget these regions."""

    partition: int
    region: int


class BeginRegion(NamedTuple):
    """Announces a region: the number of bytes of each subpartition, and the checksum of all bytes.

    With ``EVERY_SUBPARTITION`` as the first subpartition there is one length: all subpartitions
    share the bytes.
    """

    partition: int
    region: int
    first_subpartition: int
    lengths: list[int]
    crc32c: int


class AttachRegionArea(NamedTuple):
    """Asks for a region area: memory that a producer on the same host shares with the TaskManager.

    An empty token asks for a new area of that size. With size 0 the connection gives up the area
    that is attached to it.
    """

    token: str
    size_bytes: int


class RegionAreaAttached(NamedTuple):
    """Answer to AttachRegionArea; an empty token means that no area is attached."""

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
    """Sets the largest payload of a region; sent before its first credit."""

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
    """Closes the gate of a reduce task."""

    gate: int


class GateClosed(NamedTuple):
    """Answer to CloseGate: it is the last message of the gate."""

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


class OutputsLost(NamedTuple):
    """Map outputs of the connection's application are gone; their tasks have to run again."""

    shuffle_id: int
    map_attempt_ids: list[int]


Message: TypeAlias = (
    Hello
    | HelloAck
    | Challenge
    | Proof
    | PartitionRequest
    | BufferResponse
    | AddCredit
    | BacklogAnnouncement
    | ChecksummedBuffer
    | ResumeConsumption
    | CancelPartitionRequest
    | TaskEvent
    | ErrorResponse
    | CloseRequest
    | Ping
    | Pong
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
    | OutputsLost
    | CopyMessage
    | DriverMessage
)
