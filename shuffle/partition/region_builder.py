"""From gathered buffers to one region: blocks, in subpartition order, with lengths and checksum."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from protocol.messages import DATA
from shuffle.partition.blocks import BlockEncoder, EncodedBlock
from shuffle.partition.buffer_consumer import BufferSlice
from shuffle.partition.region_sink import OutgoingRegion
from shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS

BLOCKS_A_TURN: Final = 8
"""Blocks encoded before the event loop gets a turn: half a millisecond at 32 KiB with LZ4."""


class GatheredBuffer(NamedTuple):
    """A complete buffer, and whose it is (perhaps ``ALL_SUBPARTITIONS``)."""

    subpartition: int
    content: BufferSlice


class GatheredEvent(NamedTuple):
    """An event between buffers, and whose it is."""

    subpartition: int
    payload: bytes
    data_type: int


Gathered = GatheredBuffer | GatheredEvent


async def build_region(
    gathered: Sequence[Gathered],
    number: int,
    num_subpartitions: int,
    encoder: BlockEncoder,
    takes_broadcast: bool,
) -> OutgoingRegion:
    """Encode what was gathered and put it in subpartition order.

    What gets smaller is written back into the segment it came from, so that a region takes no more
    memory than its buffers. What is broadcast is encoded once; its bytes are listed for every
    subpartition, unless all is broadcast and the sink can store it once.

    Cancellation: safe; the buffers stay the caller's, their content is spoilt.
    """
    once = takes_broadcast and all(each.subpartition == ALL_SUBPARTITIONS for each in gathered)
    by_subpartition: list[list[EncodedBlock]] = [
        [] for _ in range(1 if once else num_subpartitions)
    ]
    for position, each in enumerate(gathered, 1):
        block = _encode(each, encoder)
        if each.subpartition == ALL_SUBPARTITIONS:
            for blocks in by_subpartition:
                blocks.append(block)
        else:
            by_subpartition[each.subpartition].append(block)
        if position % BLOCKS_A_TURN == 0:
            await asyncio.sleep(0)
    checksum = 0
    parts: list[bytes | memoryview] = []
    lengths = []
    for blocks in by_subpartition:
        lengths.append(sum(block.length for block in blocks))
        for block in blocks:
            checksum = crc32c(block.stored, crc32c(block.header, checksum))
            parts += block
    return OutgoingRegion(number, lengths, checksum, parts, once)


def _encode(each: Gathered, encoder: BlockEncoder) -> EncodedBlock:
    if isinstance(each, GatheredEvent):
        return encoder.encode(each.payload, each.data_type)
    content = each.content
    block = encoder.encode(content.payload, DATA)
    if block.stored is content.payload or content.is_shared:
        return block
    place = content.payload[: len(block.stored)]
    place[:] = block.stored
    return EncodedBlock(block.header, place)
