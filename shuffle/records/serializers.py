"""Serializers of values.

None of them can make the reader run code: there is no pickle on the wire.

Arrow record batches as records: one batch is one record, in Arrow's IPC stream format.

Needs pyarrow, which nothing else of a TaskManager does; it is imported at the first use.
"""

import importlib
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import msgpack

from sluice.shuffle.errors import MalformedElement
from sluice.shuffle.records.framing import BytesLike

if TYPE_CHECKING:
    import pyarrow


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


class ArrowSerializer:
    """Values are ``pyarrow.RecordBatch``; each carries its schema, so batches may differ.

    The reader's batch owns its memory. A batch that spanned buffers (one of any use does) has been
    put together in memory of its own already and is not copied again.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """

    borrows = False

    def __init__(self) -> None:
        self._arrow: Any = importlib.import_module("pyarrow")
        self._ipc: Any = importlib.import_module("pyarrow.ipc")

    def serialize(self, value: "pyarrow.RecordBatch") -> memoryview:
        """Return the batch in the IPC stream format."""
        if not isinstance(value, self._arrow.RecordBatch):
            raise MalformedElement("Value is no Arrow record batch", value=type(value).__name__)
        sink = self._arrow.BufferOutputStream()
        with self._ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return memoryview(sink.getvalue())

    def deserialize(self, payload: BytesLike) -> "pyarrow.RecordBatch":
        """Return the batch.

        Raises:
            MalformedElement: Not an IPC stream with exactly one batch.
        """
        if isinstance(payload, memoryview):  # borrowed: the batch would outlive it
            payload = bytes(payload)
        try:
            with self._ipc.open_stream(self._arrow.py_buffer(payload)) as reader:
                batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
        except (self._arrow.ArrowException, OSError, EOFError) as error:
            raise MalformedElement("Record is no Arrow IPC stream", value=str(error)) from error
        if len(batches) != 1:
            raise MalformedElement("Record is no single Arrow batch", value=len(batches), limit=1)
        return batches[0]
