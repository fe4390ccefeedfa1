"""Events, which are sent in a channel between data.

An event is the payload of a ``BufferResponse`` or ``PipelinedData`` whose data type is not DATA: a
msgpack array that begins with the event's id, at most MAX_EVENT_BYTES long. A bad event is the
fault of one producer and fails one channel, so :class:`sluice.protocol.errors.InvalidEvent` does
not close the connection.
"""

from reprlib import repr as short_repr
from typing import Any, Final, TypeAlias, Union

import msgspec
from msgspec import Struct

from .errors import InvalidEvent
from .limits import MAX_EVENT_BYTES
from .schema import U64, Name, type_id_of

END_OF_PARTITION: Final = 1


class Event(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all events."""


class EndOfPartition(Event, frozen=True, tag=END_OF_PARTITION):
    """The end of a channel, with the totals of its data payloads."""

    total_bytes: U64
    total_buffers: U64


class CheckpointBarrier(Event, frozen=True, tag=2):
    """Separates the data of a checkpoint from the data after it.

    ``unaligned`` says that it was sent as a priority event, which overtakes data. Sluice forwards
    the flag and does not use it.
    """

    checkpoint_id: U64
    timestamp_ms: U64
    unaligned: bool


class CancelCheckpointMarker(Event, frozen=True, tag=3):
    """The checkpoint with this id will not be completed."""

    checkpoint_id: U64


class EndOfData(Event, frozen=True, tag=4):
    """No more records follow, though other events may."""


class CustomEvent(Event, frozen=True, tag=5):
    """An event that only the application understands."""

    name: Name
    payload: bytes


Payload: TypeAlias = bytes | bytearray | memoryview

EVENT_IDS: Final[dict[type[Event], int]] = {
    kind: type_id_of(kind) for kind in Event.__subclasses__()
}

_BY_ID: Final = {number: kind for kind, number in EVENT_IDS.items()}

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(
    Union[tuple(EVENT_IDS)]  # noqa: UP007
)


def encode_event(event: Event) -> bytes:
    """Make the payload of an event.

    Raises:
        InvalidEvent: It is longer than MAX_EVENT_BYTES.
        OverflowError: An integer is beyond 64 bits (a bug of the caller).
    """
    payload = _encode(event)
    if len(payload) > MAX_EVENT_BYTES:
        raise InvalidEvent(
            f"The event {type(event).__name__} is too large",
            value=f"{len(payload)} bytes",
            limit=f"{MAX_EVENT_BYTES} bytes",
            remedy="Events travel outside the buffer pool: send large values as data",
        )
    return payload


def decode_event(payload: Payload) -> Event:
    """Decode and check the payload of an event.

    Raises:
        InvalidEvent: The payload is too long, is not an event, or has an unknown id or wrong
            fields.
    """
    try:
        if len(payload) <= MAX_EVENT_BYTES:
            return _decoder.decode(payload)
    except (ValueError, RecursionError):
        pass
    number, *fields = _fields(payload)
    kind = _BY_ID.get(number)
    if kind is None:
        raise InvalidEvent("Unknown event", value=number, limit=", ".join(map(str, _BY_ID)))
    raise InvalidEvent(
        f"{kind.__name__} has wrong fields",
        value=short_repr(fields),
        limit=", ".join(kind.__struct_fields__) or "no fields",
    )


def is_end_of_partition(payload: Payload) -> bool:
    """Return whether an event ends its channel.

    Raises:
        InvalidEvent: The payload is not an event.
    """
    return bool(_fields(payload)[0] == END_OF_PARTITION)


def encode_end_of_partition(total_bytes: int, total_buffers: int) -> bytes:
    """Make the payload of the event that ends a channel."""
    return encode_event(EndOfPartition(total_bytes, total_buffers))


def _fields(payload: Payload) -> list[Any]:
    """Return the array of an event, which begins with a number."""
    if len(payload) > MAX_EVENT_BYTES:
        raise InvalidEvent("Event is too large", value=len(payload), limit=MAX_EVENT_BYTES)
    try:
        fields = msgspec.msgpack.decode(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(
            "Event is not valid msgpack", value=f"{type(error).__name__}: {error}"
        ) from error
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise InvalidEvent(
            "Event is not an array that starts with an event id", value=short_repr(fields)
        )
    return fields
