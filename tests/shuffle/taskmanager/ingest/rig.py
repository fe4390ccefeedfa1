"""The outputs of one producer connection on a real store, without a socket."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from crc32c import crc32c

from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    ROLE_PRODUCER,
    AddCredit,
    BeginRegion,
    ErrorResponse,
    FinishPartition,
    OpenPartition,
    RegionData,
    RegionOpened,
)
from sluice.shuffle.counters import Counters
from sluice.shuffle.gate.local_input_channel import TaskEventDispatcher
from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.shuffle.taskmanager.ingest.incoming_output import OpenOutputs, ProducerServices
from sluice.shuffle.taskmanager.ingest.output_states import StoredState
from sluice.shuffle.taskmanager.ingest.resumable_outputs import ResumableOutputs
from sluice.shuffle.taskmanager.ingest.stored_output import StoredOutput
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.region_area import RegionAreas
from tests.support.fakes import FakeConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluice.protocol.schema import Message
    from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput

SEGMENT = 1024
DATA = random.Random(1).randbytes(10 * SEGMENT + 100)


class ProducerConnection(FakeConnection):
    """A connection to a producer that tells when it sends."""

    role = ROLE_PRODUCER

    def __init__(self, large_payload_bytes: int = SEGMENT) -> None:
        super().__init__()
        self.max_payload_bytes = SEGMENT
        self.large_payload_bytes = large_payload_bytes
        self.changed = asyncio.Event()
        self.claim = None

    def send(
        self,
        message: Message,
        payload: memoryview | bytes = b"",
        release: Callable[[], None] | None = None,
        more: Sequence[memoryview | bytes] = (),
    ) -> None:
        super().send(message, payload, release, more)
        self.changed.set()


def producer_services(
    store: ShuffleStore, network_segments: int, write_segments: int
) -> ProducerServices:
    """Make the parts of a TaskManager that producer legs use."""
    return ProducerServices(
        store=store,
        partitions=ResultPartitionManager(store, SEGMENT, 10),
        network_pool=NetworkBufferPool(network_segments, SEGMENT),
        task_events=TaskEventDispatcher(),
        resumable=ResumableOutputs(store, 10),
        region_areas=RegionAreas(None, 0),
        counters=Counters(),
        config=NetworkMemoryConfig(
            segment_size_bytes=SEGMENT,
            write_segments_per_partition=write_segments,
            max_partitions_per_connection=4,
        ),
        verify_checksums=True,
    )


class StoredRig:
    """A map output of four subpartitions, with the credit and the failures its producer is told."""

    def __init__(
        self,
        store: ShuffleStore,
        write_segments: int,
        total_segments: int,
        large_payload_bytes: int = SEGMENT,
    ) -> None:
        self.store = store
        self.services = producer_services(store, total_segments, write_segments)
        self.network_pool = self.services.network_pool
        self.connection = ProducerConnection(large_payload_bytes)
        self.outputs = OpenOutputs(self.connection, self.services)
        self.output = StoredOutput(self.outputs, OpenPartition(0, 1, 1, 4))
        self.output.open()

    @property
    def granted(self) -> list[int]:
        return [each.credit for each in self.connection.sent if isinstance(each, AddCredit)]

    @property
    def failures(self) -> list[RemoteError]:
        sent = self.connection.sent
        return [RemoteError(each) for each in sent if isinstance(each, ErrorResponse)]

    @property
    def payload_bytes(self) -> int:
        opened = [each for each in self.connection.sent if isinstance(each, RegionOpened)]
        return opened[-1].payload_bytes

    @property
    def pool(self) -> LocalBufferPool:
        return self.output._opener.pool

    def begin(self, lengths: Sequence[int], data: bytes, region: int = 0, first: int = 0) -> None:
        self.output.received(BeginRegion(0, region, first, list(lengths), crc32c(data)))

    def payload(self, offset: int, data: bytes) -> None:
        self.begin_payload(offset, data)
        self.output.data_received(RegionData(0, offset), len(data))

    def begin_payload(self, offset: int, data: bytes) -> None:
        memory = self.output.payload_buffer(RegionData(0, offset), len(data))
        assert memory is not None
        for piece in memory if isinstance(memory, list) else [memory]:
            part, data = data[: len(piece)], data[len(piece) :]
            piece[: len(part)] = part
        assert not data

    async def send(self, data: bytes) -> None:
        """Send a begun region as its credit comes."""
        size = self.payload_bytes
        for used, offset in enumerate(range(0, len(data), size)):
            await self.until(lambda: used < sum(self.granted) or self.failures)  # noqa: B023
            self.payload(offset, data[offset : offset + size])

    async def complete(self, total_bytes: int, regions: int) -> MapOutput:
        """Commit the map output."""
        self.output.received(FinishPartition(0, total_bytes, regions))
        await self.until(lambda: not self.outputs.contains(self.output))
        committed = self.store.lookup(*self.output.attempt)
        assert committed is not None
        return committed

    async def until_committing(self) -> None:
        while self.output.state is not StoredState.COMMITTING:  # noqa: ASYNC110 - not announced
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a message to the producer makes a condition true."""
        async with asyncio.timeout(10):
            while not condition():
                self.connection.changed.clear()
                await self.connection.changed.wait()

    def used_bytes(self) -> int:
        return sum(tier.used_bytes for tier in self.store.tiers())

    def close(self) -> None:
        if self.outputs.contains(self.output):
            self.output.abort()
        self.output.drop_arriving()
        self.store.release_shuffle(self.output.key)
        self.services.resumable.close()
        self.services.region_areas.close()
