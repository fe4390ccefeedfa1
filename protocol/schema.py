# Longer than 450 lines, because it is the only description of the messages.
"""The schema of the wire: every message with its type id, its fields and their limits.

A message on the wire is a msgpack array of its type id (``tag``) and its fields in their order
here. ``make docs`` generates the JVM's classes and the tables of docs/reference/wire.md from it.

:func:`encode` makes a frame's prefix and control part. :func:`decode_control` checks every field's
type and range before a message exists, so the rest of the code can trust messages.

A variable-length field says how handlers treat it (:class:`Keeping`).
"""

import enum
from reprlib import repr as short_repr
from struct import Struct as Layout
from typing import Annotated, Final, TypeAlias, Union, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct

from .errors import MalformedMessage
from .limits import (
    MAX_GATE_CHANNELS,
    MAX_I64,
    MAX_LOST_ATTEMPTS,
    MAX_NAME_CHARACTERS,
    MAX_PROCESSES,
    MAX_REPLICAS,
    MAX_U32,
    MIN_I64,
    NONCE_BYTES,
)

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
PARTITION_HYBRID_SELECTIVE: Final = 3
"""As PIPELINED_BOUNDED, and unread buffers go to the storage tiers when the pool is used up. A
TaskManager that takes it has HYBRID_PARTITIONS among its features."""
PARTITION_HYBRID_FULL: Final = 4
"""As HYBRID_SELECTIVE, and kept until it is released, so that it can be read again. A TaskManager
that takes it has HYBRID_FULL_PARTITIONS among its features."""

CONSUME_WHEN_REGISTERED: Final = 0
CONSUME_AT_FIRST_OUTPUT: Final = 1
CONSUME_WHEN_FINISHED: Final = 2

MEMBER_ACTIVE: Final = 0
MEMBER_DRAINING: Final = 1
"""The TaskManager takes no new map outputs, and serves the others until it stops."""

PROCESS_PORT_STEP: Final = 2
"""Distance of the ports of two data processes: by default the HTTP port follows the first one."""

EVERY_SUBPARTITION: Final = 2**32 - 1
"""Stands for all subpartitions: they share the bytes, which are stored once."""


class Keeping(enum.Enum):
    """How the handlers of a message treat a variable-length field; annotates its type."""

    CHARGED = enum.auto()
    """Handlers keep some or all of it, after they have charged the bytes to the application."""
    BOUNDED = enum.auto()
    """Handlers may keep it: its control part has at most MAX_HANDSHAKE_CONTROL_BYTES."""
    DROPPED = enum.auto()
    """Handlers keep nothing of it after they return."""


# ---- types of fields ----------------------------------------------------------------------------

U16: TypeAlias = Annotated[int, Meta(ge=0, le=2**16 - 1)]
U32: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_U32)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_U32)]
Processes: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PROCESSES)]
U64: TypeAlias = Annotated[int, Meta(ge=0)]  # msgpack cannot encode a larger number
I64: TypeAlias = Annotated[int, Meta(ge=MIN_I64, le=MAX_I64)]
DataType: TypeAlias = Annotated[int, Meta(ge=DATA, le=BLOCKING_EVENT)]
PartitionType: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITION_HYBRID_FULL)]
Consumption: TypeAlias = Annotated[int, Meta(ge=0, le=CONSUME_WHEN_FINISHED)]
MemberState: TypeAlias = Annotated[int, Meta(ge=MEMBER_ACTIVE, le=MEMBER_DRAINING)]
FaultOf: TypeAlias = Annotated[int, Meta(ge=1, le=2)]
Replicas: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Text: TypeAlias = Annotated[str, Keeping.BOUNDED]
Path: TypeAlias = Annotated[str, Keeping.DROPPED]
Token: TypeAlias = Annotated[bytes, Keeping.BOUNDED]
Lengths: TypeAlias = Annotated[list[U64], Keeping.CHARGED]
Attempts: TypeAlias = Annotated[list[I64], Meta(min_length=1), Keeping.CHARGED]
SomeAttempts: TypeAlias = Annotated[list[I64], Meta(min_length=1, max_length=MAX_LOST_ATTEMPTS)]

