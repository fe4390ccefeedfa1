"""Unpacks control parts in memory that is in proportion to their bytes.

A msgpack array header of five bytes may claim four billion elements, and an empty array of one byte
becomes an object of 56 bytes. So a plain unpacker that believes every header can be made to take
thousands of times the received bytes before it checks any field. A message, however, is a flat
array; only a few types have arrays in it, in known places:

* a short control part (:data:`FLAT_BYTES`) is unpacked in one go, without arrays longer than
  :data:`MOST_FIELDS`; this is the data path;
* any other control part is taken field by field, and an array is followed only where the type has
  one.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NoReturn, TypeAlias

import msgpack

from .limits import MAX_GATE_CHANNELS, MAX_HANDSHAKE_CONTROL_BYTES

MOST_FIELDS: Final = 15
"""Longest array of a message without arrays among its fields; the longest message has 11."""

FLAT_BYTES: Final = MAX_HANDSHAKE_CONTROL_BYTES
"""Longest control part that is unpacked in one go."""

_BATCH: Final = 4096
"""Number of elements checked together, so that wrong ones are found before there are many."""

_Take: TypeAlias = Callable[[Any], list[Any]]
"""Takes one array from an unpacker."""


class WrongField(ValueError):
    """A field has a type that its message does not have in that place.

    Args:
        type_id: The message's type.
        index: The field's place, from 0.
        reason: Description of the error.
    """

    def __init__(self, type_id: object, index: int, reason: str) -> None:
        super().__init__(reason)
        self.type_id = type_id
        self.index = index


def unpack_flat(control: bytes | bytearray | memoryview) -> Any:
    """Unpack a control part of at most FLAT_BYTES in one go.

    Raises:
        ValueError: It has an array of more than MOST_FIELDS. Errors of msgpack pass through.
    """
    return msgpack.unpackb(control, max_array_len=MOST_FIELDS)


def unpack_by_fields(control: bytes | bytearray | memoryview) -> list[Any]:
    """Unpack a control part field by field.

    Raises:
        WrongField: A field is or has an array where its message has none.
        ValueError: It is not an array, or has more fields or other bytes than a message has. Errors
            of msgpack pass through.
    """
    unpacker = msgpack.Unpacker(
        max_buffer_size=len(control),
        max_array_len=0,
        max_map_len=0,
        list_hook=_refuse,
        object_hook=_refuse,
        ext_hook=_refuse,
    )
    unpacker.feed(control)
    count = unpacker.read_array_header()
    if count > MOST_FIELDS:
        raise ValueError(f"{count} fields, a message has at most {MOST_FIELDS}")
    if count == 0:
        return []
    type_id = unpacker.unpack()
    arrays = _ARRAYS.get(type_id, _NO_ARRAYS) if type(type_id) is int else _NO_ARRAYS
    fields = [type_id]
    for index in range(count - 1):
        take = arrays.get(index)
        try:
            fields.append(unpacker.unpack() if take is None else take(unpacker))
        except Exception as error:  # msgpack documents no closed set of errors for bad input
            raise WrongField(type_id, index, str(error)) from error
    if unpacker.tell() != len(control):
        raise ValueError("there are bytes behind the message")
    return fields


def _refuse(*_: object) -> NoReturn:
    raise ValueError("an array, a map or an extension is not allowed here")


def _integers(unpacker: Any) -> list[Any]:
    count = unpacker.read_array_header()
    taken: list[Any] = []
    while len(taken) < count:
        batch = list(islice(unpacker, min(_BATCH, count - len(taken))))
        if not batch:
            raise ValueError(f"{len(taken)} integers instead of {count}")
        if set(map(type, batch)) != {int}:
            raise ValueError("an array of integers has an element of another type")
        taken += batch
    return taken


def _channels(unpacker: Any) -> list[Any]:
    count = unpacker.read_array_header()
    if count > MAX_GATE_CHANNELS:
        raise ValueError(f"{count} channels, a gate has at most {MAX_GATE_CHANNELS}")
    return [_channel(unpacker) for _ in range(count)]


def _channel(unpacker: Any) -> list[Any]:
    if unpacker.read_array_header() != 5:
        raise ValueError("a channel has 5 fields")
    return [*(unpacker.unpack() for _ in range(4)), _integers(unpacker)]


_NO_ARRAYS: Final[Mapping[int, _Take]] = {}

_ARRAYS: Final[Mapping[int, Mapping[int, _Take]]] = {
    3: {3: _integers},  # PartitionRequest.map_attempt_ids
    22: {3: _integers},  # BeginRegion.lengths
    30: {5: _channels},  # OpenGate.channels
    36: {3: _integers},  # SharedRegion.lengths
    44: {1: _integers},  # OutputsLost.map_attempt_ids
    48: {1: _integers},  # OutputsHeld.map_attempt_ids
    49: {5: _integers},  # OutputsMoved.map_attempt_ids
    52: {2: _integers},  # CheckOutputs.map_attempt_ids
}
"""The fields that are arrays, by type id and place."""
