"""Turns messages into bytes and back.

:func:`encode` makes a frame's prefix and control part; :func:`decode_control` checks every field's
type and range before a message exists, so the rest of the code can trust messages.
"""

from collections.abc import Callable
from reprlib import repr as short_repr
from struct import Struct
from typing import Any, Final, TypeAlias

import msgpack

from .copy_messages import (
    CopyOf,
    KnownTaskManager,
    MoveNoted,
    OutputsHeld,
    OutputsMoved,
    ReplicatePartition,
)
from .driver_messages import CheckOutputs, OutputsChecked, ReleaseAttempts
from .errors import MalformedMessage
from .limits import (
    MAX_I64,
    MAX_LOST_ATTEMPTS,
    MAX_NAME_CHARACTERS,
    MAX_REPLICAS,
    MAX_U32,
    MAX_U64,
    MIN_I64,
    NONCE_BYTES,
)
from .messages import (
    BLOCKING_EVENT,
    DATA,
    AbortPartition,
    AddCredit,
    ApplicationReleased,
    AttachRegionArea,
    BacklogAnnouncement,
    BeginRegion,
    BufferResponse,
    CancelPartitionRequest,
    Challenge,
    ChecksummedBuffer,
    CloseGate,
    CloseRequest,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    GateClosed,
    GateOpened,
    Hello,
    HelloAck,
    Message,
    OpenGate,
    OpenPartition,
    OpenPipelinedPartition,
    OutputsLost,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionRequest,
    PartitionResumed,
    Ping,
    PipelinedData,
    Pong,
    Proof,
    RegionAreaAttached,
    RegionData,
    RegionOpened,
    RegionSecured,
    ReleaseApplication,
    ReleaseShuffle,
    ResumeConsumption,
    ResumePartition,
    SecureRegion,
    SharedRegion,
    ShuffleReleased,
    TaskEvent,
)
from .unpacking import FLAT_BYTES, MOST_FIELDS, WrongField, unpack_by_fields, unpack_flat

Check: TypeAlias = Callable[[Any], bool]


def _integer(low: int, high: int) -> Check:
    # type() rather than isinstance(): True is not a number on this wire.
    return lambda value: type(value) is int and low <= value <= high


_U32 = _integer(0, MAX_U32)
_U64 = _integer(0, MAX_U64)
_I64 = _integer(MIN_I64, MAX_I64)
_PORT = _integer(0, 65535)
_CREDIT = _integer(1, MAX_U32)
_DATA_TYPE = _integer(DATA, BLOCKING_EVENT)
_REPLICAS = _integer(1, MAX_REPLICAS)


def _is_name(value: object) -> bool:
    return type(value) is str and len(value) <= MAX_NAME_CHARACTERS


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_nonce(value: object) -> bool:
    return type(value) is bytes and len(value) == NONCE_BYTES


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _are_integers(value: Any) -> bool:
    """Return whether a field is a list of integers; msgpack's are between −2⁶³ and 2⁶⁴−1.

    A map output may have a length for each of a million subpartitions, so this executes no Python
    code for each element. A list longer than MOST_FIELDS was checked while it was unpacked.
    """
    return type(value) is list and (len(value) > MOST_FIELDS or set(map(type, value)) <= {int})


def _are_lengths(value: Any) -> bool:
    return _are_integers(value) and (not value or min(value) >= 0)


def _are_attempts(value: Any) -> bool:
    return _are_integers(value) and bool(value) and max(value) <= MAX_I64


def _are_lost_attempts(value: Any) -> bool:
    return _are_attempts(value) and len(value) <= MAX_LOST_ATTEMPTS


_GATE_CHANNEL_CHECKS: tuple[Check, ...] = (
    _U32,
    _is_name,
    _is_name,
    _PORT,
    _are_attempts,
)


def _are_gate_channels(value: Any) -> bool:
    return type(value) is list and all(
        type(item) is list
        and len(item) == len(_GATE_CHANNEL_CHECKS)
        and all(check(field) for check, field in zip(_GATE_CHANNEL_CHECKS, item, strict=True))
        for item in value
    )