# ---- messages -----------------------------------------------------------------------------------


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all messages."""


class Hello(Message, frozen=True, tag=1):
    """First message of the side that connects."""

    magic: Name
    version_min: U32
    version_max: U32
    role: U32
    application_id: Name
    token: Token
    segment_size_bytes: U32
    flow_control: U32
    features: U32
    name: Name


class HelloAck(Message, frozen=True, tag=2):
    """Answer of the accepting side to a Hello that it accepts."""

    version: U32
    taskmanager_id: Name
    segment_size_bytes: U32
    flow_control: U32
    features: U32
    advertised_host: Name
    data_port: U16
    instance_id: Name
    process: U16
    processes: Processes


class PartitionRequest(Message, frozen=True, tag=3):
    """Requests subpartitions of some map attempts' output and grants the first credit."""

    channel: U32
    application_id: Name
    shuffle_id: U32
    map_attempt_ids: Attempts
    start_subpartition: U32
    end_subpartition: U32
    initial_credit: U32


class BufferResponse(Message, frozen=True, tag=4):
    """One buffer (payload) or event of a channel, with the sender's backlog after it."""

    channel: U32
    sequence_number: U32
    backlog: U32
    data_type: DataType


class AddCredit(Message, frozen=True, tag=5):
    """The consumer of a channel (or the TaskManager, for a partition) can take more buffers."""

    channel: U32
    credit: Positive


class BacklogAnnouncement(Message, frozen=True, tag=6):
    """Announces buffers that wait for a channel without credit."""

    channel: U32
    backlog: U32


class ResumeConsumption(Message, frozen=True, tag=7):
    """Lets a channel continue after a blocking event."""

    channel: U32


class CancelPartitionRequest(Message, frozen=True, tag=8):
    """Ends a channel that the consumer no longer needs."""

    channel: U32


class TaskEvent(Message, frozen=True, tag=9):
    """An event that travels from the consumer back to the producer."""

    channel: U32
    event_type: U32


class ErrorResponse(Message, frozen=True, tag=10):
    """Reports that a channel, gate, partition or (channel None) the whole connection failed."""

    channel: U32 | None
    code: U32
    fault: FaultOf
    retryable: bool
    message: Text
    value: Text
    limit: Text
    map_attempt_id: I64 | None


class CloseRequest(Message, frozen=True, tag=11):
    """Announces that no further requests follow on this connection."""


class Ping(Message, frozen=True, tag=12):
    """Keeps an application alive; answered by Pong."""

    nonce: U64


class Pong(Message, frozen=True, tag=13):
    """Answer to Ping."""

    nonce: U64


# 14 stays unused: older builds use it.


class PipelinedData(Message, frozen=True, tag=15):
    """One buffer or event (payload) that a producer writes to a pipelined partition."""

    partition: U32
    subpartition: U32
    data_type: DataType


class ResumePartition(Message, frozen=True, tag=16):
    """Begins the output of one map attempt, or continues it after its secured regions."""

    partition: U32
    shuffle_id: U32
    map_attempt_id: I64
    num_subpartitions: Positive


class PartitionResumed(Message, frozen=True, tag=17):
    """Answer to ResumePartition: the secured regions. If committed, no partition was opened."""

    partition: U32
    regions: U32
    total_bytes: U64
    committed: bool


class SecureRegion(Message, frozen=True, tag=18):
    """Asks that a map output's regions up to this one survive a crash of the process."""

    partition: U32
    region: U32


class RegionSecured(Message, frozen=True, tag=19):
    """Answer to SecureRegion: the producer may drop these regions."""

    partition: U32
    region: U32


class OpenPartition(Message, frozen=True, tag=20):
    """Begins the output of one map attempt."""

    partition: U32
    shuffle_id: U32
    map_attempt_id: I64
    num_subpartitions: Positive


class PartitionOpened(Message, frozen=True, tag=21):
    """Answer to OpenPartition."""

    partition: U32


class BeginRegion(Message, frozen=True, tag=22):
    """Announces a region: the number of bytes of each subpartition, and the checksum of all bytes.

    With ``EVERY_SUBPARTITION`` as the first subpartition there is one length: all subpartitions
    share the bytes.
    """

    partition: U32
    region: U32
    first_subpartition: U32
    lengths: Lengths
    crc32c: U32


class RegionOpened(Message, frozen=True, tag=23):
    """Sets the largest payload of a region; sent before its first credit."""

    partition: U32
    region: U32
    payload_bytes: Positive


class RegionData(Message, frozen=True, tag=24):
    """The next bytes (payload) of the current region."""

    partition: U32
    offset: U64


class FinishPartition(Message, frozen=True, tag=25):
    """Commits the output of a map attempt."""

    partition: U32
    total_bytes: U64
    regions: U32


class PartitionFinished(Message, frozen=True, tag=26):
    """The output is committed; it survives a crash of the TaskManager's process."""

    partition: U32


