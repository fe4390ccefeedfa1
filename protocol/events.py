"""Events, which are sent in a channel between data.

An event is the payload of a ``BufferResponse`` or ``PipelinedData`` whose data type is not DATA: a
msgpack array that begins with the event's id, at most MAX_EVENT_BYTES long. A bad event is the
fault of one producer and fails one channel, so :class:`sluice.protocol.errors.InvalidEvent` does
not close the connection.
"""

from collections.abc import Callable
from reprlib import repr as short_repr
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from .errors import InvalidEvent
from .limits import MAX_EVENT_BYTES, MAX_NAME_CHARACTERS, MAX_U64

END_OF_PARTITION: Final = 1


class EndOfPartition(NamedTuple):
    """The end of a channel, with the totals of its data payloads."""

    total_bytes: int
    total_buffers: int


class CheckpointBarrier(NamedTuple):
    """Separates the data of a checkpoint from the data after it.

    ``unaligned`` says that it was sent as a priority event, which overtakes data. Sluice forwards
    the flag and does not use it.
    """

    checkpoint_id: int
    timestamp_ms: int
    unaligned: bool


class CancelCheckpointMarker(NamedTuple):
    """The checkpoint with this id will not be completed."""

    checkpoint_id: int


class EndOfData(NamedTuple):
    """No more records follow, though other events may."""


class CustomEvent(NamedTuple):
    """An event that only the application understands."""

    name: str
    payload: bytes


Event: TypeAlias = (
    EndOfPartition | CheckpointBarrier | CancelCheckpointMarker | EndOfData | CustomEvent
)

_Check: TypeAlias = Callable[[Any], bool]


def _is_u64(value: Any) -> bool:
    # type() rather than isinstance(): True is not a number on this wire.
    return type(value) is int and 0 <= value <= MAX_U64


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_name(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_NAME_CHARACTERS


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


_FORMAT: Final[dict[int, tuple[type[Event], tuple[_Check, ...]]]] = {
    END_OF_PARTITION: (EndOfPartition, (_is_u64, _is_u64)),
    2: (CheckpointBarrier, (_is_u64, _is_u64, _is_bool)),
    3: (CancelCheckpointMarker, (_is_u64,)),
    4: (EndOfData, ()),
    5: (CustomEvent, (_is_name, _is_bytes)),
}

EVENT_IDS: Final[dict[type[Event], int]] = {form[0]: number for number, form in _FORMAT.items()}

_pack = msgpack.Packer(autoreset=True).pack


def encode_event(event: Event) -> bytes:
    """Make the payload of an event.

    Raises:
        InvalidEvent: It is longer than MAX_EVENT_BYTES.
        OverflowError: An integer is beyond 64 bits (a bug of the caller).
    """
    payload: bytes = _pack((EVENT_IDS[type(event)], *event))
    if len(payload) > MAX_EVENT_BYTES:
        raise InvalidEvent(
            f"The event {type(event).__name__} is too large",
            value=f"{len(payload)} bytes",
            limit=f"{MAX_EVENT_BYTES} bytes",
            remedy="Events travel outside the buffer pool: send large values as data",
        )
    return payload


def decode_event(payload: bytes | bytearray | memoryview) -> Event:
    """Decode and check the payload of an event.

    Raises:
        InvalidEvent: The payload is too long, is not an event, or has an unknown id or wrong
            fields.
    """
    fields = _fields(payload)
    form = _FORMAT.get(fields[0])
    if form is None:
        raise InvalidEvent(
            "Unknown event", value=fields[0], limit=", ".join(str(number) for number in _FORMAT)
        )
    event_type, checks = form
    del fields[0]
    if len(fields) != len(checks) or not all(
        check(field) for check, field in zip(checks, fields, strict=True)
    ):
        raise InvalidEvent(
            f"{event_type.__name__} has wrong fields",
            value=short_repr(fields),
            limit=", ".join(event_type._fields) or "no fields",
        )
    return event_type._make(fields)


def is_end_of_partition(payload: bytes | bytearray | memoryview) -> bool:
    """Return whether an event ends its channel.

    Raises:
        InvalidEvent: The payload is not an event.
    """
    return bool(_fields(payload)[0] == END_OF_PARTITION)


def encode_end_of_partition(total_bytes: int, total_buffers: int) -> bytes:
    """Make the payload of the event that ends a channel."""
    return encode_event(EndOfPartition(total_bytes, total_buffers))


def _fields(payload: bytes | bytearray | memoryview) -> list[Any]:
    """Return the array of an event, which begins with a number."""
    if len(payload) > MAX_EVENT_BYTES:
        raise InvalidEvent("Event is too large", value=len(payload), limit=MAX_EVENT_BYTES)
    try:
        fields = msgpack.unpackb(payload)
    except Exception as error:  # msgpack does not document all errors for bad input
        # Not repr(): for msgpack's ExtraData it contains all of the input.
        raise InvalidEvent(
            "Event is not valid msgpack", value=f"{type(error).__name__}: {error}"
        ) from error
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise InvalidEvent(
            "Event is not an array that starts with an event id", value=short_repr(fields)
        )
    return fields
