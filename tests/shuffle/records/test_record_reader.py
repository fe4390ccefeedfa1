"""The record reader: order, ends, waiting, and the release of buffers."""

import asyncio
import struct

import pytest

from sluice.protocol.errors import ErrorCode, InvalidEvent
from sluice.protocol.events import CheckpointBarrier, EndOfData, EndOfPartition
from sluice.protocol.schema import EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import MalformedElement, PartitionReleased, RecordTooLarge
from sluice.shuffle.gate.readable_gate import BUFFER_COST_BYTES, TURN_BYTES, BufferOrEvent
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.shuffle.records.record_reader import (
    ChannelEvent,
    ChannelRecord,
    ChannelRecords,
    RecordReader,
)
from sluice.shuffle.records.serializers import BytesSerializer, Int64Serializer, ViewSerializer
from tests.support.fake_partition import FakeGate
from tests.support.raises_code import raises_code

TIMEOUT_SECONDS = 60
END = EndOfPartition(0, 0)


def frame(record: bytes) -> bytes:
    return struct.pack(">I", len(record)) + record


def reader_of(gate: FakeGate, num_channels: int = 1, **options) -> RecordReader[bytes]:
    return RecordReader(gate, BytesSerializer(), num_channels, **options)


async def read_all(reader: RecordReader) -> list:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return [element async for element in reader]


async def read_all_batches(reader: RecordReader) -> list:
    found = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (element := await reader.read_batch()) is not None:
            found.append(element)
    return found


@pytest.mark.parametrize("read", [read_all, read_all_batches])
async def test_records_and_events_stay_in_order(read):
    gate = FakeGate()
    gate.put(1, frame(b"a") + frame(b"b"))
    gate.put_event(1, CheckpointBarrier(1, 2, False))
    gate.put(1, frame(b"c"))
    gate.put_event(0, EndOfData())
    gate.put_event(1, END)
    gate.put_event(0, END)
    found = await read(reader_of(gate, 2))
    flat = []
    for element in found:
        if isinstance(element, ChannelRecords):
            flat += [ChannelRecord(element.channel_index, value) for value in element.values]
        else:
            flat.append(element)
    assert flat == [
        ChannelRecord(1, b"a"),
        ChannelRecord(1, b"b"),
        ChannelEvent(1, CheckpointBarrier(1, 2, False)),
        ChannelRecord(1, b"c"),
        ChannelEvent(0, EndOfData()),
        ChannelEvent(1, END),
        ChannelEvent(0, END),
    ]
    assert gate.released == gate.given == 2


@pytest.mark.parametrize("read", [read_all, read_all_batches])
async def test_records_of_several_channels_span_their_own_buffers(read):
    gate = FakeGate()
    streams = [frame(b"first") * 3, frame(b"second") * 3, frame(b"") * 3]
    for start in range(0, 40, 3):
        for channel, stream in enumerate(streams):
            if part := stream[start : start + 3]:
                gate.put(channel, part)
    for channel in range(3):
        gate.put_event(channel, END)
    records: list[list[bytes]] = [[], [], []]
    for element in await read(reader_of(gate, 3)):
        if isinstance(element, ChannelRecords):
            records[element.channel_index] += element.values
        elif isinstance(element, ChannelRecord):
            records[element.channel_index].append(element.value)
    assert records == [[b"first"] * 3, [b"second"] * 3, [b""] * 3]
    assert gate.released == gate.given


async def test_a_batch_has_the_records_that_end_in_one_buffer():
    gate = FakeGate()
    reader = reader_of(gate)
    gate.put(0, frame(b"a") + frame(b"b") + frame(b"cd")[:5])
    assert await reader.read_batch() == ChannelRecords(0, [b"a", b"b"])
    assert gate.released == 1, "copies need no buffer"
    gate.put(0, b"d" + frame(b"e"), frame(b"f"))
    assert await reader.read_batch() == ChannelRecords(0, [b"cd", b"e"])
    assert await reader.read_batch() == ChannelRecords(0, [b"f"])


async def test_a_buffer_goes_back_with_its_last_copied_record():
    gate = FakeGate()
    reader = reader_of(gate)
    gate.put(0, frame(b"a") + frame(b"b"))
    await reader.next()
    assert gate.released == 0
    assert await reader.next() == ChannelRecord(0, b"b")
    assert gate.released == 1


@pytest.mark.parametrize("batch", [False, True])
async def test_a_view_is_valid_until_the_next_call(batch):
    gate = FakeGate()
    reader = RecordReader(gate, ViewSerializer(), 2)
    gate.put(0, frame(b"ab"))
    gate.put(1, frame(b"cd"))
    read = reader.read_batch if batch else reader.next
    first = await read()
    assert gate.released == 0
    assert isinstance(first, ChannelRecords | ChannelRecord)
    view = first.values[0] if isinstance(first, ChannelRecords) else first.value
    assert view == b"ab"
    await read()  # of another channel
    assert view == b"\xdd\xdd"
    assert gate.released == 1
    reader.close()
    assert gate.released == 2


