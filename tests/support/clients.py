"""Clients of a TaskManager that speak the wire as executors do, for tests and benchmarks."""

import asyncio
from collections import deque
from collections.abc import Sequence

from crc32c import crc32c

from protocol.codec import decode_end_of_partition
from protocol.errors import SluiceError
from protocol.limits import MAGIC, MAX_EVENT_BYTES, VERSION
from protocol.messages import (
    DATA,
    FLOW_CREDIT,
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PRODUCER,
    AddCredit,
    BeginRegion,
    BufferResponse,
    CloseGate,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    GateClosed,
    Hello,
    HelloAck,
    Message,
    OpenGate,
    OpenPartition,
    PartitionFinished,
    RegionData,
)
from protocol.remote_error import RemoteError
from transport.config import TransportConfig
from transport.connection import Connection, ConnectionHandler
from transport.connector import Address, connect

SEGMENT_SIZE_BYTES = 32 * 1024
DEADLINE_SECONDS = 30


class Client:
    """A connection to a TaskManager whose messages are taken one by one."""

    def __init__(self) -> None:
        self.connection: Connection
        self.ack: HelloAck
        self.lost: SluiceError | None = None
        self._messages: deque[tuple[Message, bytes]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._payload = bytearray(SEGMENT_SIZE_BYTES)

    @classmethod
    async def connect(
        cls,
        address: Address,
        role: int,
        application_id: str = "app",
        config: TransportConfig | None = None,
    ) -> "Client":
        client = cls()
        hello = Hello(
            MAGIC, VERSION, VERSION, role, application_id, b"", 0, FLOW_CREDIT, 0, "test client"
        )

        def handler(connection: Connection, ack: Hello | HelloAck) -> ConnectionHandler:
            return client

        client.connection, client.ack = await connect(
            address, hello, handler, config or TransportConfig(), SEGMENT_SIZE_BYTES
        )
        return client

    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        self.connection.send(message, payload)

    async def receive(self, timeout: float = DEADLINE_SECONDS) -> tuple[Message, bytes]:
        """Wait for the next message.

        Raises:
            SluiceError: The connection was lost.
        """
        async with asyncio.timeout(timeout):
            while not self._messages:
                if self.lost is not None:
                    raise self.lost
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        return self._messages.popleft()

    async def expect(self, kind: type[Message], timeout: float = DEADLINE_SECONDS) -> Message:
        """Wait for a message of a kind; an ErrorResponse instead is raised, others are skipped."""
        while True:
            message, _ = await self.receive(timeout)
            if type(message) is kind:
                return message
            if type(message) is ErrorResponse:
                raise RemoteError(message)

    async def close(self) -> None:
        self.connection.close()
        while self.lost is None:
            await asyncio.sleep(0)

    # ConnectionHandler
    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        if length > len(self._payload):
            self._payload = bytearray(length + MAX_EVENT_BYTES)
        return memoryview(self._payload)

    def message_received(self, message: Message, payload_length: int) -> None:
        self._messages.append((message, bytes(self._payload[:payload_length])))
        self._wake()

    def writable(self) -> None: ...

    def connection_lost(self, error: SluiceError) -> None:
        self.lost = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def producer(address: Address, application_id: str = "app") -> Client:
    return await Client.connect(address, ROLE_PRODUCER, application_id)


async def consumer(address: Address, application_id: str = "app") -> Client:
    return await Client.connect(address, ROLE_CONSUMER, application_id)


async def driver(address: Address, application_id: str = "app") -> Client:
    return await Client.connect(address, ROLE_DRIVER, application_id)


async def write_region(
    client: Client, partition: int, region: int, parts: Sequence[bytes], first: int = 0
) -> None:
    """Send one region, as its credit comes."""
    data = b"".join(parts)
    lengths = [len(part) for part in parts]
    client.send(BeginRegion(partition, region, first, lengths, crc32c(data)))
    size = client.ack.segment_size_bytes
    credit = 0
    for offset in range(0, len(data), size):
        while credit == 0:
            message = await client.expect(AddCredit)
            assert isinstance(message, AddCredit)
            credit += message.credit
        credit -= 1
        client.send(RegionData(partition, offset), data[offset : offset + size])


async def write_map_output(
    client: Client,
    shuffle_id: int,
    map_attempt_id: int,
    regions: Sequence[Sequence[bytes]],
    partition: int = 0,
) -> None:
    """Write and commit a map output whose regions cover all subpartitions."""
    subpartitions = max(1, *(len(parts) for parts in regions)) if regions else 1
    client.send(OpenPartition(partition, shuffle_id, map_attempt_id, subpartitions))
    for number, parts in enumerate(regions):
        await write_region(client, partition, number, parts)
    total = sum(len(part) for parts in regions for part in parts)
    client.send(FinishPartition(partition, total, len(regions)))
    await client.expect(PartitionFinished)


async def read_gate(
    client: Client,
    shuffle_id: int,
    sources: Sequence[tuple[HelloAck, Sequence[int]]],
    start: int,
    end: int,
    credit: int = 4,
) -> list[bytes]:
    """Read a gate to its end; return the bytes of each channel.

    Raises:
        RemoteError: The gate or a channel failed.
    """
    channels = [
        GateChannel(index + 1, ack.taskmanager_id, ack.advertised_host, ack.data_port, list(ids))
        for index, (ack, ids) in enumerate(sources)
    ]
    client.send(OpenGate(0, shuffle_id, start, end, credit, channels))
    content = [bytearray() for _ in channels]
    left = len(channels)
    while left:
        message, payload = await client.receive()
        if type(message) is ErrorResponse:
            raise RemoteError(message)
        if type(message) is not BufferResponse:
            continue
        if message.data_type == DATA:
            content[message.channel - 1] += payload
            client.send(AddCredit(message.channel, 1))
        else:
            total_bytes, _ = decode_end_of_partition(payload)
            assert total_bytes == len(content[message.channel - 1])
            left -= 1
    client.send(CloseGate(0))
    await client.expect(GateClosed)
    return [bytes(part) for part in content]