class AbortPartition(Message, frozen=True, tag=27):
    """Discards the output of a map attempt."""

    partition: U32


class PartitionAborted(Message, frozen=True, tag=28):
    """Answer to AbortPartition."""

    partition: U32


class OpenPipelinedPartition(Message, frozen=True, tag=29):
    """Begins a pipelined partition, which is read while it is written."""

    partition: U32
    shuffle_id: U32
    map_attempt_id: I64
    num_subpartitions: Positive
    partition_type: PartitionType
    consumption: Consumption


class GateChannel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One input channel of an OpenGate: a TaskManager and the map attempts wanted from it."""

    channel: U32
    taskmanager_id: Name
    host: Name
    port: U16
    map_attempt_ids: Attempts


class OpenGate(Message, frozen=True, tag=30):
    """Opens an input gate for a reduce task."""

    gate: U32
    shuffle_id: U32
    start_subpartition: U32
    end_subpartition: U32
    initial_credit: Positive
    channels: Annotated[list[GateChannel], Meta(max_length=MAX_GATE_CHANNELS)]


class GateOpened(Message, frozen=True, tag=31):
    """Answer to OpenGate."""

    gate: U32


class CloseGate(Message, frozen=True, tag=32):
    """Closes the gate of a reduce task."""

    gate: U32


class GateClosed(Message, frozen=True, tag=33):
    """Answer to CloseGate: it is the last message of the gate."""

    gate: U32


class AttachRegionArea(Message, frozen=True, tag=34):
    """Requests a region area: memory that the TaskManager shares with a producer on its host.

    An empty token requests a new area of that size. Size 0 releases the area that is attached to
    the connection.
    """

    token: Name
    size_bytes: U64


class RegionAreaAttached(Message, frozen=True, tag=35):
    """Answer to AttachRegionArea; an empty token means that no area is attached."""

    token: Name
    path: Path
    size_bytes: U64


class SharedRegion(Message, frozen=True, tag=36):
    """A BeginRegion whose bytes lie in the connection's region area; no RegionData follows."""

    partition: U32
    region: U32
    first_subpartition: U32
    lengths: Lengths
    crc32c: U32
    area_offset: U64


class Challenge(Message, frozen=True, tag=37):
    """Answer of the accepting side to a Hello with a claim: asks for proof."""

    nonce: Nonce


class Proof(Message, frozen=True, tag=38):
    """Shows that its sender has the key that the Hello claimed; both sides send one."""

    proof: Nonce


class ChecksummedBuffer(Message, frozen=True, tag=39):
    """A BufferResponse with the CRC-32C of its payload, continued from the channel's number."""

    channel: U32
    sequence_number: U32
    backlog: U32
    data_type: DataType
    crc32c: U32


class ReleaseShuffle(Message, frozen=True, tag=40):
    """Frees all map outputs of a shuffle of the connection's application."""

    shuffle_id: U32


class ShuffleReleased(Message, frozen=True, tag=41):
    """Answer to ReleaseShuffle and ReleaseAttempts."""

    shuffle_id: U32
    freed_bytes: U64


class ReleaseApplication(Message, frozen=True, tag=42):
    """Frees everything of the connection's application."""


class ApplicationReleased(Message, frozen=True, tag=43):
    """Answer to ReleaseApplication."""

    freed_bytes: U64


class OutputsLost(Message, frozen=True, tag=44):
    """Map outputs of the connection's application are gone; their tasks have to run again."""

    shuffle_id: U32
    map_attempt_ids: SomeAttempts


class ReplicatePartition(Message, frozen=True, tag=45):
    """Asks for copies of a map output at other TaskManagers; before FinishPartition.

    ``replicas`` counts the TaskManager that the producer writes to. If synchronous,
    PartitionFinished waits for the copies.
    """

    partition: U32
    replicas: Replicas
    synchronous: bool


class ReplicateToRemote(Message, frozen=True, tag=61):
    """Asks for a copy of a map output in the remote tier; before FinishPartition.

    Only with the feature REMOTE_COPIES. If synchronous, PartitionFinished waits for the copy. A
    copier sends it after CopyOf: the receiver makes the copy when the sender is lost.
    """

    partition: U32
    synchronous: bool


class CopyOf(Message, frozen=True, tag=46):
    """Marks a map output as a copy from another TaskManager; before FinishPartition.

    ``origin`` is that TaskManager, the sender; ``moved`` says that the sender will not keep its
    own copy.
    """

    partition: U32
    origin: Name
    replicas: Replicas
    moved: bool


