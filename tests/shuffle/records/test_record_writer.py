"""The record writer while the partition has buffers: their contents and their order."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode, InvalidEvent
from sluice.protocol.events import CheckpointBarrier, CustomEvent, EndOfData, decode_event
from sluice.protocol.schema import BLOCKING_EVENT, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    MalformedElement,
    PartitionReleased,
    RecordTooLarge,
    WriterUnusable,
)
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.partition.shared_buffer import BufferBuilder
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.selectors import BroadcastSelector, FunctionSelector, HashSelector
from sluice.shuffle.records.serializers import BytesSerializer, StringSerializer
from sluice.shuffle.records.spanning_deserializer import SpanningRecordDeserializer
from tests.support.fake_partition import FakeEvent, FakePartition
from tests.support.raises_code import raises_code


def frame(record: bytes) -> bytes:
    return struct.pack(">I", len(record)) + record


def writer_of(partition: FakePartition, **options) -> RecordWriter:
    return RecordWriter(partition, BytesSerializer(), **options)


def records_of(stream: bytes) -> list[bytes]:
    deserializer = SpanningRecordDeserializer()
    deserializer.set_next_buffer(stream)
    records = [bytes(record) for record in deserializer.take_records(True)]
    deserializer.end()
    return records


def test_round_robin_is_the_default():
    partition = FakePartition(3)
    writer = writer_of(partition)
    for number in range(7):
        assert writer.emit(b"%d" % number) is None
    assert [records_of(partition.stream(index)) for index in range(3)] == [
        [b"0", b"3", b"6"],
        [b"1", b"4"],
        [b"2", b"5"],
    ]


@pytest.mark.parametrize("batch", [False, True])
def test_a_record_that_ends_with_its_segment_needs_no_further_segment(batch):
    partition = FakePartition(segment_bytes=16, buffers=1)
    writer = writer_of(partition)
    # 8 and 8 bytes with their lengths; then 16; then 4 and 12.
    for records in ((bytes(4), bytes(4)), (bytes(12),), (b"", bytes(8))):
        for record in records:
            assert (writer.emit_batch([record]) if batch else writer.emit(record)) is None
        assert [len(part) for part in partition.read()] == [16]
        assert partition.free == 1, "the full buffer was complete and came back"


def test_a_full_buffer_is_complete_when_it_is_added():
    class Partition(FakePartition):
        def add_consumer(self, consumer, subpartition):
            added.append(consumer.is_finished)
            super().add_consumer(consumer, subpartition)

    added: list[bool] = []
    writer_of(Partition(segment_bytes=8)).emit(bytes(15))
    assert added == [True, True, False]


@pytest.mark.parametrize("data_type", [EVENT, BLOCKING_EVENT, PRIORITY_EVENT])
def test_an_event_in_the_middle_of_a_buffer(data_type):
    partition = FakePartition(3)
    writer = writer_of(partition)
    writer.emit_to(b"a", 0)
    writer.emit_to(b"b", 1)
    barrier = CheckpointBarrier(1, 2, False)
    writer.broadcast_event(barrier, data_type)
    writer.emit_to(b"c", 0)
    event = partition.read(2)[0]
    assert isinstance(event, FakeEvent)
    assert (decode_event(event.payload), event.data_type) == (barrier, data_type)
    assert partition.read(0) == [frame(b"a"), event, frame(b"c")]
    assert partition.read(1) == [frame(b"b"), event]


def test_an_event_in_the_middle_of_a_broadcast_buffer():
    partition = FakePartition(2)
    writer = writer_of(partition)
    writer.broadcast_emit(b"a")
    writer.emit_event(EndOfData(), 1)
    writer.broadcast_emit(b"b")
    assert [part for part in partition.read(0)] == [frame(b"a"), frame(b"b")]
    first, event, second = partition.read(1)
    assert isinstance(event, FakeEvent)
    assert (first, second) == (frame(b"a"), frame(b"b"))
    assert decode_event(event.payload) == EndOfData()


def test_broadcast_is_stored_once():
    partition = FakePartition(4, segment_bytes=16)
    writer = writer_of(partition, selector=BroadcastSelector())
    for number in range(10):
        writer.emit(b"%d" % number)
    writer.emit_batch([b"x", b"y"])
    assert partition.taken == 4  # 12 records of 5 bytes in segments of 16
    streams = {partition.stream(index) for index in range(4)}
    (stream,) = streams
    assert records_of(stream) == [*(b"%d" % number for number in range(10)), b"x", b"y"]
    # All but the open one are back.
    assert partition.free == (1 << 30) - 1


ROUTE = st.integers(ALL_SUBPARTITIONS, 2)
EMITTED = st.lists(st.tuples(ROUTE, st.binary(max_size=40) | st.none()), max_size=30)


@given(EMITTED, st.integers(1, 40), st.sampled_from(["single", "batches", "one batch"]))
def test_unicast_broadcast_and_events_keep_their_order(emitted, segment_bytes, mode):
    """A record of None stands for an event."""
    partition = FakePartition(3, segment_bytes)
    writer = writer_of(partition)
    expected: list[list[bytes]] = [[], [], []]
    batch: list[tuple[int, bytes]] = []

    def write_batch():
        records = [record for _, record in batch]
        writer.emit_batch(records, [subpartition for subpartition, _ in batch])
        batch.clear()

    for number, (subpartition, record) in enumerate(emitted):
        if record is None:
            write_batch()
            writer.emit_event(CustomEvent("", b"%d" % number), subpartition)
        elif mode == "single":
            writer.emit_to(record, subpartition)
        else:
            batch.append((subpartition, record))
            if mode == "batches" and number % 3:
                write_batch()
        for index in range(3):
            if subpartition in (index, ALL_SUBPARTITIONS):
                expected[index].append(b"event %d" % number if record is None else record)
    write_batch()

    for index in range(3):
        deserializer = SpanningRecordDeserializer()
        found = []
        for part in partition.read(index):
            if isinstance(part, FakeEvent):
                deserializer.end()  # an event is never in the middle of a record
                event = decode_event(part.payload)
                assert isinstance(event, CustomEvent)
                found.append(b"event " + event.payload)
            else:
                deserializer.set_next_buffer(part)
                found += map(bytes, deserializer.take_records(True))
        deserializer.end()
        assert found == expected[index]


def open_builder(writer: RecordWriter, subpartition: int = 0) -> BufferBuilder:
    builder = writer._buffers.builders[subpartition]
    assert builder is not None
    return builder


def test_a_builder_that_the_partition_has_finished_is_not_written():
    """A partition finishes a builder when an event is added behind it."""
    partition = FakePartition()
    writer = writer_of(partition)
    writer.emit(b"a")
    open_builder(writer).finish()
    writer.emit(b"b")
    open_builder(writer).finish()
    writer.emit_batch([b"c", b"d"])
    assert partition.read() == [frame(b"a"), frame(b"b"), frame(b"c") + frame(b"d")]


# ---- flushing


@pytest.mark.parametrize(
    ("timeout", "flushed"), [(0, [1, 0, -1, 0, 1, -1, -1, -1]), (0.1, []), (-1, [])]
)
def test_a_buffer_timeout_of_zero_flushes_each_call(timeout, flushed):
    partition = FakePartition(2, segment_bytes=32)
    writer = writer_of(partition, buffer_timeout_seconds=timeout)
    writer.emit_to(b"a", 1)
    writer.emit_to(bytes(100), 0)
    writer.broadcast_emit(b"b")
    writer.emit_batch([b"c", b"d", b"e"], [0, 1, 0])
    writer.emit_batch([b"f", b"g"], ALL_SUBPARTITIONS)
    writer.broadcast_emit(b"h")  # into the open buffer
    writer.broadcast_event(EndOfData())
    assert partition.flushed == flushed


def test_flush_and_flush_all_reach_the_partition():
    partition = FakePartition(2)
    writer = writer_of(partition)
    writer.flush(1)
    writer.flush_all()
    assert partition.flushed == [1, ALL_SUBPARTITIONS]


# ---- batches


@given(st.lists(st.binary(max_size=30), max_size=40), st.integers(1, 100), st.integers(1, 5))
def test_a_batch_by_hash_is_written_as_its_records_singly(
    records, segment_bytes, num_subpartitions
):
    singly, at_once = (FakePartition(num_subpartitions, segment_bytes) for _ in range(2))
    writer = writer_of(singly, selector=HashSelector())
    for record in records:
        writer.emit(record)
    writer_of(at_once, selector=HashSelector()).emit_batch(records)
    for index in range(num_subpartitions):
        assert at_once.read(index) == singly.read(index)


def test_random_emit_reaches_every_subpartition():
    partition = FakePartition(3)
    writer = writer_of(partition, generator=random.Random(5))
    for _ in range(30):
        writer.random_emit(b"")
    counts = [len(partition.stream(index)) // 4 for index in range(3)]
    assert sum(counts) == 30
    assert min(counts) > 0


# ---- refusals


@pytest.mark.parametrize("subpartition", [-2, 3, 1 << 40])
def test_a_subpartition_that_does_not_exist_is_refused(subpartition):
    partition = FakePartition(3)
    writer = writer_of(partition, selector=FunctionSelector(lambda *_: subpartition))
    for call in (
        lambda: writer.emit(b""),
        lambda: writer.emit_to(b"", subpartition),
        lambda: writer.emit_batch([b"", b""]),
        lambda: writer.emit_batch([b"", b""], [0, subpartition]),
        lambda: writer.emit_event(EndOfData(), subpartition),
    ):
        with raises_code(ErrorCode.CONFIGURATION, "subpartition that does not exist"):
            call()
    assert writer.emit_to(b"a", 2) is None
    assert [partition.stream(index) for index in range(3)] == [b"", b"", frame(b"a")]


def test_a_refused_record_leaves_nothing_behind():
    partition = FakePartition(segment_bytes=1000)
    writer = RecordWriter(partition, StringSerializer(), maximum_record_bytes=10)
    writer.emit("a" * 10)
    for call in (
        lambda: writer.emit("a" * 11),
        lambda: writer.emit_batch(["b", "a" * 11]),
    ):
        with pytest.raises(RecordTooLarge):
            call()
    for call in (lambda: writer.emit("\ud800"), lambda: writer.emit_batch(["b", "\ud800"])):
        with pytest.raises(MalformedElement):
            call()
    writer.emit("c")
    assert records_of(partition.stream()) == [b"a" * 10, b"c"]


def test_an_event_that_is_too_long_finishes_no_buffer():
    partition = FakePartition()
    writer = writer_of(partition)
    writer.emit(b"a")
    with pytest.raises(InvalidEvent):
        writer.broadcast_event(CustomEvent("", bytes(2000)))
    writer.emit(b"b")
    assert partition.taken == 1


async def test_finish_ends_the_partition():
    partition = FakePartition(2, buffers=2)
    writer = writer_of(partition)
    writer.emit(b"a")
    writer.emit(b"b")
    assert not writer.is_available
    await writer.finish()
    assert partition.finished
    assert [partition.stream(index) for index in range(2)] == [frame(b"a"), frame(b"b")]
    assert partition.free == 2
    for call in (
        lambda: writer.emit(b""),
        lambda: writer.emit_batch([b""]),
        lambda: writer.broadcast_event(EndOfData()),
    ):
        with pytest.raises(WriterUnusable, match="finished"):
            call()
    with pytest.raises(WriterUnusable):
        await writer.finish()


async def test_fail_ends_the_partition_with_its_error():
    partition = FakePartition(2, buffers=2)
    writer = writer_of(partition)
    writer.emit(b"a")
    error = PartitionReleased("task was cancelled")
    writer.fail(error)
    writer.fail(PartitionReleased("later"))
    assert partition.failures[0] is error
    with pytest.raises(WriterUnusable, match="task was cancelled"):
        writer.emit(b"")
    partition.read()
    assert partition.free == 2


def test_the_partitions_failure_before_a_record_leaves_the_writer_as_it_was():
    partition = FakePartition()
    writer = writer_of(partition)
    partition.refuse_with = PartitionReleased("gone")
    for _ in range(2):
        with pytest.raises(PartitionReleased):
            writer.emit(b"a")
    assert partition.failures == []


def test_the_partitions_failure_in_a_record_fails_the_writer():
    partition = FakePartition(segment_bytes=8, buffers=3)
    writer = writer_of(partition)
    writer.emit(b"a")
    partition.refuse_with = PartitionReleased("gone")
    with pytest.raises(PartitionReleased):
        writer.emit(bytes(20))
    with pytest.raises(WriterUnusable, match="gone"):
        writer.emit(b"b")
    partition.read()
    assert partition.free == 3
