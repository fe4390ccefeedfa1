"""Blocks of stored partitions, read through a gate as buffers and events."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.events import CustomEvent, EndOfPartition, decode_event, encode_event
from sluice.protocol.events import encode_end_of_partition as end
from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.client.client_gate import BlockSource
from sluice.shuffle.errors import BlockCorrupt
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.partition.blocks import BlockCodec, BlockEncoder
from sluice.shuffle.partition.view import OutgoingBuffer


class Gate:
    """Gives the buffers that the test puts in, and counts those that are released."""

    def __init__(self) -> None:
        self.waiting: list[BufferOrEvent] = []
        self.given = 0
        self.released = 0

    def _release(self) -> None:
        self.released += 1

    def data(self, channel: int, content: bytes) -> None:
        self.waiting.append(
            BufferOrEvent(channel, OutgoingBuffer(memoryview(content), self._release, DATA))
        )
        self.given += 1

    def end(self, channel: int) -> None:
        self.waiting.append(BufferOrEvent(channel, OutgoingBuffer(end(0, 0), None, EVENT)))

    def poll(self) -> BufferOrEvent | None:
        return self.waiting.pop(0) if self.waiting else None

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        return self.poll()


def blocks(*contents, codec=BlockCodec.LZ4):
    encoder = BlockEncoder(codec)
    stream = b""
    for content, data_type in contents:
        block = encoder.encode(content, data_type)
        stream += block.header + bytes(block.stored)
    return stream


def read_one(source: BlockSource) -> tuple[int, int, bytes] | None:
    taken = source.poll()
    if taken is None:
        return None
    return taken.channel_index, taken.buffer.data_type, bytes(taken.buffer.payload)


def read(source: BlockSource) -> list[tuple[int, int, bytes]]:
    return list(iter(partial(read_one, source), None))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.integers(1, 3)), max_size=6),
    st.integers(1, 50),
)
def test_blocks_cut_anywhere(contents, cut):
    gate = Gate()
    source = BlockSource(gate)
    streams = [
        blocks(*((content * times, DATA) for content, times in part))
        for part in (contents, contents[::-1])
    ]
    for start in range(0, max(map(len, streams), default=0), cut):
        for channel, stream in enumerate(streams):
            if start < len(stream):
                gate.data(channel, stream[start : start + cut])
    for channel in (0, 1):
        gate.end(channel)
    taken = read(source)
    for channel, part in enumerate((contents, contents[::-1])):
        expected = [content * times for content, times in part]
        assert [each[2] for each in taken if each[:2] == (channel, DATA)] == expected
    assert gate.released == gate.given
    assert source.raw_bytes == 2 * sum(len(content) * times for content, times in contents)


async def test_events_keep_their_place_and_a_channel_has_one_end():
    gate = Gate()
    source = BlockSource(gate)
    event = encode_event(CustomEvent("here", b""))
    gate.data(0, blocks((b"before", DATA), (event, EVENT), (b"after", DATA), (end(1, 1), EVENT)))
    gate.end(0)
    taken = []
    while (each := await source.next_buffer_or_event()) is not None:
        taken.append(bytes(each.buffer.payload))
    assert taken[:3] == [b"before", event, b"after"]
    assert [decode_event(payload) for payload in taken[3:]] == [EndOfPartition(0, 0)]
    assert source.stored_bytes > 0


@pytest.mark.parametrize("harm", ["flipped", "cut short"])
def test_after_corrupt_blocks_every_read_fails(harm):
    gate = Gate()
    source = BlockSource(gate)
    stream = blocks((b"first", DATA), (bytes(range(200)), DATA), codec=BlockCodec.NONE)
    if harm == "flipped":
        gate.data(0, stream[:-1] + b"!")
        gate.data(0, stream)
    else:
        gate.data(0, stream[:-1])
    gate.end(0)
    gate.data(0, stream)
    if harm == "cut short":
        assert read_one(source) == (0, DATA, b"first")
    with pytest.raises(BlockCorrupt):
        read(source)
    while gate.waiting:
        with pytest.raises(BlockCorrupt):
            source.poll()
    assert gate.released == gate.given
