"""Stream elements: their tags and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.dataflow.stream_elements import (
    LatencyMarker,
    StreamElementSerializer,
    StreamRecord,
    StreamStatus,
    Watermark,
)
from sluice.shuffle.errors import MalformedElement
from sluice.shuffle.records.serializers import BytesSerializer, StringSerializer, ViewSerializer

MIN_I64, MAX_I64 = -(1 << 63), (1 << 63) - 1
ELEMENTS = StreamElementSerializer(BytesSerializer())
TIMES = st.integers(MIN_I64, MAX_I64)
ANY_ELEMENT = st.one_of(
    st.builds(StreamRecord, st.binary(max_size=50), st.none() | TIMES),
    st.builds(Watermark, TIMES),
    st.builds(
        LatencyMarker, TIMES, st.binary(min_size=16, max_size=16), st.integers(0, (1 << 32) - 1)
    ),
    st.sampled_from(StreamStatus),
)


@given(ANY_ELEMENT, st.sampled_from([bytes, bytearray, memoryview]))
def test_round_trip_from_any_kind_of_memory(element, memory):
    decoded = ELEMENTS.deserialize(memory(ELEMENTS.serialize(element)))
    assert decoded == element
    assert type(decoded) is type(element)


@pytest.mark.parametrize(
    ("element", "encoded"),
    [
        (StreamRecord(b"ab", 258), "00 0000000000000102 6162"),
        (StreamRecord(b"ab"), "01 6162"),
        (StreamRecord(b""), "01"),
        (Watermark(-1), "02 ffffffffffffffff"),
        (LatencyMarker(1, b"0123456789abcdef", 7),
         "03 0000000000000001 30313233343536373839616263646566 00000007"),
        (StreamStatus.ACTIVE, "0400"),
        (StreamStatus.IDLE, "0401"),
    ],
)  # fmt: skip
def test_the_bytes_of_each_element(element, encoded):
    assert ELEMENTS.serialize(element) == bytes.fromhex(encoded)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "has no tag"),
        (b"\x05", "tag .* is unknown"),
        (b"\xff123", "tag .* is unknown"),
        (b"\x00" + bytes(7), "tag 0 has the wrong length"),
        (b"\x02" + bytes(7), "tag 2 has the wrong length"),
        (b"\x02" + bytes(9), "tag 2 has the wrong length"),
        (b"\x03" + bytes(27), "tag 3 has the wrong length"),
        (b"\x04", "tag 4 has the wrong length"),
        (b"\x04\x00\x00", "tag 4 has the wrong length"),
        (b"\x04\x02", "stream status is unknown"),
    ],
)
def test_bytes_that_are_not_an_element_are_refused(payload, message):
    with pytest.raises(MalformedElement, match=message):
        ELEMENTS.deserialize(payload)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_an_element_or_a_typed_error(payload):
    try:
        element = ELEMENTS.deserialize(payload)
    except MalformedElement:
        return
    assert ELEMENTS.serialize(element) == payload


@pytest.mark.parametrize(
    "element",
    [
        StreamRecord(b"", MAX_I64 + 1),
        Watermark(MIN_I64 - 1),
        LatencyMarker(0, bytes(15), 0),
        LatencyMarker(0, bytes(17), 0),
        LatencyMarker(0, bytes(16), -1),
    ],
)
def test_numbers_out_of_range_are_refused_when_written(element):
    with pytest.raises(MalformedElement):
        ELEMENTS.serialize(element)


def test_the_inner_serializer_encodes_the_values():
    strings = StreamElementSerializer(StringSerializer())
    assert strings.deserialize(strings.serialize(StreamRecord("ä", 1))) == StreamRecord("ä", 1)
    assert not strings.borrows
    assert StreamElementSerializer(ViewSerializer()).borrows
