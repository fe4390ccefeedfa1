"""The spanning serializer: results, and the contents of the buffers."""

import array
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.errors import MalformedElement, RecordTooLarge
from sluice.shuffle.partition.shared_buffer import BufferBuilder
from sluice.shuffle.records.framing import SerializationResult, join_frames
from sluice.shuffle.records.spanning_serializer import SpanningRecordSerializer
from tests.support.fake_partition import FakePartition

PARTIAL = SerializationResult.PARTIAL_RECORD_MEMORY_SEGMENT_FULL
FULL_BOTH = SerializationResult.FULL_RECORD_MEMORY_SEGMENT_FULL
FULL = SerializationResult.FULL_RECORD


def builder_of(size_bytes: int) -> BufferBuilder:
    builder = FakePartition(segment_bytes=size_bytes).request_builder(0)
    assert builder is not None
    return builder


def content(builder: BufferBuilder) -> bytes:
    consumer = builder.create_consumer()
    builder.finish()
    piece = consumer.build_last()
    found = bytes(piece.payload)
    piece.recycle()
    return found


@pytest.mark.parametrize(
    ("record_bytes", "segment_bytes", "results"),
    [
        (0, 4, [FULL_BOTH]),
        (0, 5, [FULL]),
        (0, 3, [PARTIAL, FULL]),
        (0, 1, [PARTIAL, PARTIAL, PARTIAL, FULL_BOTH]),
        (4, 8, [FULL_BOTH]),
        (4, 9, [FULL]),
        (4, 7, [PARTIAL, FULL]),
        (12, 8, [PARTIAL, FULL_BOTH]),
        (13, 8, [PARTIAL, PARTIAL, FULL]),
        (100_000, 50_002, [PARTIAL, FULL_BOTH]),  # prefix and record are two pieces
        (100_000, 50_003, [PARTIAL, FULL]),
        (65_537, 4, [PARTIAL] * 16_385 + [FULL]),
    ],
)
def test_the_result_of_each_copy(record_bytes, segment_bytes, results):
    record = bytes(index % 251 for index in range(record_bytes))
    serializer = SpanningRecordSerializer()
    serializer.set_record(record)
    found: list[SerializationResult] = []
    stream = b""
    while not found or not found[-1].is_full_record:
        assert serializer.remaining_bytes == 4 + record_bytes - len(stream)
        assert serializer.copied_bytes == len(stream)
        builder = builder_of(segment_bytes)
        found.append(serializer.copy_to(builder))
        assert found[-1].is_full_buffer is builder.is_full
        stream += content(builder)
    assert found == results
    assert stream == struct.pack(">I", record_bytes) + record
    assert serializer.remaining_bytes == 0


@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 40))
def test_a_batch_is_its_records_one_after_the_other(records, segment_bytes):
    serializer = SpanningRecordSerializer()
    serializer.set_frames(join_frames(records, 20))
    stream = b""
    while True:
        builder = builder_of(segment_bytes)
        result = serializer.copy_to(builder)
        stream += content(builder)
        if result.is_full_record:
            break
    assert stream == b"".join(struct.pack(">I", len(record)) + record for record in records)


def test_a_record_above_the_limit_is_refused():
    serializer = SpanningRecordSerializer(maximum_record_bytes=10)
    serializer.set_record(bytes(10))
    with pytest.raises(RecordTooLarge, match="value 11, limit 10"):
        serializer.set_record(bytes(11))
    with pytest.raises(RecordTooLarge):
        join_frames([b"", bytes(11), b""], 10)


def test_memory_of_wider_items_is_taken_as_bytes():
    numbers = array.array("I", [1, 2])
    serializer = SpanningRecordSerializer()
    serializer.set_record(memoryview(numbers))
    builder = builder_of(20)
    serializer.copy_to(builder)
    assert content(builder) == b"\0\0\0\x08" + numbers.tobytes()
    with pytest.raises(MalformedElement, match="contiguous"):
        serializer.set_record(memoryview(b"abcdef")[::2])


def test_a_batch_of_wider_items_is_refused_rather_than_framed_wrongly():
    with pytest.raises(MalformedElement, match="single bytes"):
        join_frames([b"a", memoryview(array.array("I", [1, 2]))], 20)


def test_a_cleared_record_is_forgotten():
    serializer = SpanningRecordSerializer()
    serializer.set_record(bytes(100_000))
    serializer.copy_to(builder_of(10))
    serializer.clear()
    assert (serializer.copied_bytes, serializer.remaining_bytes) == (0, 0)