@pytest.mark.parametrize("batch", [False, True])
async def test_views_of_the_last_buffer_end_when_the_reader_waits(batch):
    """A reader that waits must hold no buffer: its sender may wait for the credit."""
    gate = FakeGate()
    reader = RecordReader(gate, ViewSerializer(), 1)
    gate.put(0, frame(b"ab"))
    read = reader.read_batch if batch else reader.next
    await read()
    task = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    assert gate.released == 1
    gate.put_event(0, END)
    assert await task == ChannelEvent(0, END)


@pytest.mark.parametrize("method", ["next", "read_batch"])
async def test_a_cancelled_wait_loses_nothing(method):
    gate = FakeGate()
    reader = reader_of(gate)
    gate.put(0, frame(b"ab")[:3])
    task = asyncio.ensure_future(getattr(reader, method)())
    await asyncio.sleep(0)
    assert gate.waits == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.put(0, frame(b"ab")[3:])
    element = await getattr(reader, method)()
    assert element in (ChannelRecord(0, b"ab"), ChannelRecords(0, [b"ab"]))
    assert reader.idle_seconds > 0
    assert gate.released == 2


@pytest.mark.parametrize("method", ["next", "read_batch"])
async def test_an_end_in_the_middle_of_a_record_is_an_error(method):
    gate = FakeGate()
    gate.put(0, frame(b"ab")[:5])
    gate.put_event(0, END)
    with raises_code(ErrorCode.END_OF_PARTITION_MISMATCH, "middle of a record"):
        await getattr(reader_of(gate), method)()
    assert gate.released == 1


async def test_a_released_gate_is_an_error_and_not_the_end():
    gate = FakeGate()
    reader = reader_of(gate)
    gate.end()
    with raises_code(ErrorCode.PARTITION_RELEASED, "input gate was released"):
        await reader.next()


async def test_the_error_of_a_failed_channel_is_raised():
    class Failing(FakeGate):
        def poll(self):
            raise PartitionReleased("gone")

    reader = reader_of(Failing())
    for method in (reader.next, reader.read_batch):
        with pytest.raises(PartitionReleased):
            await method()


async def test_a_malformed_record_is_skipped():
    gate = FakeGate()
    gate.put(0, frame(b"x") + frame(bytes(8)), frame(b"y"))
    gate.put_event(0, END)
    reader = RecordReader(gate, Int64Serializer(), 1)
    with pytest.raises(MalformedElement):
        await reader.next()
    assert await reader.next() == ChannelRecord(0, 0)
    with pytest.raises(MalformedElement):
        await reader.read_batch()
    assert await reader.read_batch() == ChannelEvent(0, END)
    assert gate.released == 2


@pytest.mark.parametrize("method", ["next", "read_batch"])
async def test_a_length_above_the_limit_is_an_error(method):
    gate = FakeGate()
    gate.put(0, b"\xff\xff\xff\xffabc")
    reader = reader_of(gate)
    with pytest.raises(RecordTooLarge):
        await getattr(reader, method)()
    reader.close()
    assert gate.released == 1


async def test_an_event_that_does_not_decode_is_released():
    gate = FakeGate()
    released: list[None] = []
    gate._add(
        BufferOrEvent(0, OutgoingBuffer(b"\xc0", lambda: released.append(None), PRIORITY_EVENT))
    )
    gate._add(BufferOrEvent(0, OutgoingBuffer(b"\x91\x04", lambda: released.append(None), EVENT)))
    reader = reader_of(gate)
    with pytest.raises(InvalidEvent):
        await reader.next()
    assert await reader.next() == ChannelEvent(0, EndOfData())
    assert len(released) == 2


async def test_close_releases_each_held_buffer_once(tmp_path):
    gate = FakeGate()
    reader = reader_of(gate, 2, spill_threshold_bytes=3, spill_directory=str(tmp_path))
    gate.put(0, frame(b"abcdef")[:8])
    gate.put(1, frame(b"a") + frame(b"b"))
    await reader.next()
    reader.close()
    reader.close()
    assert gate.released == gate.given == 2
    assert reader.is_ended
    assert await reader.next() is None


@pytest.mark.parametrize("read", [read_all, read_all_batches])
@pytest.mark.parametrize("size", [1, 256 * 1024])
async def test_a_reader_that_never_waits_yields_to_the_loop(read, size):
    gate = FakeGate()
    a_turn = -(-TURN_BYTES // (size + 4 + BUFFER_COST_BYTES))
    gate.put(0, *(frame(bytes(size)) for _ in range(3 * a_turn)))
    gate.put_event(0, END)
    given = []
    reading = asyncio.create_task(read(reader_of(gate)))
    while not reading.done():
        await asyncio.sleep(0)
        given.append(gate.given)
    assert given[:3] == [a_turn, 2 * a_turn, 3 * a_turn]
    assert len(reading.result()) == 3 * a_turn + 1
