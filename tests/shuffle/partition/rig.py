"""A pool, and subpartitions that record what they are told, for tests of pipelined partitions."""

from __future__ import annotations

from sluice.shuffle.memory import NetworkBuffer, NetworkBufferPool
from sluice.shuffle.partition.pipelined_subpartition import PipelinedSubpartition
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer, finished_consumer


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
        self.sizes: list[tuple[int, int]] = []

    def subpartition_consumed(self, index: int) -> None:
        self.consumed.append(index)

    def buffer_size_announced(self, index: int, size_bytes: int) -> None:
        self.sizes.append((index, size_bytes))


class SubpartitionRig:
    """One subpartition, its reader's notifications, and the memory."""

    def __init__(self, segments: int = 16, size: int = 64) -> None:
        self.network = NetworkBufferPool(segments, size)
        self.pool = self.network.create_local_pool("partition", 1, segments)
        self.owner = Owner()
        self.subpartition = PipelinedSubpartition(0, self.owner)
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
