"""Memory, a sink for regions, and subpartitions that record what they are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crc32c import crc32c

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import EVENT
from sluice.shuffle.memory import NetworkBuffer, NetworkBufferPool
from sluice.shuffle.partition.blocks import BlockDecoder
from sluice.shuffle.partition.event_buffers import EventBuffers
from sluice.shuffle.partition.pipelined_subpartition import PipelinedSubpartition
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer, finished_consumer

if TYPE_CHECKING:
    from sluice.shuffle.partition.region_builder import OutgoingRegion


class Notifications:
    """A listener that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


class Owner:
    """The partition of a lone subpartition."""

    def __init__(self) -> None:
        self.consumed: list[int] = []

    def subpartition_consumed(self, index: int) -> None:
        self.consumed.append(index)


class SubpartitionRig:
    """One subpartition, its reader's notifications, and the memory."""

    def __init__(self, segments: int = 16, size: int = 64) -> None:
        self.network = NetworkBufferPool(segments, size)
        self.pool = self.network.create_local_pool("partition", 1, segments)
        self.owner = Owner()
        self.subpartition = PipelinedSubpartition(0, self.owner)
        self.events = EventBuffers(self.pool)
        self.told = Notifications()

    def view(self):
        return self.subpartition.create_view(self.told)

    def release(self) -> None:
        """Release the subpartition as a partition does."""
        builder = self.subpartition.release()
        if builder is not None:
            builder.finish()

    def buffer(self, content: bytes = b"") -> NetworkBuffer:
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[: len(content)] = content
        buffer.length = len(content)
        return buffer

    def finished(self, content: bytes) -> BufferConsumer:
        return finished_consumer(self.buffer(content))

    def event(self, payload: bytes, data_type: int = EVENT) -> None:
        """Add an event."""
        self.subpartition.add(self.events.consumer_of(payload, data_type))

    def builder(self) -> BufferBuilder:
        return BufferBuilder(self.buffer())

    def open(self, content: bytes = b"") -> BufferBuilder:
        """Add a buffer that is still being filled."""
        builder = self.builder()
        self.subpartition.add(builder.create_consumer())
        builder.append_and_commit(content)
        return builder


def read(view, credit: int = 1000) -> bytes | None:
    """Take a buffer or event and give it back; None if there is none."""
    buffer = view.next_buffer(credit)
    if buffer is None:
        return None
    content = bytes(buffer.payload)
    if buffer.release is not None:
        buffer.release()
    return content


class MemorySink:
    """Keeps copies of the regions; a test can hold it up, or make it fail."""

    def __init__(self) -> None:
        self.regions: list[tuple[OutgoingRegion, bytes]] = []
        self.totals: tuple[int, int] | None = None
        self.aborted = 0
        self.failure: Exception | None = None
        self.entered = asyncio.Event()
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def write_region(self, region: OutgoingRegion) -> None:
        self.entered.set()
        await self.proceed.wait()
        if self.failure is not None:
            raise self.failure
        content = b"".join(region.parts)
        assert crc32c(content) == region.crc32c
        assert sum(region.lengths) == len(content)
        assert region.number == len(self.regions)
        self.regions.append((region, content))

    async def finish(self, total_bytes: int, regions: int) -> None:
        if self.failure is not None:
            raise self.failure
        assert self.totals is None
        self.totals = (total_bytes, regions)

    def abort(self) -> None:
        self.aborted += 1
        self.failure = self.failure or SluiceError("aborted")
        self.proceed.set()

    def content(self, subpartition: int) -> list[tuple[bytes, int]]:
        """Decode the blocks of one subpartition, as its reader does."""
        decoder = BlockDecoder()
        blocks = []
        for region, content in self.regions:
            which = 0 if region.is_broadcast else subpartition
            start = sum(region.lengths[:which])
            piece = content[start : start + region.lengths[which]]
            blocks += [(bytes(b.payload), b.data_type) for b in decoder.feed(piece)]
            decoder.finish()  # a region holds whole blocks
        return blocks
