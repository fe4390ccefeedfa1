"""Outputs between chained operators."""

import copy
import struct

import pytest

from sluice.shuffle.dataflow.operator_outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingChainingOutput,
    CountingOutput,
    OutputTag,
    RecordWriterOutput,
)
from sluice.shuffle.dataflow.stream_elements import (
    LatencyMarker,
    StreamElement,
    StreamElementSerializer,
    StreamRecord,
    StreamStatus,
    Watermark,
)
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.selectors import RoundRobinSelector
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.shuffle.records.spanning_deserializer import SpanningRecordDeserializer
from tests.support.fake_partition import FakePartition

LATE = OutputTag("late")
MARKER = LatencyMarker(1, bytes(16), 2)


class Operator:
    """Keeps the elements it gets; waits if a test wants it to."""

    def __init__(self, log: list | None = None, name: str = "") -> None:
        self.got: list = []
        self.waits = False
        self._log = log
        self._name = name

    def _take(self, element):
        if self._log is not None:
            self._log.append(self._name)
        self.got.append(element)
        return self._wait() if self.waits else None

    async def _wait(self) -> None:
        self.got.append("waited")

    process_record = process_watermark = process_stream_status = process_latency_marker = _take


def test_a_chaining_output_hands_over_the_record_itself():
    operator = Operator()
    output = ChainingOutput(operator)
    record = StreamRecord([1], 5)
    assert output.collect(record) is None
    assert operator.got[0] is record
    output.collect_side(LATE, record)
    output.emit_latency_marker(MARKER)
    assert operator.got[1:] == [MARKER]


def test_a_copying_output_shares_nothing():
    operator = Operator()
    record = StreamRecord([[1]], 5)
    CopyingChainingOutput(operator, copy.deepcopy).collect(record)
    record.value[0].append(2)
    assert operator.got == [StreamRecord([[1]], 5)]


@pytest.mark.parametrize("copies", [False, True])
def test_a_side_output_gets_its_tag_only(copies):
    operator = Operator()
    output = (
        CopyingChainingOutput(operator, copy.deepcopy, LATE)
        if copies
        else ChainingOutput(operator, LATE)
    )
    output.collect(StreamRecord(1))
    output.collect_side(OutputTag("other"), StreamRecord(2))
    output.collect_side(OutputTag("late"), StreamRecord(3))
    output.emit_watermark(Watermark(4))
    assert operator.got == [StreamRecord(3), Watermark(4)]


def test_broadcasting_copies_for_all_but_the_last():
    operators = [Operator() for _ in range(3)]
    output = BroadcastingOutput([ChainingOutput(each) for each in operators], copy.deepcopy)
    record = StreamRecord([1], 7)
    output.collect(record)
    assert [each.got for each in operators] == [[StreamRecord([1], 7)]] * 3
    assert [each.got[0].value is record.value for each in operators] == [False, False, True]


def test_broadcasting_hands_over_everything():
    main, side = Operator(), Operator()
    output = BroadcastingOutput([ChainingOutput(main), ChainingOutput(side, LATE)])
    output.collect(StreamRecord(1))
    output.collect_side(LATE, StreamRecord(2))
    output.emit_watermark(Watermark(3))
    output.emit_latency_marker(MARKER)
    output.emit_stream_status(StreamStatus.IDLE)
    assert main.got == [StreamRecord(1), Watermark(3), MARKER, StreamStatus.IDLE]
    assert side.got == [StreamRecord(2), Watermark(3), MARKER, StreamStatus.IDLE]
    assert output.watermark_gauge.timestamp_ms == 3


async def test_broadcasting_waits_for_each_output_before_the_next():
    log: list[str] = []
    operators = [Operator(log, name) for name in "abc"]
    operators[0].waits = operators[2].waits = True
    output = BroadcastingOutput([ChainingOutput(each) for each in operators])
    pending = output.collect(StreamRecord(1))
    assert log == ["a"]
    assert pending is not None
    await pending
    assert log == ["a", "b", "c"]
    assert [each.got for each in operators] == [
        [StreamRecord(1), "waited"],
        [StreamRecord(1)],
        [StreamRecord(1), "waited"],
    ]