class CopyChecksum(Message, frozen=True, tag=56):
    """Checksum of a map output that is copied, over its bytes and their subpartitions.

    It comes before CopyOf, and tells whether a map output of that name has the same bytes.
    """

    partition: U32
    crc32c: U32


class KnownTaskManager(Message, frozen=True, tag=47):
    """Names another TaskManager that the application uses."""

    taskmanager_id: Name
    host: Name
    port: U16


class OutputsHeld(Message, frozen=True, tag=48):
    """Map outputs of the connection's application that other TaskManagers have copied here."""

    shuffle_id: U32
    map_attempt_ids: SomeAttempts


class OutputsRemote(Message, frozen=True, tag=62):
    """Map outputs of the connection's application have a copy in the remote tier.

    Only with the feature REMOTE_COPIES. Every TaskManager with the same remote tier serves them.
    """

    shuffle_id: U32
    map_attempt_ids: SomeAttempts


class OutputsMoved(Message, frozen=True, tag=49):
    """Map outputs of the connection's application have moved to another TaskManager."""

    move: U32
    shuffle_id: U32
    taskmanager_id: Name
    host: Name
    port: U16
    map_attempt_ids: SomeAttempts


class MoveNoted(Message, frozen=True, tag=50):
    """Answer to OutputsMoved: the driver sends readers to the new TaskManager."""

    move: U32


class ReleaseAttempts(Message, frozen=True, tag=51):
    """Frees the map outputs of a shuffle whose map attempt is below ``end``.

    The answer is ShuffleReleased. A driver that numbers the attempts of its application in the
    order in which they begin excludes later attempts, even if the message arrives late.
    """

    shuffle_id: U32
    end: I64


class CheckOutputs(Message, frozen=True, tag=52):
    """Asks which of these map outputs the TaskManager does not have.

    OutputsLost names them; OutputsChecked follows.
    """

    check: U32
    shuffle_id: U32
    map_attempt_ids: SomeAttempts


class OutputsChecked(Message, frozen=True, tag=53):
    """Answers CheckOutputs: the TaskManager has all outputs that it did not report as lost."""

    check: U32


class WatchConsumption(Message, frozen=True, tag=54):
    """Asks for PartitionConsumed, or an ErrorResponse, about a pipelined partition.

    It comes before FinishPartition; the answer comes after PartitionFinished.
    """

    partition: U32


class PartitionConsumed(Message, frozen=True, tag=55):
    """The readers of a finished pipelined partition have reached its end."""

    partition: U32


class ReportDamage(Message, frozen=True, tag=57):
    """Reports that stored data of a gate's channel arrived damaged: a block has a wrong checksum.

    ``taskmanager_id``, ``host`` and ``port`` are those of the channel. That TaskManager verifies
    its own bytes of these subpartitions; it does not trust the report. There is no answer.
    """

    shuffle_id: U32
    start_subpartition: U32
    end_subpartition: U32
    taskmanager_id: Name
    host: Name
    port: U16
    map_attempt_ids: SomeAttempts


class VerifyOutputs(Message, frozen=True, tag=58):
    """Passes a ReportDamage on to the TaskManager that has the map outputs."""

    application_id: Name
    shuffle_id: U32
    start_subpartition: U32
    end_subpartition: U32
    map_attempt_ids: SomeAttempts


class MemberReport(Message, frozen=True, tag=64):
    """Describes a TaskManager of the cluster: the sender, or a member that it has reached.

    Only with the feature MEMBERS. ``free_bytes`` is the space for new map outputs in its tiers, and
    ``open_outputs`` the number of map outputs being written. ``node`` and ``zone`` are empty if it
    does not know them. There is no answer.
    """

    taskmanager_id: Name
    host: Name
    port: U16
    http_port: U16
    process: U16
    processes: Processes
    node: Name
    zone: Name
    state: MemberState
    free_bytes: U64
    open_outputs: U32


class TraceContext(Message, frozen=True, tag=63):
    """Joins a partition, a gate or a channel to a trace.

    Only with the feature TRACES. It comes after OpenPartition or OpenPipelinedPartition and before
    FinishPartition, or right before the OpenGate or the PartitionRequest with its number.
    ``traceparent`` is a text of W3C Trace Context; if it is empty or invalid, the receiver begins a
    trace. Stage and task attempt are those of Spark.
    """

    number: U32
    traceparent: Name
    stage_id: I64 | None
    task_attempt_id: I64 | None

    def numbered(self, number: int) -> "TraceContext":
        """Return the same context for another partition, gate or channel."""
        return TraceContext(number, self.traceparent, self.stage_id, self.task_attempt_id)


