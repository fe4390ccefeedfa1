"""Blocks: any content, cut anywhere, is decoded; a damaged block never passes for data."""

from __future__ import annotations

import random
from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.errors import BlockCorrupt
from sluice.shuffle.partition.blocks import (
    BLOCK_HEADER_BYTES,
    MAX_BLOCK_BYTES,
    BlockCodec,
    BlockDecoder,
    BlockEncoder,
)

CONTENTS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(lambda n: b"ab" * n)),
        st.sampled_from([DATA, DATA, EVENT, 2, 3]),
    ),
    max_size=8,
)


def encoded(*contents, codec=BlockCodec.LZ4) -> bytes:
    encoder = BlockEncoder(codec)
    blocks = [encoder.encode(content, data_type) for content, data_type in contents]
    stream = b"".join(part for block in blocks for part in block)
    assert len(stream) == sum(block.length for block in blocks)
    return stream


def decoded(blocks) -> list[tuple[bytes, int]]:
    return [(bytes(block.payload), block.data_type) for block in blocks]


@given(contents=CONTENTS, codec=st.sampled_from(BlockCodec), data=st.data())
def test_every_cut_of_a_stream_gives_the_same_blocks(contents, codec, data):
    stream = encoded(*contents, codec=codec)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = BlockDecoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoded(decoder.feed(stream[start:end]))
    decoder.finish()
    assert found == contents
    assert decoder.raw_bytes == sum(len(content) for content, _ in contents)
    assert decoder.stored_bytes == len(stream) - BLOCK_HEADER_BYTES * len(contents)


def test_compression_is_kept_only_when_it_is_smaller():
    encoder = BlockEncoder()
    dense = random.Random(1).randbytes(1000)
    assert encoder.encode(memoryview(dense)).stored == dense
    assert encoder.stored_bytes == encoder.raw_bytes == 1000
    assert len(encoder.encode(b"a" * 1000).stored) < 100
    assert encoder.raw_bytes == 2000
    assert encoder.stored_bytes < 1100
    assert encoder.encode(b"e" * 1000, EVENT).stored == b"e" * 1000
    plain = BlockEncoder(BlockCodec.NONE)
    assert plain.encode(b"a" * 1000).stored == b"a" * 1000


def test_a_whole_block_that_is_not_compressed_is_not_copied():
    stream = memoryview(encoded((b"abc", DATA), codec=BlockCodec.NONE))
    (block,) = BlockDecoder().feed(stream)
    assert isinstance(block.payload, memoryview)
    assert block.payload.obj is stream.obj


@given(
    contents=CONTENTS.filter(bool),
    codec=st.sampled_from(BlockCodec),
    position=st.integers(0),
    change=st.integers(1, 255),
    data=st.data(),
)
def test_a_damaged_byte_never_passes_for_data(contents, codec, position, change, data):
    stream = bytearray(encoded(*contents, codec=codec))
    stream[position % len(stream)] ^= change
    cut = data.draw(st.integers(0, len(stream)))
    decoder = BlockDecoder()

    def read():
        decoder.feed(bytes(stream[:cut]))
        decoder.feed(bytes(stream[cut:]))
        decoder.finish()

    with pytest.raises(BlockCorrupt) as told:
        read()
    assert told.value.code is ErrorCode.CHECKSUM_MISMATCH
    assert told.value.retryable


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_or_incomplete(content):
    decoder = BlockDecoder()
    try:
        assert decoder.feed(content) == []
        decoder.finish()
    except BlockCorrupt:
        return
    assert content == b""


def test_a_false_length_is_refused_before_memory_is_allocated():
    header = (MAX_BLOCK_BYTES + 1).to_bytes(4) * 2 + bytes(5)
    with pytest.raises(BlockCorrupt, match=f"limit {MAX_BLOCK_BYTES} bytes"):
        BlockDecoder().feed(header)
    with pytest.raises(BlockCorrupt, match="5 stored, 4 raw"):
        BlockDecoder().feed((5).to_bytes(4) + (4).to_bytes(4) + bytes(5))
    with pytest.raises(BlockCorrupt, match="limit 10 bytes"):
        BlockDecoder(10).feed(encoded((b"x" * 11, DATA)))


def test_a_stream_may_not_end_within_a_block():
    decoder = BlockDecoder()
    decoder.feed(encoded((b"abc", DATA))[:-1])
    with pytest.raises(BlockCorrupt, match="within a block"):
        decoder.finish()


@pytest.mark.parametrize(("codec", "stored"), [(2, 3), (15, 3), (0, 2)])
def test_an_unknown_kind_is_refused(codec, stored):
    header = stored.to_bytes(4) + (3).to_bytes(4) + bytes([codec]) + bytes(4)
    with pytest.raises(BlockCorrupt, match="Kind"):
        BlockDecoder().feed(header)


def test_content_that_decompresses_to_something_else_is_refused():
    """The checksum is right: the writer has a bug, or is malicious."""
    for raw_length, stored in ((200, b"\x10a"), (200, b"\xff" * 30), (50, b"\x1fa\x01\x00\xff")):
        head = pack(">IIB", len(stored), raw_length, BlockCodec.LZ4)
        block = head + pack(">I", crc32c(stored, crc32c(head))) + stored
        with pytest.raises(BlockCorrupt):
            BlockDecoder().feed(block)
