"""Serializers of values.

None of them can make the reader run code: there is no pickle on the wire.
"""

import struct
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgpack

from shuffle.records.errors import MalformedElement
from shuffle.records.framing import BytesLike

T = TypeVar("T")

_INT64: Final = struct.Struct(">q")

MsgpackValue: TypeAlias = Any
"""None, bool, int of 64 bits, float, str, bytes, and lists and maps of them."""


class ValueSerializer(Protocol[T]):
    """Turns values into bytes and back.

    Attributes:
        borrows: True if a value may refer to the memory it was deserialized from. Such a value is
            valid until the reader's next call.
    """

    @property
    def borrows(self) -> bool: ...  # noqa: D102

    def serialize(self, value: T) -> BytesLike:
        """Return the value's bytes; nobody may change them afterwards.

        Raises:
            MalformedElement: The value is none of this serializer.
        """

    def deserialize(self, payload: BytesLike) -> T:
        """Return the value of the bytes.

        Raises:
            MalformedElement: They are not the bytes of a value.
        """


class BytesSerializer:
    """Values are bytes; the reader gets copies of its own."""

    borrows = False

    def serialize(self, value: BytesLike) -> BytesLike:
        """Return the value itself."""
        return value

    def deserialize(self, payload: BytesLike) -> bytes:
        """Return the payload, copied unless it is bytes already."""
        return bytes(payload)


class ViewSerializer:
    """Values are views of memory; the reader gets them uncopied, valid until its next call."""

    borrows = True

    def serialize(self, value: BytesLike) -> BytesLike:
        """Return the value itself."""
        return value

    def deserialize(self, payload: BytesLike) -> memoryview:
        """Return a view of the payload."""
        return memoryview(payload)


class StringSerializer:
    """Values are strings, in UTF-8."""

    borrows = False

    def serialize(self, value: str) -> bytes:
        """Return the string in UTF-8."""
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise MalformedElement("Value is no text", value=ascii(value[:40])) from error

    def deserialize(self, payload: BytesLike) -> str:
        """Return the string."""
        try:
            return str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedElement("Record is not UTF-8", value=str(error)) from error


class Int64Serializer:
    """Values are integers of 64 bits, signed, big-endian."""

    borrows = False

    def serialize(self, value: int) -> bytes:
        """Return the 8 bytes."""
        try:
            return _INT64.pack(value)
        except struct.error as error:
            raise MalformedElement("Value is no 64-bit integer", value=value) from error

    def deserialize(self, payload: BytesLike) -> int:
        """Return the integer."""
        try:
            number: int = _INT64.unpack(payload)[0]
        except struct.error as error:
            raise MalformedElement(
                "Record is no 64-bit integer", value=len(payload), limit=_INT64.size
            ) from error
        return number


class MsgpackSerializer:
    """Values are what msgpack knows: None, booleans, numbers, text, bytes, lists and maps.

    Tuples come back as lists. Extension types are refused, in both directions.
    """

    borrows = False

    def serialize(self, value: MsgpackValue) -> bytes:
        """Return the value in msgpack."""
        try:
            packed: bytes = msgpack.packb(value, use_bin_type=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedElement(
                "Value is not made for msgpack", value=type(value).__name__, remedy=str(error)
            ) from error
        return packed

    def deserialize(self, payload: BytesLike) -> MsgpackValue:
        """Return the value."""
        try:
            return msgpack.unpackb(payload, raw=False, strict_map_key=False, ext_hook=_refuse)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            # TypeError: a map with a key that cannot be one, such as a list.
            raise MalformedElement("Record is not msgpack", value=repr(error)) from error


def _refuse(code: int, data: bytes) -> None:
    raise ValueError(f"msgpack extension type {code}")
