"""A partition and a gate that tests drive step by step. Both spoil memory that is given back."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sluice.protocol.events import encode_event
from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.memory import NetworkBuffer
from sluice.shuffle.memory.segment import MemorySegment
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.partition.shared_buffer import BufferBuilder
from sluice.shuffle.partition.view import OutgoingBuffer

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError
    from sluice.protocol.events import Event
    from sluice.shuffle.partition.shared_buffer import BufferConsumer


class FakeEvent(NamedTuple):
    payload: bytes
    data_type: int


class FakePartition:
    """Queues the buffers that a writer adds; has as many builders as a test gives it."""

    def __init__(
        self, num_subpartitions: int = 1, segment_bytes: int = 64, buffers: int | None = None
    ) -> None:
        self.num_subpartitions = num_subpartitions
        self.segment_bytes = segment_bytes
        self.free = 1 << 30 if buffers is None else buffers
        self.taken = 0
        self.queues: list[list[BufferConsumer | FakeEvent]] = [[] for _ in range(num_subpartitions)]
        self.flushed: list[int] = []
        self.finished = False
        self.failures: list[SluiceError] = []
        self.refuse_with: SluiceError | None = None
        self.writer_waits = asyncio.Event()
        self._waiters: deque[asyncio.Future[None]] = deque()

    # ---- the writer's side

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        assert ALL_SUBPARTITIONS <= subpartition < self.num_subpartitions
        if self.refuse_with is not None:
            raise self.refuse_with
        if self.free == 0:
            return None
        self.free -= 1
        self.taken += 1
        memory = memoryview(bytearray(self.segment_bytes))
        segment = MemorySegment(0, memory, self.segment_bytes)
        return BufferBuilder(NetworkBuffer(segment, 0, self._recycle))

    async def wait_for_builder(self, subpartition: int) -> BufferBuilder:
        while (builder := self.request_builder(subpartition)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self.writer_waits.set()
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return builder

    def add_consumer(self, consumer: BufferConsumer, subpartition: int) -> None:
        if self.refuse_with is not None:
            consumer.close()
            raise self.refuse_with
        if subpartition == ALL_SUBPARTITIONS:
            for queue in self.queues:
                queue.append(consumer.copy())
            consumer.close()
            return
        self.queues[subpartition].append(consumer)

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        for index, queue in enumerate(self.queues):
            if subpartition in (index, ALL_SUBPARTITIONS):
                queue.append(FakeEvent(payload, data_type))

    def flush(self, subpartition: int) -> None:
        self.flushed.append(subpartition)

    def flush_all(self) -> None:
        self.flushed.append(ALL_SUBPARTITIONS)

    @property
    def is_available(self) -> bool:
        return self.free > 0

    async def wait_available(self) -> None:
        raise NotImplementedError

    async def finish(self) -> None:
        self.finished = True

    def fail(self, error: SluiceError) -> None:
        self.failures.append(error)
        self.refuse_with = error
        self._wake()

    def release(self) -> None:
        raise NotImplementedError

    # ---- the test's side

    def read(self, subpartition: int = 0) -> list[bytes | FakeEvent]:
        """Take complete buffers, events, and the committed bytes of open buffers."""
        queue = self.queues[subpartition]
        found: list[bytes | FakeEvent] = []
        while queue:
            head = queue[0]
            if isinstance(head, FakeEvent):
                found.append(head)
                del queue[0]
                continue
            complete = head.is_finished
            if head.has_unread:
                piece = head.build()
                found.append(bytes(piece.payload))
                piece.recycle()
            if not complete:
                assert len(queue) == 1, "a buffer is behind an open one"
                break
            del queue[0]
            head.close()
        return found

    def stream(self, subpartition: int = 0) -> bytes:
        """Take all data, in one piece."""
        return b"".join(part for part in self.read(subpartition) if isinstance(part, bytes))

    def finish_open(self) -> None:
        """Finish the buffers that are still being filled."""
        for queue in self.queues:
            for entry in queue:
                if not isinstance(entry, FakeEvent) and entry.builder is not None:
                    entry.builder.finish()

    def give(self, buffers: int) -> None:
        self.free += buffers
        self._wake()

    def _recycle(self, segment: MemorySegment) -> None:
        segment.memory[:] = b"\xdd" * len(segment.memory)
        self.give(1)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class FakeGate:
    """Gives the buffers and events that a test puts in."""

    def __init__(self) -> None:
        self.released = 0
        self.given = 0
        self.waits = 0
        self.is_over = False
        self._queue: deque[BufferOrEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, channel: int, *payloads: bytes) -> None:
        for payload in payloads:
            memory = bytearray(payload)
            # A view of the whole: a release that comes too early shows as wrong bytes.
            release = partial(self._release, memory, [])
            self._add(BufferOrEvent(channel, OutgoingBuffer(memoryview(memory), release, DATA)))

    def put_event(self, channel: int, event: Event, data_type: int = EVENT) -> None:
        self._add(BufferOrEvent(channel, OutgoingBuffer(encode_event(event), None, data_type)))

    def poll(self) -> BufferOrEvent | None:
        if not self._queue:
            return None
        self.given += self._queue[0].buffer.release is not None
        return self._queue.popleft()

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        while not self._queue and not self.is_over:
            self.waits += 1
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.poll()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _add(self, taken: BufferOrEvent) -> None:
        self._queue.append(taken)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self, memory: bytearray, before: list[None]) -> None:
        assert not before, "released twice"
        before.append(None)
        self.released += 1
        memory[:] = b"\xdd" * len(memory)
