"""Building a region of a stored partition, and the interface of the sink that stores it.

The gathered buffers and events become blocks, in the order of the subpartitions, with the length of
each subpartition and one checksum. A sink is the store of a TaskManager, or the way to it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from ...protocol.schema import DATA
from .blocks import BlockEncoder, EncodedBlock
from .result_partition_writer import ALL_SUBPARTITIONS
from .shared_buffer import BufferSlice

BLOCKS_A_TURN: Final = 8
"""Blocks encoded before the event loop gets a turn: half a millisecond at 32 KiB with LZ4."""


class OutgoingRegion(NamedTuple):
    """The bytes of all subpartitions, in their order, with their lengths and checksum.

    Attributes:
        number: Number of the region, from 0, without gaps.
        lengths: Bytes by subpartition; a single number if ``is_broadcast``.
        crc32c: Checksum of all parts.
        parts: The bytes, in order.
        is_broadcast: Whether the bytes are those of *every* subpartition, and are stored once.
    """

    number: int
    lengths: Sequence[int]
    crc32c: int
    parts: Sequence[bytes | memoryview]
    is_broadcast: bool


class RegionSink(Protocol):
    """Stores the regions of one partition, one after the other."""

    async def write_region(self, region: OutgoingRegion) -> None:
        """Store a region.

        The memory of the parts is the writer's again when this returns *or raises*, cancellation
        included: an implementation whose transport still has them must wait for it first.

        Raises:
            SluiceError: The region could not be stored.
        """

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Make the partition complete, so that it can be read; durable when this returns.

        Args:
            total_bytes: Sum over the regions, each counted as it was given.
            regions: Number of regions.

        Raises:
            SluiceError: The partition is not complete and never will be.
        """

    def abort(self) -> None:
        """Discard all regions; a running ``write_region`` must end soon. Idempotent."""


class GatheredBuffer(NamedTuple):
    """A complete buffer, and its subpartition (perhaps ``ALL_SUBPARTITIONS``)."""

    subpartition: int
    content: BufferSlice


class GatheredEvent(NamedTuple):
    """An event between buffers, and its subpartition."""

    subpartition: int
    payload: bytes
    data_type: int


Gathered = GatheredBuffer | GatheredEvent


async def build_region(
    gathered: Sequence[Gathered],
    number: int,
    num_subpartitions: int,
    encoder: BlockEncoder,
) -> OutgoingRegion:
    """Encode the gathered buffers and events, and put them in subpartition order.

    A compressed block is written back into the segment it came from, so that a region takes no more
    memory than its buffers. A broadcast buffer is encoded once; its bytes are listed for every
    subpartition, unless everything is broadcast: then they are stored once.

    Args:
        gathered: The buffers and events, in the order in which they were written.
        number: Number of the region.
        num_subpartitions: Number of the partition's subpartitions.
        encoder: Makes the blocks.

    Cancellation: safe; the buffers stay the caller's, but their content may have changed.
    """
    # Stored once, because a copy for each subpartition would multiply the bytes in the store. A
    # region that mixes both keeps such copies: otherwise readers would have to merge two regions to
    # get the buffers of a subpartition in the order they were written.
    once = all(each.subpartition == ALL_SUBPARTITIONS for each in gathered)
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
