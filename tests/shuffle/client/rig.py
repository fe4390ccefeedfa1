"""The legs of a client over a connection that only records, and memory to write with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluice.protocol.limits import FEATURE_BUFFER_GROUPS, FEATURE_LARGE_PAYLOADS, VERSION
from sluice.protocol.messages import FLOW_CREDIT, HelloAck, OpenPipelinedPartition, PartitionOpened
from sluice.shuffle.client.consumer_leg import ConsumerLeg
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.client.producer_leg import ProducerLeg
from sluice.shuffle.counters import Counters
from sluice.shuffle.memory import NetworkBufferPool
from tests.support.fakes import FakeConnection

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError
    from sluice.protocol.framing import PayloadMemory
    from sluice.shuffle.partition.shared_buffer import BufferBuilder

SEGMENTS = 16
SEGMENT_SIZE_BYTES = 64
ACK = HelloAck(
    VERSION,
    "tm",
    SEGMENT_SIZE_BYTES,
    FLOW_CREDIT,
    FEATURE_LARGE_PAYLOADS | FEATURE_BUFFER_GROUPS,
    "host",
    1,
)


class LegConnection(FakeConnection):
    """A connection with features that can be dropped."""

    def __init__(self, features: int = 0) -> None:
        super().__init__(features)
        self.max_payload_bytes = self.large_payload_bytes = SEGMENT_SIZE_BYTES
        self.aborted: SluiceError | None = None

    def abort(self, error: SluiceError) -> None:
        self.aborted = error
        self.close()


class ProducerRig:
    """A producer leg, and the client's memory."""

    def __init__(self, *, features: int = 0, answer_timeout_seconds: float = 30) -> None:
        self.connection = LegConnection(features)
        self.leg = ProducerLeg(self.connection, ACK, answer_timeout_seconds)
        self.network = NetworkBufferPool(SEGMENTS, SEGMENT_SIZE_BYTES)

    async def partition(self, subpartitions: int = 2, **options) -> PipelinedWriter:
        """Open a pipelined partition; the opening is answered at once."""
        number = self.leg.new_number()
        pool = self.network.create_local_pool("partition", 1, options.pop("segments", SEGMENTS))
        partition = PipelinedWriter(self.leg, number, subpartitions, pool, **options)
        opening = asyncio.create_task(self.leg.open(number, open_message(number), partition))
        await asyncio.sleep(0)
        self.leg.message_received(PartitionOpened(number), 0)
        await opening
        self.connection.sent.clear()
        self.connection.payloads.clear()
        return partition

    def all_memory_is_back(self) -> bool:
        self.connection.drain()
        return self.network.statistics().free_segments == SEGMENTS


def open_message(number: int) -> OpenPipelinedPartition:
    """Return a message that opens a partition."""
    return OpenPipelinedPartition(number, 1, 7, 2, 2, 0)


def consumer_leg(answer_timeout_seconds: float = 30) -> tuple[ConsumerLeg, LegConnection]:
    """Return a consumer leg and its connection."""
    connection = LegConnection()
    leg = ConsumerLeg(connection, ACK, Counters(), answer_timeout_seconds)
    return leg, connection


def write(partition: PipelinedWriter, subpartition: int, content: bytes) -> BufferBuilder:
    """Begin a buffer with some content."""
    builder = partition.request_builder(subpartition)
    assert builder is not None
    partition.add_consumer(builder.create_consumer_from_beginning(), subpartition)
    assert builder.append_and_commit(content) == len(content)
    return builder


def fill(memory: PayloadMemory, content: bytes) -> None:
    """Put content into the memory that a leg supplied for it."""
    assert isinstance(memory, memoryview)
    memory[: len(content)] = content


async def turns(count: int = 3) -> None:
    """Let the event loop run some turns, in which queued messages are sent."""
    for _ in range(count):
        await asyncio.sleep(0)