_FORMAT: Final[dict[int, tuple[type[Message], tuple[Check, ...]]]] = {
    1: (
        Hello,
        (_is_name, _U32, _U32, _U32, _is_name, _is_bytes, _U32, _U32, _U32, _is_name),
    ),
    2: (HelloAck, (_U32, _is_name, _U32, _U32, _U32, _is_name, _PORT, _is_name)),
    3: (PartitionRequest, (_U32, _is_name, _U32, _are_attempts, _U32, _U32, _U32)),
    4: (BufferResponse, (_U32, _U32, _U32, _DATA_TYPE)),
    5: (AddCredit, (_U32, _CREDIT)),
    6: (BacklogAnnouncement, (_U32, _U32)),
    7: (ResumeConsumption, (_U32,)),
    8: (CancelPartitionRequest, (_U32,)),
    9: (TaskEvent, (_U32, _U32)),
    10: (
        ErrorResponse,
        (
            _optional(_U32),
            _U32,
            _integer(1, 2),
            _is_bool,
            _is_text,
            _is_text,
            _is_text,
            _optional(_I64),
        ),
    ),
    11: (CloseRequest, ()),
    12: (Ping, (_U64,)),
    13: (Pong, (_U64,)),
    # 14 stays unused: older builds have a message with it.
    15: (PipelinedData, (_U32, _U32, _DATA_TYPE)),
    16: (ResumePartition, (_U32, _U32, _I64, _integer(1, MAX_U32))),
    17: (PartitionResumed, (_U32, _U32, _U64, _is_bool)),
    18: (SecureRegion, (_U32, _U32)),
    19: (RegionSecured, (_U32, _U32)),
    20: (OpenPartition, (_U32, _U32, _I64, _integer(1, MAX_U32))),
    21: (PartitionOpened, (_U32,)),
    22: (BeginRegion, (_U32, _U32, _U32, _are_lengths, _U32)),
    23: (RegionOpened, (_U32, _U32, _integer(1, MAX_U32))),
    24: (RegionData, (_U32, _U64)),
    25: (FinishPartition, (_U32, _U64, _U32)),
    26: (PartitionFinished, (_U32,)),
    27: (AbortPartition, (_U32,)),
    28: (PartitionAborted, (_U32,)),
    29: (
        OpenPipelinedPartition,
        (_U32, _U32, _I64, _integer(1, MAX_U32), _integer(0, 2), _integer(0, 2)),
    ),
    30: (OpenGate, (_U32, _U32, _U32, _U32, _CREDIT, _are_gate_channels)),
    31: (GateOpened, (_U32,)),
    32: (CloseGate, (_U32,)),
    33: (GateClosed, (_U32,)),
    34: (AttachRegionArea, (_is_name, _U64)),
    35: (RegionAreaAttached, (_is_name, _is_text, _U64)),
    36: (SharedRegion, (_U32, _U32, _U32, _are_lengths, _U32, _U64)),
    37: (Challenge, (_is_nonce,)),
    38: (Proof, (_is_nonce,)),
    39: (ChecksummedBuffer, (_U32, _U32, _U32, _DATA_TYPE, _U32)),
    40: (ReleaseShuffle, (_U32,)),
    41: (ShuffleReleased, (_U32, _U64)),
    42: (ReleaseApplication, ()),
    43: (ApplicationReleased, (_U64,)),
    44: (OutputsLost, (_U32, _are_lost_attempts)),
    45: (ReplicatePartition, (_U32, _REPLICAS, _is_bool)),
    46: (CopyOf, (_U32, _is_name, _REPLICAS, _is_bool)),
    47: (KnownTaskManager, (_is_name, _is_name, _PORT)),
    48: (OutputsHeld, (_U32, _are_lost_attempts)),
    49: (OutputsMoved, (_U32, _U32, _is_name, _is_name, _PORT, _are_lost_attempts)),
    50: (MoveNoted, (_U32,)),
    51: (ReleaseAttempts, (_U32, _I64)),
    52: (CheckOutputs, (_U32, _U32, _are_lost_attempts)),
    53: (OutputsChecked, (_U32,)),
}


# Each message of the data path is checked by one expression, which takes half the time of the
# table's closures. A result of None sends the message through the table, which names the wrong
# field.


def _buffer_response(fields: list[Any]) -> Message | None:
    if len(fields) != 5:
        return None
    _, channel, sequence_number, backlog, data_type = fields
    if (
        type(channel) is type(sequence_number) is type(backlog) is type(data_type) is int
        and 0 <= channel <= MAX_U32
        and 0 <= sequence_number <= MAX_U32
        and 0 <= backlog <= MAX_U32
        and DATA <= data_type <= BLOCKING_EVENT
    ):
        return BufferResponse(channel, sequence_number, backlog, data_type)
    return None


def _checksummed_buffer(fields: list[Any]) -> Message | None:
    if len(fields) != 6:
        return None
    _, channel, sequence_number, backlog, data_type, crc32c = fields
    if (
        type(channel) is type(sequence_number) is type(backlog) is type(data_type) is int
        and type(crc32c) is int
        and 0 <= channel <= MAX_U32
        and 0 <= sequence_number <= MAX_U32
        and 0 <= backlog <= MAX_U32
        and DATA <= data_type <= BLOCKING_EVENT
        and 0 <= crc32c <= MAX_U32
    ):
        return ChecksummedBuffer(channel, sequence_number, backlog, data_type, crc32c)
    return None


