"""Records through buffers of any size and back are byte-equal, with no bytes left over."""

import asyncio
import os
import tempfile
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.protocol.events import EndOfPartition
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer, ViewSerializer
from tests.support.fake_partition import FakeEvent, FakeGate, FakePartition

pytestmark = pytest.mark.slow

SEGMENTS = (1, 31, 64, 127, 32 << 10)
SPILL_THRESHOLD_BYTES = 50_000
PATTERN = bytes(index % 251 for index in range(200_000))


def lengths(segment_bytes: int) -> st.SearchStrategy[int]:
    """Draw lengths: tiny, about as long as a segment, and huge."""
    tiny = st.integers(0, 12)
    edges = st.builds(
        lambda segments, off: max(0, segments * segment_bytes - 4 + off),
        st.integers(1, 3),
        st.integers(-5, 5),
    )
    # With segments of a byte each byte costs a buffer.
    huge = st.integers(0, 3_000 if segment_bytes < 31 else 130_000)
    return st.one_of(tiny, tiny, edges, huge)


@st.composite
def cases(draw: st.DrawFn, segment_bytes: int) -> list[bytes]:
    drawn = draw(st.lists(lengths(segment_bytes), max_size=15))
    return [PATTERN[number : number + length] for number, length in enumerate(drawn)]


def write(partition: FakePartition, records: list[bytes], batch: bool) -> None:
    writer = RecordWriter(partition, BytesSerializer())
    if batch:
        assert writer.emit_batch(records) is None
    else:
        for record in records:
            assert writer.emit(record) is None


async def read(partition: FakePartition, serializer, batch: bool, spill_threshold: int) -> list:
    gate = FakeGate()
    for part in partition.read():
        assert not isinstance(part, FakeEvent)
        gate.put(0, part)
    gate.put_event(0, EndOfPartition(0, 0))
    reader = RecordReader(gate, serializer, 1, spill_threshold_bytes=spill_threshold)
    found: list[bytes] = []
    while not reader.is_ended:
        element = await (reader.read_batch() if batch else reader.next())
        if isinstance(element, ChannelRecords):
            found += map(bytes, element.values)
        elif isinstance(element, ChannelRecord):
            found.append(bytes(element.value))
    reader.close()
    assert gate.released == gate.given, "a buffer was not given back"
    return found


@pytest.mark.parametrize("serializer", [BytesSerializer(), ViewSerializer()], ids=["copy", "view"])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_round_trip(segment_bytes, batch, serializer):
    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(cases(segment_bytes), st.sampled_from([0, 100, SPILL_THRESHOLD_BYTES]))
    def check(records: list[bytes], spill_threshold: int) -> None:
        partition = FakePartition(segment_bytes=segment_bytes)
        write(partition, records, batch)
        assert asyncio.run(read(partition, serializer, batch, spill_threshold)) == records

    check()


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
async def test_records_far_longer_than_a_segment_pass_through_a_file(batch, monkeypatch):
    opened = Mock(side_effect=tempfile.TemporaryFile)
    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    files = len(os.listdir("/proc/self/fd"))
    records = [PATTERN[:120_000], b"tiny", PATTERN[7:60_000], b"", PATTERN]
    partition = FakePartition(segment_bytes=127)
    write(partition, records, batch)
    found = await read(partition, BytesSerializer(), batch, SPILL_THRESHOLD_BYTES)
    assert found == records
    assert opened.call_count == 3
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_record_above_the_default_threshold():
    """5 MiB and one byte: the whole path with its default settings."""
    record = PATTERN[:191] * ((5 << 20) // 191 + 1)
    partition = FakePartition(segment_bytes=32 << 10)
    write(partition, [b"before", record, b"after"], batch=True)
    found = asyncio.run(read(partition, BytesSerializer(), True, 5 << 20))
    assert found == [b"before", record, b"after"]
