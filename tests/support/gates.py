"""Gates of TaskManagers, and gates whose local channels a test fills by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from sluice.protocol.events import CustomEvent, encode_end_of_partition, encode_event
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import (
    GateServices,
    TaskManagerChannelOpener,
)
from sluice.transport.address import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sluice.protocol.errors import SluiceError
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment

KEY = ShuffleKey("app", 1)
HERE = "here"


class HandFilledView:
    """A pipelined view: priority events overtake, a blocking event stops it until it is resumed."""

    is_local = True
    holds_segments = True

    def __init__(self, listener: Callable[[], None]) -> None:
        self.failure: SluiceError | None = None
        self.listener = listener
        self.released = False
        self._blocked = False
        self._waiting: deque[OutgoingBuffer] = deque()
        self._priority: deque[OutgoingBuffer] = deque()

    def put(self, *payloads: bytes) -> None:
        self._add(*(OutgoingBuffer(payload, None, DATA) for payload in payloads))

    def put_event(self, name: str, data_type: int = EVENT) -> None:
        payload = encode_event(CustomEvent(name, b""))
        if data_type == PRIORITY_EVENT:
            self._priority.append(OutgoingBuffer(payload, None, data_type))
            self.listener()
        else:
            self._add(OutgoingBuffer(payload, None, data_type))

    def end(self) -> None:
        self._add(OutgoingBuffer(encode_end_of_partition(0, 0), None, EVENT))

    def fail(self, error: SluiceError) -> None:
        self.failure = error
        self.listener()

    @property
    def backlog(self) -> int:
        return sum(buffer.data_type == DATA for buffer in self._waiting)

    @property
    def has_priority_event(self) -> bool:
        return bool(self._priority) and not self._blocked

    def is_available(self, credit: int) -> bool:
        return bool(self._priority or self._waiting) and not self._blocked

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        if self.failure is not None:
            raise self.failure
        if not self.is_available(credit):
            return None
        buffer = (self._priority or self._waiting).popleft()
        self._blocked = buffer.data_type == BLOCKING_EVENT
        return buffer

    def resume_consumption(self) -> None:
        self._blocked = False
        self.listener()

    def release(self) -> None:
        self.released = True

    def _add(self, *buffers: OutgoingBuffer) -> None:
        had_nothing = not self._waiting
        self._waiting.extend(buffers)
        if had_nothing:
            self.listener()


class HandFilledPartitions(ResultPartitionManager):
    """Finds a view for every request at once; the test takes it by its map attempt.

    A manager by type, since compiled code takes nothing else for one.
    """

    def __init__(self) -> None:
        self.views: dict[int, HandFilledView] = {}

    async def request_view(
        self,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        buffer_size_bytes: int,
        read_pool: Any,
        listener: Callable[[], None],
        credit_bytes: int | None = None,
    ) -> Any:
        view = self.views[map_attempt_ids[0]] = HandFilledView(listener)
        return view


class HandFilledGate(InputGate):
    """A gate of local channels; channel ``n`` reads ``views[n]``, once the loop has gone round."""

    def __init__(self, channels: int = 0, name: str = "gate") -> None:
        self.partitions = HandFilledPartitions()
        self.pool = NetworkBufferPool(8, 1024)
        self.services = GateServices(
            HERE,
            NetworkMemoryConfig(segment_size_bytes=1024, network_segments=8),
            self.pool,
            self.partitions,
            None,  # type: ignore[arg-type]
        )
        read_pool = ReadPool(self.pool, name, 1)
        super().__init__(
            TaskManagerChannelOpener(name, self.services, SubpartitionRange(KEY, 0, 1), read_pool)
        )
        for number in range(channels):
            self.add_channel(here(number))

    @property
    def views(self) -> dict[int, HandFilledView]:
        return self.partitions.views

    def take(self) -> tuple[int, bytes | str] | None:
        """Poll; return the channel and the data, or the type of an event by its name."""
        return shown(self.poll())


@contextlib.asynccontextmanager
async def gate_of(
    environment: NetworkEnvironment, start: int = 0, end: int = 1
) -> AsyncIterator[InputGate]:
    """A gate of a TaskManager, as the consumer leg makes one."""
    read_pool = ReadPool(environment.network_pool, "reads", 8)
    wanted = SubpartitionRange(KEY, start, end)
    gate = InputGate(TaskManagerChannelOpener("gate", environment.gate_services, wanted, read_pool))
    try:
        yield gate
    finally:
        gate.release()
        gate.release()
        read_pool.destroy()
        await asyncio.sleep(0)


def source(environment: NetworkEnvironment, *map_attempt_ids: int) -> ChannelSource:
    """A source on a TaskManager."""
    return ChannelSource(environment.taskmanager_id, environment.address, map_attempt_ids)


def here(*map_attempt_ids: int) -> ChannelSource:
    """A source on this TaskManager."""
    return ChannelSource(HERE, Address("here", 1), map_attempt_ids)


def shown(taken: Any) -> Any:
    """Return what was taken, in a form that reads well in an assertion."""
    if taken is None:
        return None
    buffer = taken.buffer
    kinds = {EVENT: "event", PRIORITY_EVENT: "priority event", BLOCKING_EVENT: "blocking event"}
    return taken.channel_index, kinds.get(buffer.data_type, bytes(buffer.payload))
