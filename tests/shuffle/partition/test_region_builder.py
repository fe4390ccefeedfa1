"""Regions built of gathered buffers and events: order, lengths, checksum, broadcast."""

from __future__ import annotations

import asyncio

from crc32c import crc32c

from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT
from sluice.shuffle.memory import NetworkBuffer, NetworkBufferPool
from sluice.shuffle.partition.blocks import (
    BLOCK_HEADER_BYTES,
    BlockCodec,
    BlockDecoder,
    BlockEncoder,
)
from sluice.shuffle.partition.region_builder import (
    BLOCKS_A_TURN,
    Gathered,
    GatheredBuffer,
    GatheredEvent,
    OutgoingRegion,
    build_region,
)
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.partition.shared_buffer import BufferSlice

SIZE = 64
SEGMENTS = 3 * BLOCKS_A_TURN


class Rig:
    """Memory, and buffers filled from it."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        self.pool = self.network.create_local_pool("partition", 1, SEGMENTS)
        self.buffers: list[NetworkBuffer] = []
        self.slices: list[BufferSlice] = []

    def buffer(self, subpartition: int, content: bytes) -> GatheredBuffer:
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[: len(content)] = content
        buffer.length = len(content)
        self.buffers.append(buffer)
        self.slices.append(BufferSlice(buffer, buffer.payload, DATA))
        return GatheredBuffer(subpartition, self.slices[-1])

    def recycle(self) -> None:
        for each in self.slices:
            each.recycle()
        assert self.pool.lent_segments == 0


def blocks(region: OutgoingRegion) -> list[list[tuple[bytes, int]]]:
    """Decode the blocks of every run of bytes that the region names a length of."""
    content = b"".join(region.parts)
    assert crc32c(content) == region.crc32c
    found = []
    for length in region.lengths:
        decoder = BlockDecoder()
        found.append([(bytes(b.payload), b.data_type) for b in decoder.feed(content[:length])])
        decoder.finish()
        content = content[length:]
    assert not content
    return found


async def test_blocks_are_in_the_order_of_subpartitions_and_keep_that_of_writing():
    rig = Rig()
    gathered: list[Gathered] = [
        rig.buffer(2, b"c"),
        rig.buffer(0, b"a"),
        GatheredEvent(2, b"event", BLOCKING_EVENT),
        rig.buffer(2, b"cc"),
        GatheredEvent(0, b"end", EVENT),
    ]
    region = await build_region(gathered, 4, 3, BlockEncoder(BlockCodec.NONE))
    assert (region.number, region.is_broadcast) == (4, False)
    assert list(region.lengths) == [2 * BLOCK_HEADER_BYTES + 4, 0, 3 * BLOCK_HEADER_BYTES + 8]
    assert blocks(region) == [
        [(b"a", DATA), (b"end", EVENT)],
        [],
        [(b"c", DATA), (b"event", BLOCKING_EVENT), (b"cc", DATA)],
    ]
    rig.recycle()


async def test_a_broadcast_region_is_stored_once():
    rig = Rig()
    gathered: list[Gathered] = [
        rig.buffer(ALL_SUBPARTITIONS, b"all"),
        GatheredEvent(ALL_SUBPARTITIONS, b"event", EVENT),
    ]
    region = await build_region(gathered, 0, 5, BlockEncoder(BlockCodec.NONE))
    assert region.is_broadcast
    assert blocks(region) == [[(b"all", DATA), (b"event", EVENT)]]
    rig.recycle()


async def test_a_broadcast_buffer_beside_others_is_encoded_once_and_listed_for_everyone():
    rig = Rig()
    encoder = BlockEncoder(BlockCodec.NONE)
    gathered = [rig.buffer(ALL_SUBPARTITIONS, b"all"), rig.buffer(1, b"one")]
    region = await build_region(gathered, 0, 2, encoder)
    assert not region.is_broadcast
    assert blocks(region) == [[(b"all", DATA)], [(b"all", DATA), (b"one", DATA)]]
    assert region.parts[1] is region.parts[3]
    assert encoder.raw_bytes == 6
    rig.recycle()


async def test_a_compressed_block_takes_the_memory_of_its_buffer():
    rig = Rig()
    gathered = rig.buffer(0, b"a" * SIZE)
    region = await build_region([gathered], 0, 1, BlockEncoder())
    stored = region.parts[1]
    assert len(stored) < SIZE
    assert bytes(gathered.content.payload[: len(stored)]) == bytes(stored)
    assert blocks(region) == [[(b"a" * SIZE, DATA)]]
    rig.recycle()


async def test_a_region_of_nothing_has_no_bytes():
    region = await build_region([], 7, 3, BlockEncoder())
    assert region == OutgoingRegion(7, [0], 0, [], True)


async def test_a_long_region_lets_other_tasks_run():
    rig = Rig()
    content = [bytes([number]) for number in range(2 * BLOCKS_A_TURN + 1)]
    gathered = [rig.buffer(0, each) for each in content]
    encoder = BlockEncoder()
    building = asyncio.ensure_future(build_region(gathered, 0, 1, encoder))
    seen = [0]
    while not building.done():
        seen.append(encoder.raw_bytes)  # each block has one byte
        await asyncio.sleep(0)
    assert [each for each in dict.fromkeys(seen) if each] == [BLOCKS_A_TURN, 2 * BLOCKS_A_TURN]
    assert blocks(await building) == [[(each, DATA) for each in content]]
    rig.recycle()


async def test_a_shared_buffer_keeps_its_content():
    rig = Rig()
    gathered = rig.buffer(0, b"a" * SIZE)
    other = rig.buffers[0].retain()
    region = await build_region([gathered], 0, 1, BlockEncoder())
    assert len(region.parts[1]) < SIZE
    assert bytes(other.payload) == b"a" * SIZE
    assert blocks(region) == [[(b"a" * SIZE, DATA)]]
    other.recycle()
    rig.recycle()
