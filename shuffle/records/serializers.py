"""Serializers: they turn values into the bytes of records, and back.

A record can never make its reader run code: there is no pickle on the wire.
"""

import importlib
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgpack

from ..errors import MalformedElement
from .framing import BytesLike

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

_INT64: Final = struct.Struct(">q")

MsgpackValue: TypeAlias = Any
"""None, bool, int of 64 bits, float, str, bytes, and lists and maps of them."""


class ValueSerializer(Protocol[T]):
    """Turns values into bytes and back.

    Attributes:
        borrows: Whether a value may refer to the memory that it was deserialized from. Such a value
            is valid until the reader's next call.
    """

    @property
    def borrows(self) -> bool: ...  # noqa: D102

    def serialize(self, value: T) -> BytesLike:
        """Return the value's bytes, which must not change afterwards.

        Raises:
            MalformedElement: The value is of a type that this serializer cannot encode.
        """

    def deserialize(self, payload: BytesLike) -> T:
        """Return the value of the bytes.

        Raises:
            MalformedElement: The bytes cannot be decoded.
        """


@runtime_checkable
class BatchSerializer(Protocol[T]):
    """A serializer that turns the values of a batch at a fraction of the cost of one by one.

    A :class:`ValueSerializer` may have these methods too; batches use them then.
    """

    def serialize_many(self, values: Sequence[T]) -> Sequence[BytesLike]:
        """Return the bytes of each value, as ``serialize`` does, in a list or a tuple."""

    def deserialize_many(self, payloads: list[BytesLike]) -> list[T]:
        """Return the value of each payload, as ``deserialize`` does.

        Args:
            payloads: The caller no longer needs the list. All but the first are bytes, unless the
                serializer ``borrows``.
        """


def serializing_many(
    serializer: ValueSerializer[T],
) -> Callable[[Sequence[T]], Sequence[BytesLike]]:
    """Return the function that serializes batches: the serializer's own, or one by one."""
    if isinstance(serializer, BatchSerializer):
        return serializer.serialize_many
    one = serializer.serialize
    return lambda values: list(map(one, values))


def deserializing_many(serializer: ValueSerializer[T]) -> Callable[[list[BytesLike]], list[T]]:
    """Return the function that deserializes batches: the serializer's own, or one by one."""
    if isinstance(serializer, BatchSerializer):
        return serializer.deserialize_many
    one = serializer.deserialize
    return lambda payloads: list(map(one, payloads))


class BytesSerializer:
    """Passes bytes through; the reader gets copies of its own."""

    borrows = False

    def serialize_many(self, values: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """Return the values themselves."""
        return values if isinstance(values, list | tuple) else list(values)

    def deserialize_many(self, payloads: list[BytesLike]) -> list[bytes]:
        """Return the payloads, of which only the first may need a copy."""
        if payloads:
            payloads[0] = bytes(payloads[0])
        return payloads  # type: ignore[return-value]

    def serialize(self, value: BytesLike) -> BytesLike:
        """Return the value itself."""
        return value

    def deserialize(self, payload: BytesLike) -> bytes:
        """Return the payload, copied unless it is bytes already."""
        return bytes(payload)


class ViewSerializer:
    """Passes views of memory through; the reader's are uncopied, valid until its next call."""

    borrows = True

    def serialize(self, value: BytesLike) -> BytesLike:
        """Return the value itself."""
        return value

    def deserialize(self, payload: BytesLike) -> memoryview:
        """Return a view of the payload."""
        return memoryview(payload)


class StringSerializer:
    """Encodes strings, in UTF-8."""

    borrows = False

    def serialize(self, value: str) -> bytes:
        """Return the string in UTF-8."""
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise MalformedElement(
                "A string cannot be encoded in UTF-8", value=ascii(value[:40]), remedy=str(error)
            ) from error

    def deserialize(self, payload: BytesLike) -> str:
        """Return the string."""
        try:
            return str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedElement("A record is not UTF-8", value=str(error)) from error


class Int64Serializer:
    """Encodes signed integers of 64 bits, big-endian."""

    borrows = False

    def serialize(self, value: int) -> bytes:
        """Return the 8 bytes."""
        try:
            return _INT64.pack(value)
        except struct.error as error:
            raise MalformedElement("A value is not a 64-bit integer", value=value) from error

    def deserialize(self, payload: BytesLike) -> int:
        """Return the integer."""
        try:
            number: int = _INT64.unpack(payload)[0]
        except struct.error as error:
            raise MalformedElement(
                "A record has the wrong length for a 64-bit integer",
                value=len(payload),
                limit=_INT64.size,
            ) from error
        return number


class MsgpackSerializer:
    """Encodes the types of msgpack: None, booleans, numbers, text, bytes, lists and maps.

    Tuples come back as lists. Extension types are refused, in both directions.
    """

    borrows = False

    def serialize(self, value: MsgpackValue) -> bytes:
        """Return the value in msgpack."""
        try:
            packed: bytes = msgpack.packb(value, use_bin_type=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedElement(
                "A value cannot be encoded in msgpack",
                value=type(value).__name__,
                remedy=str(error),
            ) from error
        return packed

    def deserialize(self, payload: BytesLike) -> MsgpackValue:
        """Return the value."""
        try:
            return msgpack.unpackb(payload, raw=False, strict_map_key=False, ext_hook=_refuse)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            # TypeError: a key of a map that cannot be one in Python, such as a list.
            raise MalformedElement("A record is not msgpack", value=repr(error)) from error


def _refuse(code: int, data: bytes) -> None:
    raise ValueError(f"msgpack extension type {code} is refused")


class ArrowSerializer:
    """Encodes ``pyarrow.RecordBatch``, in Arrow's IPC stream format: a batch is a record.

    Each batch carries its schema, so batches may differ. The reader's batch owns its memory. A
    batch that spanned buffers, as nearly all do, was gathered in memory of its own and is not
    copied again. Needs pyarrow, which is imported when a serializer is made.

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
            raise MalformedElement(
                "A value is not an Arrow record batch",
                value=type(value).__name__,
                remedy="Emit pyarrow.RecordBatch; a Table has to_batches()",
            )
        sink = self._arrow.BufferOutputStream()
        with self._ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return memoryview(sink.getvalue())

    def deserialize(self, payload: BytesLike) -> "pyarrow.RecordBatch":
        """Return the batch.

        Raises:
            MalformedElement: The bytes are not an IPC stream with exactly one batch.
        """
        if isinstance(payload, memoryview):  # borrowed: the batch would outlive it
            payload = bytes(payload)
        try:
            with self._ipc.open_stream(self._arrow.py_buffer(payload)) as reader:
                batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
        except (self._arrow.ArrowException, OSError, EOFError) as error:
            raise MalformedElement(
                "A record is not an Arrow IPC stream", value=str(error)
            ) from error
        if len(batches) != 1:
            raise MalformedElement(
                "A record has not exactly 1 Arrow batch", value=len(batches), limit=1
            )
        return batches[0]
