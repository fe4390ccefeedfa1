"""The spanning serializer: cuts records into buffers.

The caller owns the loop: it takes a buffer, has :meth:`SpanningRecordSerializer.copy_to` fill it,
and acts on the result. A record that ends exactly where its segment ends needs no further segment.
"""

from typing import TYPE_CHECKING, Final

from ..errors import MalformedElement, RecordTooLarge
from .framing import (
    DEFAULT_MAXIMUM_RECORD_BYTES,
    LENGTH,
    BytesLike,
    SerializationResult,
)

if TYPE_CHECKING:
    from ..partition.shared_buffer import BufferBuilder

_JOINED_BYTES: Final = 64 << 10
"""Up to this length prefix and record are copied into one piece: one append instead of two."""


_PARTIAL: Final = SerializationResult.PARTIAL_RECORD_MEMORY_SEGMENT_FULL
_FULL_BOTH: Final = SerializationResult.FULL_RECORD_MEMORY_SEGMENT_FULL
_FULL: Final = SerializationResult.FULL_RECORD


class SpanningRecordSerializer:
    """Frames a record or a batch of records, and copies it into one buffer after the other.

    Args:
        maximum_record_bytes: Longer records are refused.
    """

    __slots__ = ("_data", "_maximum", "_position", "_tail")

    def __init__(self, maximum_record_bytes: int = DEFAULT_MAXIMUM_RECORD_BYTES) -> None:
        self._maximum = maximum_record_bytes
        self._data = memoryview(b"")
        self._tail: memoryview | None = None  # follows _data: the bytes of a long record
        self._position = 0  # in _data and _tail together

    def set_record(self, payload: BytesLike) -> None:
        """Begin with a record. The rest of the previous one is dropped.

        Args:
            payload: The record's bytes; not to be changed until they are all copied.

        Raises:
            RecordTooLarge: The record is longer than the limit.
        """
        view = flat(payload)
        if len(view) > self._maximum:
            raise RecordTooLarge(len(view), self._maximum)
        prefix = LENGTH.pack(len(view))
        if len(view) <= _JOINED_BYTES:
            self._data, self._tail = memoryview(prefix + view), None
        else:
            self._data, self._tail = memoryview(prefix), view
        self._position = 0

    def set_frames(self, frames: bytes) -> None:
        """Begin with a batch of records that :func:`join_frames` has made."""
        self._data, self._tail = memoryview(frames), None
        self._position = 0

    def clear(self) -> None:
        """Drop the record."""
        self._data, self._tail = memoryview(b""), None
        self._position = 0

    @property
    def copied_bytes(self) -> int:
        """Bytes of the record or batch that are in buffers."""
        return self._position

    @property
    def remaining_bytes(self) -> int:
        """Bytes of the record or batch that are still to be copied."""
        tail = self._tail
        return len(self._data) + (0 if tail is None else len(tail)) - self._position

    def copy_to(self, builder: "BufferBuilder") -> SerializationResult:
        """Fill a buffer with the next bytes, and commit them.

        Args:
            builder: A buffer that is not full.
        """
        data = self._data
        tail = self._tail
        head_bytes = len(data)
        position = self._position
        if position < head_bytes:
            position += builder.append(data[position:] if position else data)
        total_bytes = head_bytes
        if tail is not None:
            total_bytes += len(tail)
            if position >= head_bytes:
                position += builder.append(tail[position - head_bytes :])
        builder.commit()
        self._position = position
        if position < total_bytes:
            return _PARTIAL
        if builder.is_full:
            return _FULL_BOTH
        return _FULL


def flat(payload: BytesLike) -> memoryview:
    """Return a view of unsigned bytes, the only kind that can be copied into a segment.

    Raises:
        MalformedElement: The memory has gaps.
    """
    view = memoryview(payload)
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    try:
        return view.cast("B")
    except TypeError as error:
        raise MalformedElement(
            "The memory of a record is not contiguous",
            value=str(error),
            remedy="Serialize to bytes, or to a contiguous view",
        ) from error
