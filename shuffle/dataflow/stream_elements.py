"""Stream elements: the kinds of records that flow between tasks, each with a tag byte.

====  =====================  ==================================================================
tag   element                after the tag (big-endian)
====  =====================  ==================================================================
0     record with timestamp  timestamp, signed 64 bits; then the value
1     record                 the value
2     watermark              timestamp, signed 64 bits
3     latency marker         marked time, signed 64 bits; operator id, 16 bytes; subtask, 32 bits
4     stream status          one byte: 0 active, 1 idle
====  =====================  ==================================================================

Times are milliseconds since 1970. The value is opaque here. Events (barriers, the end of a
partition) are not stream elements: they travel as buffers of their own
(``sluice.protocol.events``).
"""

import enum
import struct
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from ..errors import MalformedElement
from ..records.framing import BytesLike
from ..records.serializers import ValueSerializer

T = TypeVar("T")

RECORD_WITH_TIMESTAMP: Final = 0
RECORD: Final = 1
WATERMARK: Final = 2
LATENCY_MARKER: Final = 3
STREAM_STATUS: Final = 4

OPERATOR_ID_BYTES: Final = 16

_TIME: Final = struct.Struct(">Bq")
_MARKER: Final = struct.Struct(f">Bq{OPERATOR_ID_BYTES}sI")
_STATUS: Final = struct.Struct(">BB")
_RECORD_TAG: Final = bytes([RECORD])


class StreamRecord(NamedTuple, Generic[T]):
    """A value of the user, with or without its event time."""

    value: T
    timestamp_ms: int | None = None


class Watermark(NamedTuple):
    """Promises that no record with an earlier timestamp follows."""

    timestamp_ms: int


class LatencyMarker(NamedTuple):
    """Measures how long elements are under way, by the time at which the source made it.

    Attributes:
        marked_time_ms: Time at which the source made the marker.
        operator_id: Identifier of the source operator, ``OPERATOR_ID_BYTES`` long.
        subtask_index: Index of the source's subtask.
    """

    marked_time_ms: int
    operator_id: bytes
    subtask_index: int


class StreamStatus(enum.IntEnum):
    """Whether a stream counts for the watermarks of the operators behind it."""

    ACTIVE = 0
    IDLE = 1


StreamElement: TypeAlias = StreamRecord[T] | Watermark | LatencyMarker | StreamStatus


class StreamElementSerializer(Generic[T]):
    """Encodes stream elements: the tag, then the value as another serializer encodes it.

    Args:
        values: Serializer of the records' values.
    """

    def __init__(self, values: ValueSerializer[T]) -> None:
        self._values = values
        self.borrows = values.borrows

    def serialize(self, value: "StreamElement[T]") -> BytesLike:
        """Return the element's bytes.

        Raises:
            MalformedElement: A time or an index is out of range, or an operator id is not
                ``OPERATOR_ID_BYTES`` long.
        """
        try:
            if isinstance(value, StreamRecord):
                content = self._values.serialize(value.value)
                if value.timestamp_ms is None:
                    return b"".join((_RECORD_TAG, content))
                head = _TIME.pack(RECORD_WITH_TIMESTAMP, value.timestamp_ms)
                return b"".join((head, content))
            if isinstance(value, Watermark):
                return _TIME.pack(WATERMARK, value.timestamp_ms)
            if isinstance(value, LatencyMarker):
                if len(value.operator_id) != OPERATOR_ID_BYTES:  # struct would pad or cut it
                    raise MalformedElement(
                        "The operator id of a latency marker has the wrong length",
                        value=len(value.operator_id),
                        limit=OPERATOR_ID_BYTES,
                    )
                return _MARKER.pack(LATENCY_MARKER, *value)
            return _STATUS.pack(STREAM_STATUS, value)
        except struct.error as error:
            raise MalformedElement(
                "A number of a stream element is out of range", value=value, remedy=str(error)
            ) from error

    def deserialize(self, payload: BytesLike) -> "StreamElement[T]":
        """Return the element of the bytes.

        Raises:
            MalformedElement: The tag is unknown or the length wrong, or the value serializer raised
                it.
        """
        if not payload:
            raise MalformedElement("A stream element is empty: it has no tag", value=0, limit=1)
        tag = payload[0]
        if tag == RECORD:
            return StreamRecord(self._values.deserialize(payload[1:]))
        if tag == RECORD_WITH_TIMESTAMP:
            if len(payload) < _TIME.size:
                raise _wrong_length(tag, payload, _TIME.size)
            timestamp_ms = _TIME.unpack_from(payload)[1]
            return StreamRecord(self._values.deserialize(payload[_TIME.size :]), timestamp_ms)
        try:
            if tag == WATERMARK:
                return Watermark(_TIME.unpack(payload)[1])
            if tag == LATENCY_MARKER:
                return LatencyMarker(*_MARKER.unpack(payload)[1:])
            if tag == STREAM_STATUS:
                return StreamStatus(_STATUS.unpack(payload)[1])
        except struct.error as error:
            raise _wrong_length(tag, payload, _LENGTHS[tag]) from error
        except ValueError as error:
            raise MalformedElement(
                "The stream status is unknown", value=payload[1], limit=1
            ) from error
        raise MalformedElement(
            "The tag of a stream element is unknown", value=tag, limit=STREAM_STATUS
        )


_LENGTHS: Final = {
    WATERMARK: _TIME.size,
    LATENCY_MARKER: _MARKER.size,
    STREAM_STATUS: _STATUS.size,
}


def _wrong_length(tag: int, payload: BytesLike, expected_bytes: int) -> MalformedElement:
    return MalformedElement(
        f"A stream element with tag {tag} has the wrong length",
        value=len(payload),
        limit=expected_bytes,
    )
