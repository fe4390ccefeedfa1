"""The legs of a client over a connection that only records, and memory to write with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import VERSION
from sluice.protocol.schema import (
    DATA,
    EVENT,
    FLOW_CREDIT,
    BufferResponse,
    HelloAck,
    OpenGate,
    OpenPipelinedPartition,
    PartitionOpened,
)
from sluice.shuffle.client.client_channel_opener import ClientChannelOpener
from sluice.shuffle.client.consumer_leg import ConsumerLeg
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.counters import Counters
from sluice.shuffle.gate.channel_opener import ChannelSource, GateMemory
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.legs.producer_leg import ProducerLeg
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.transport.address import Address
from tests.support.fakes import FakeConnection

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError
    from sluice.protocol.framing import PayloadMemory
    from sluice.shuffle.partition.shared_buffer import BufferBuilder

SEGMENTS = 16
SEGMENT_SIZE_BYTES = 64
ACK = HelloAck(VERSION, "tm", SEGMENT_SIZE_BYTES, FLOW_CREDIT, 0, "host", 1, "i", 0, 1)


SHUFFLE = ShuffleKey("app", 1)
SOURCES = [ChannelSource("tm", Address("host", 1), (attempt,)) for attempt in (7, 8)]


class LegConnection(FakeConnection):
    """A connection whose end is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.max_payload_bytes = self.large_payload_bytes = SEGMENT_SIZE_BYTES
        self.aborted: SluiceError | None = None

    def abort(self, error: SluiceError) -> None:
        self.aborted = error
        self.close()


class ProducerRig:
    """A producer leg, and the client's memory."""

    def __init__(self, *, answer_timeout_seconds: float = 30) -> None:
        self.connection = LegConnection()
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
        return self.network.available_segments == SEGMENTS


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
    partition.add_consumer(builder.create_consumer(), subpartition)
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


class ConsumerRig:
    """A gate of two channels over a leg."""

    def __init__(self, answer_timeout_seconds: float = 30, floating: int = 2) -> None:
        self.leg, self.connection = consumer_leg(answer_timeout_seconds)
        self.network = NetworkBufferPool(SEGMENTS, SEGMENT_SIZE_BYTES)
        self.gate = self.new_gate(floating)

    def new_gate(
        self, floating: int = 2, exclusive: int = 2, timeout_seconds: float = 30
    ) -> InputGate:
        memory = GateMemory(self.network, exclusive, floating, timeout_seconds)
        return InputGate(
            ClientChannelOpener("gate", SubpartitionRange(SHUFFLE, 0, 1), memory, self.leg)
        )

    async def opening(self) -> OpenGate:
        for source in SOURCES:
            self.gate.add_channel(source)
        await turns()
        (message,) = self.connection.take(OpenGate)
        return message

    async def read_one(self) -> tuple[int, bytes]:
        """Take the next buffer, give it back, and return its channel and its content."""
        taken = await self.gate.next_buffer_or_event()
        assert taken is not None
        content = bytes(taken.buffer.payload)
        assert taken.buffer.release is not None
        taken.buffer.release()
        return taken.channel_index, content

    def data(self, channel: int, number: int, content: bytes) -> None:
        message = BufferResponse(channel, number, 0, DATA)
        fill(self.leg.payload_buffer(message, len(content)), content)
        self.leg.message_received(message, len(content))

    def end(self, channel: int, number: int, *totals: int) -> None:
        payload = encode_end_of_partition(*totals)
        message = BufferResponse(channel, number, 0, EVENT)
        fill(self.leg.payload_buffer(message, len(payload)), payload)
        self.leg.message_received(message, len(payload))

    def all_memory_is_back(self) -> bool:
        return self.network.available_segments == SEGMENTS