CARRIES_PAYLOAD: Final[frozenset[type[Message]]] = frozenset(
    {BufferResponse, ChecksummedBuffer, PipelinedData, RegionData, TaskEvent}
)

# ---- bytes --------------------------------------------------------------------------------------


def type_id_of(kind: type[Struct]) -> int:
    """Return the number of a message or an event on the wire."""
    tag = kind.__struct_config__.tag
    if not isinstance(tag, int):
        raise TypeError(f"{kind.__name__} has no type id")
    return tag


TYPE_IDS: Final[dict[type[Message], int]] = {
    kind: type_id_of(kind) for kind in Message.__subclasses__()
}
"""The number of each message on the wire."""

_BY_TYPE_ID: Final = {number: kind for kind, number in TYPE_IDS.items()}
_MAX_FIELDS: Final = max(len(kind.__struct_fields__) for kind in TYPE_IDS)

# The second byte of a message is its type id, in the form that every sender uses. A decoder of one
# type takes half the time of _ANY, which also decodes legal forms that are not the shortest.
_ANY: Final = msgspec.msgpack.Decoder(Union[tuple(TYPE_IDS)]).decode  # noqa: UP007
_DECODE: Final = [
    msgspec.msgpack.Decoder(_BY_TYPE_ID[byte]).decode if byte in _BY_TYPE_ID else _ANY
    for byte in range(256)
]
_PARTS: Final = msgspec.msgpack.Decoder(Annotated[list[Raw], Meta(max_length=1 + _MAX_FIELDS)])

_encode = msgspec.msgpack.Encoder().encode
_pack_prefix = Layout(">II").pack


def encode(message: Message, payload_length: int = 0) -> bytes:
    """Make the prefix and control part of a frame; the payload follows unchanged on the wire.

    Raises:
        OverflowError: An integer is beyond 64 bits (a bug of the caller).
        ValueError: A string has no UTF-8 form (a bug of the caller).
    """
    control = _encode(message)
    return _pack_prefix(len(control), payload_length) + control


def decode_control(control: bytes | bytearray | memoryview) -> Message:
    """Decode and check the control part of a frame.

    It takes memory in proportion to the control part: msgspec allocates none for elements that an
    array claims but does not have.

    Raises:
        MalformedMessage: The bytes are not msgpack, or have an unknown type id or a field of a
            wrong type or range.
    """
    try:
        return _DECODE[control[1]](control)
    except (ValueError, IndexError, RecursionError) as error:
        raise _refusal(control, error) from error


def _refusal(control: bytes | bytearray | memoryview, error: Exception) -> MalformedMessage:
    """Name the message and the field that a decoder refused."""
    try:
        parts = _PARTS.decode(control)
        type_id = msgspec.msgpack.decode(parts[0], type=int)
    except (ValueError, IndexError, RecursionError) as other:
        return MalformedMessage(
            "Control part is not an array that starts with a message type", value=_cause(other)
        )
    kind = _BY_TYPE_ID.get(type_id)
    if kind is None:
        return MalformedMessage("Unknown message type", value=type_id)
    fields = get_type_hints(kind, include_extras=True)
    if len(parts) != 1 + len(fields):
        return MalformedMessage(
            f"{kind.__name__} has the wrong number of fields",
            value=len(parts) - 1,
            limit=len(fields),
        )
    for (name, field), part in zip(fields.items(), parts[1:], strict=True):
        try:
            msgspec.msgpack.decode(part, type=field)
        except (ValueError, RecursionError) as wrong:
            return MalformedMessage(
                f"{kind.__name__}.{name} has a wrong type or range",
                value=_shown(part),
                limit=_cause(wrong),
            )
    return MalformedMessage(f"{kind.__name__} is malformed", value=_cause(error))


_SHOWN_BYTES: Final = 64
"""Longest field whose value an error shows, because decoding it takes memory."""


def _shown(part: Raw) -> str:
    length = len(memoryview(part))
    if length <= _SHOWN_BYTES:
        try:
            return short_repr(msgspec.msgpack.decode(part))
        except (ValueError, RecursionError):
            pass
    return f"{length} bytes"


def _cause(error: Exception) -> str:
    if isinstance(error, msgspec.DecodeError):
        return str(error).removeprefix("Expected ").replace(" - at `$", " at `").replace("`", "")
    return f"{type(error).__name__}: {short_repr(str(error))}"