def _add_credit(fields: list[Any]) -> Message | None:
    if len(fields) != 3:
        return None
    _, channel, credit = fields
    if type(channel) is type(credit) is int and 0 <= channel <= MAX_U32 and 1 <= credit <= MAX_U32:
        return AddCredit(channel, credit)
    return None


def _region_data(fields: list[Any]) -> Message | None:
    if len(fields) != 3:
        return None
    _, partition, offset = fields
    if type(partition) is type(offset) is int and 0 <= partition <= MAX_U32:
        return RegionData(partition, offset) if 0 <= offset <= MAX_U64 else None
    return None


def _pipelined_data(fields: list[Any]) -> Message | None:
    if len(fields) != 4:
        return None
    _, partition, subpartition, data_type = fields
    if (
        type(partition) is type(subpartition) is type(data_type) is int
        and 0 <= partition <= MAX_U32
        and 0 <= subpartition <= MAX_U32
        and DATA <= data_type <= BLOCKING_EVENT
    ):
        return PipelinedData(partition, subpartition, data_type)
    return None


_HOT: Final[dict[int, Callable[[list[Any]], Message | None]]] = {
    4: _buffer_response,
    5: _add_credit,
    15: _pipelined_data,
    24: _region_data,
    39: _checksummed_buffer,
}

TYPE_IDS: Final[dict[type[Message], int]] = {form[0]: number for number, form in _FORMAT.items()}

CARRIES_PAYLOAD: Final[frozenset[type[Message]]] = frozenset(
    {BufferResponse, ChecksummedBuffer, PipelinedData, RegionData, TaskEvent}
)

_PREFIX = Struct(">II")
_pack = msgpack.Packer(autoreset=True).pack


def _cause(error: Exception) -> str:
    # Not repr(): the one of msgpack's ExtraData contains all of the input.
    return f"{type(error).__name__}: {error}"


def encode(message: Message, payload_length: int = 0) -> bytes:
    """Make the prefix and control part of a frame; the payload follows unchanged on the wire.

    Raises:
        OverflowError: An integer is beyond 64 bits (a bug of the caller).
        ValueError: A string has no UTF-8 form (a bug of the caller).
    """
    fields: tuple[Any, ...] = message
    if type(message) is HelloAck and not message.instance_id:
        fields = message[:-1]  # the form without instance ids
    control: bytes = _pack((TYPE_IDS[type(message)], *fields))
    return _PREFIX.pack(len(control), payload_length) + control


def _unpack(control: bytes | bytearray | memoryview) -> Any:
    try:
        if len(control) <= FLAT_BYTES:
            try:
                return unpack_flat(control)
            except ValueError:  # a long array, which may be legal
                return unpack_by_fields(control)
        return unpack_by_fields(control)
    except WrongField as error:
        form = _FORMAT.get(error.type_id) if type(error.type_id) is int else None
        if form is None or error.index >= len(form[1]):
            raise MalformedMessage("Unknown message", value=short_repr(error.type_id)) from error
        raise MalformedMessage(
            f"{form[0].__name__}.{form[0]._fields[error.index]} has a wrong type or range",
            value=_cause(error),
        ) from error
    except Exception as other:  # msgpack documents no closed set of errors for bad input
        raise MalformedMessage("Control part is not valid msgpack", value=_cause(other)) from other


def decode_control(control: bytes | bytearray | memoryview) -> Message:
    """Decode and check the control part of a frame.

    Raises:
        MalformedMessage: The bytes are not msgpack, or have an unknown type id or a field of a
            wrong type or range.
    """
    fields = _unpack(control)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise MalformedMessage(
            "Control part is not an array that starts with a message type",
            value=short_repr(fields),
        )
    hot = _HOT.get(fields[0])
    if hot is not None:
        message = hot(fields)
        if message is not None:
            return message
    form = _FORMAT.get(fields[0])
    if form is None:
        raise MalformedMessage("Unknown message type", value=fields[0])
    message_type, checks = form
    del fields[0]
    if message_type is HelloAck and len(fields) == len(checks) - 1:
        fields.append("")
    if len(fields) != len(checks):
        raise MalformedMessage(
            f"{message_type.__name__} has the wrong number of fields",
            value=len(fields),
            limit=len(checks),
        )
    for check, field in zip(checks, fields, strict=False):  # equal lengths, see above
        if not check(field):
            names = message_type._fields
            index = next(i for i, (c, f) in enumerate(zip(checks, fields, strict=True)) if not c(f))
            raise MalformedMessage(
                f"{message_type.__name__}.{names[index]} has a wrong type or range",
                value=short_repr(fields[index]),
            )
    if message_type is OpenGate:
        fields[5] = [GateChannel._make(item) for item in fields[5]]
    return message_type._make(fields)