def test_a_broadcasting_output_needs_outputs():
    with pytest.raises(ValueError, match="outputs"):
        BroadcastingOutput([])


def test_records_of_main_and_side_outputs_are_counted():
    operator = Operator()
    output = CountingOutput(ChainingOutput(operator))
    output.collect(StreamRecord(1))
    output.collect_side(LATE, StreamRecord(2))
    output.emit_watermark(Watermark(3))
    output.emit_stream_status(StreamStatus.IDLE)
    output.emit_latency_marker(MARKER)
    assert output.records == 2
    assert operator.got == [StreamRecord(1), Watermark(3), StreamStatus.IDLE, MARKER]


def test_watermarks_of_an_idle_stream_are_dropped():
    operator = Operator()
    output = ChainingOutput(operator)
    assert output.watermark_gauge.timestamp_ms is None
    output.emit_stream_status(StreamStatus.ACTIVE)
    output.emit_watermark(Watermark(1))
    output.emit_stream_status(StreamStatus.IDLE)
    output.emit_stream_status(StreamStatus.IDLE)
    output.emit_watermark(Watermark(2))
    output.emit_stream_status(StreamStatus.ACTIVE)
    output.emit_watermark(Watermark(3))
    assert operator.got == [
        Watermark(1),
        StreamStatus.IDLE,
        StreamStatus.ACTIVE,
        Watermark(3),
    ]
    assert output.watermark_gauge.timestamp_ms == 3


# ---- the end of a chain


ELEMENTS = StreamElementSerializer(BytesSerializer())


def writer_over(partition: FakePartition) -> RecordWriter[StreamElement[bytes]]:
    return RecordWriter(partition, ELEMENTS, RoundRobinSelector())


def elements_of(stream: bytes) -> list[StreamElement[bytes]]:
    deserializer = SpanningRecordDeserializer()
    deserializer.set_next_buffer(stream)
    found = [ELEMENTS.deserialize(each) for each in deserializer.take_records(True)]
    deserializer.end()
    return found


def test_records_are_spread_watermarks_and_statuses_broadcast_markers_sent_at_random():
    partition = FakePartition(2)
    output = RecordWriterOutput(writer_over(partition))
    output.collect(StreamRecord(b"a", 1))
    output.collect_side(LATE, StreamRecord(b"late", 1))
    output.emit_watermark(Watermark(2))
    output.collect(StreamRecord(b"b"))
    output.emit_stream_status(StreamStatus.ACTIVE)
    output.emit_stream_status(StreamStatus.IDLE)
    output.emit_watermark(Watermark(3))
    output.emit_latency_marker(MARKER)
    found = [elements_of(partition.stream(index)) for index in range(2)]
    assert sum(each.count(MARKER) for each in found) == 1
    assert [[each for each in elements if each != MARKER] for elements in found] == [
        [StreamRecord(b"a", 1), Watermark(2), StreamStatus.IDLE],
        [Watermark(2), StreamRecord(b"b"), StreamStatus.IDLE],
    ]
    assert output.watermark_gauge.timestamp_ms == 2


async def test_back_pressure_passes_through_the_chain():
    partition = FakePartition(segment_bytes=struct.calcsize(">IB") + 1, buffers=1)
    chain = CountingOutput(RecordWriterOutput(writer_over(partition)))
    assert chain.collect(StreamRecord(b"a")) is None
    pending = chain.collect(StreamRecord(b"b"))
    assert pending is not None
    assert elements_of(partition.stream()) == [StreamRecord(b"a")]
    await pending
    assert elements_of(partition.stream()) == [StreamRecord(b"b")]
