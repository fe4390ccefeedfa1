"""Arrow record batches as records."""

import pyarrow as pa
import pytest

from sluice.protocol.events import EndOfPartition
from sluice.shuffle.errors import MalformedElement
from sluice.shuffle.records.record_reader import ChannelRecord, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import ArrowSerializer
from tests.support.fake_partition import FakeGate, FakePartition

BATCH = pa.RecordBatch.from_pydict(
    {"key": [1, 2, None], "text": ["a", "bb", None], "list": [[1], [], None]},
    schema=pa.schema([("key", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int8()))]),
)


@pytest.mark.parametrize("memory", [bytes, bytearray])
def test_round_trip(memory):
    serializer = ArrowSerializer()
    assert serializer.deserialize(memory(serializer.serialize(BATCH))).equals(BATCH)


def test_a_batch_outlives_memory_that_was_borrowed():
    serializer = ArrowSerializer()
    memory = bytearray(serializer.serialize(BATCH))
    batch = serializer.deserialize(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert batch.equals(BATCH)
    batch.validate(full=True)


def test_memory_that_is_handed_over_is_not_copied():
    serializer = ArrowSerializer()
    memory = bytearray(serializer.serialize(BATCH))
    batch = serializer.deserialize(memory)
    values = batch.column("key").buffers()[1].address
    begin = pa.py_buffer(memory).address
    assert begin <= values < begin + len(memory)


def test_dictionaries_and_empty_batches():
    serializer = ArrowSerializer()
    for batch in (
        pa.RecordBatch.from_pydict({"d": pa.array(["x", "y", "x"]).dictionary_encode()}),
        BATCH.slice(0, 0),
        BATCH.slice(1, 2),
    ):
        assert serializer.deserialize(bytes(serializer.serialize(batch))).equals(batch)


@pytest.mark.parametrize("segment_bytes", [7, 32 << 10])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_batch_passes_through_buffers(segment_bytes, batch):
    large = pa.RecordBatch.from_pydict({"number": list(range(2_000))})
    partition, gate = FakePartition(segment_bytes=segment_bytes), FakeGate()
    writer = RecordWriter(partition, ArrowSerializer())
    if batch:
        writer.emit_batch([BATCH, large])
    else:
        for each in (BATCH, large):
            writer.emit(each)
    for part in partition.read():
        assert isinstance(part, bytes)
        gate.put(0, part)
    gate.put_event(0, EndOfPartition(0, 0))
    reader = RecordReader(gate, ArrowSerializer(), 1)
    found = [element.value async for element in reader if isinstance(element, ChannelRecord)]
    assert len(found) == 2
    assert found[0].equals(BATCH)
    assert found[1].equals(large)
    assert gate.released == gate.given


def _stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "payload",
    [b"", b"abc", bytes(64), _stream(BATCH)[:-40], _stream(), _stream(BATCH, BATCH)],
    ids=["empty", "text", "zeros", "cut", "no batch", "two batches"],
)
def test_a_record_without_exactly_one_batch_is_refused(payload):
    with pytest.raises(MalformedElement):
        ArrowSerializer().deserialize(payload)


def test_a_value_that_is_not_a_record_batch_is_refused():
    with pytest.raises(MalformedElement, match="dict"):
        ArrowSerializer().serialize({"a": 1})
