"""Clients of a TaskManager that speak the wire as executors do. Tests use them as well."""

import asyncio
from collections import deque
from collections.abc import Sequence

from crc32c import crc32c

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.identity import Credential
from sluice.protocol.limits import (
    MAGIC,
    MAX_EVENT_BYTES,
    REMOTE_COPIES,
    VERSION,
)
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
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
    ReplicatePartition,
    ReplicateToRemote,
)
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig
from sluice.transport.connection import Connection, ConnectionHandler
from sluice.transport.connector import connect

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
        self._ended = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        address: Address,
        role: int,
        application_id: str = "app",
        config: TransportConfig | None = None,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        credential: Credential | None = None,
        features: int = 0,
    ) -> "Client":
        """Connect and exchange greetings."""
        client = cls()
        hello = Hello(
            MAGIC,
            VERSION,
            VERSION,
            role,
            application_id,
            b"",
            segment_size_bytes,
            FLOW_CREDIT,
            REMOTE_COPIES | features,
            "test client",
        )

        def handler(connection: Connection, ack: Hello | HelloAck) -> ConnectionHandler:
            return client

        client.connection, client.ack = await connect(
            address, hello, handler, config or TransportConfig(), SEGMENT_SIZE_BYTES, credential
        )
        return client

    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        """Send a message."""
        self.connection.send(message, payload)

    def stop_reading(self) -> None:
        """Leave what comes in the kernel, as a paused process does."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._transport.resume_reading()

    def vanish(self) -> None:
        """Drop the connection without a word, as a killed process does."""
        self._transport.abort()

    @property
    def _transport(self) -> asyncio.Transport:
        transport = self.connection._transport
        if transport is None:
            raise AssertionError("the connection is closed")
        return transport

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
        """Close the connection and wait for its end."""
        self.connection.close()
        await self.until_lost()

    async def until_lost(self, timeout: float = DEADLINE_SECONDS) -> SluiceError:
        """Wait for the end of the connection; return why it ended."""
        async with asyncio.timeout(timeout):
            await self._ended.wait()
        if self.lost is None:
            raise AssertionError("the connection ended without an error")
        return self.lost

    # ConnectionHandler
    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Return memory for a payload."""
        if length > len(self._payload):
            self._payload = bytearray(length + MAX_EVENT_BYTES)
        return memoryview(self._payload)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Keep a message until it is taken."""
        self._messages.append((message, bytes(self._payload[:payload_length])))
        self._wake()

    def writable(self) -> None:
        """Ignore it: a client never waits to write."""

    def connection_lost(self, error: SluiceError) -> None:
        """Wake everybody who waits."""
        self.lost = error
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def producer(
    address: Address, application_id: str = "app", config: TransportConfig | None = None
) -> Client:
    """Connect as a producer."""
    return await Client.connect(address, ROLE_PRODUCER, application_id, config)


async def consumer(
    address: Address,
    application_id: str = "app",
    config: TransportConfig | None = None,
    segment_size_bytes: int = SEGMENT_SIZE_BYTES,
) -> Client:
    """Connect as a consumer with segments."""
    return await Client.connect(address, ROLE_CONSUMER, application_id, config, segment_size_bytes)


async def driver(
    address: Address,
    application_id: str = "app",
    config: TransportConfig | None = None,
) -> Client:
    """Connect as a driver."""
    return await Client.connect(address, ROLE_DRIVER, application_id, config)


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
            if not isinstance(message, AddCredit):
                raise TypeError(message)
            credit += message.credit
        credit -= 1
        client.send(RegionData(partition, offset), data[offset : offset + size])


async def write_map_output(
    client: Client,
    shuffle_id: int,
    map_attempt_id: int,
    regions: Sequence[Sequence[bytes]],
    partition: int = 0,
    replicate: ReplicatePartition | ReplicateToRemote | None = None,
    to_remote: ReplicateToRemote | None = None,
) -> None:
    """Write and commit a map output whose regions cover all subpartitions."""
    subpartitions = max((len(parts) for parts in regions), default=1)
    client.send(OpenPartition(partition, shuffle_id, map_attempt_id, subpartitions))
    for copies in (replicate, to_remote):
        if copies is not None:
            client.send(copies)
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
    gate = open_gate(client, shuffle_id, sources, start, end, credit=credit)
    try:
        await gate.read_all()
    finally:
        if client.lost is None:
            await gate.close()
    return [bytes(part) for part in gate.content]


async def close_gate(client: Client, number: int) -> None:
    """Close a gate and wait until it is; what still comes for it is dropped."""
    client.send(CloseGate(number))
    while True:
        message, _ = await client.receive()
        if message == GateClosed(number):
            return


def open_gate(
    client: Client,
    shuffle_id: int,
    sources: Sequence[tuple[HelloAck, Sequence[int]]],
    start: int,
    end: int,
    *,
    credit: int = 4,
    first_number: int = 0,
) -> "Gate":
    """Send OpenGate; the channels are numbered from the one behind the gate's number."""
    channels = [
        GateChannel(
            first_number + 1 + index,
            ack.taskmanager_id,
            ack.advertised_host,
            ack.data_port,
            list(ids),
        )
        for index, (ack, ids) in enumerate(sources)
    ]
    client.send(OpenGate(first_number, shuffle_id, start, end, credit, channels))
    return Gate(client, first_number, len(channels), credit)


class Gate:
    """A gate that is read by hand; checks sequence numbers, credit and totals as it goes."""

    def __init__(self, client: Client, number: int, channels: int, credit: int) -> None:
        self.content = [bytearray() for _ in range(channels)]
        self.buffers = [0] * channels
        self.backlogs: list[list[int]] = [[] for _ in range(channels)]
        self.failures: dict[int, RemoteError] = {}
        self.order: list[int] = []
        """Index of the channel of each message with data, as they came."""
        self.open = channels
        self.number = number
        self._client = client
        self._sequence = [0] * channels
        self._credit = [credit] * channels

    async def read_all(self, *, raise_failures: bool = True) -> None:
        """Read all channels to their ends.

        Raises:
            RemoteError: The gate or a channel failed (the latter can be collected instead).
        """
        while self.open:
            await self.read_one(raise_failures=raise_failures)

    async def read_one(self, *, give_credit: int = 1, raise_failures: bool = True) -> bool:
        """Take one message; return whether it was data."""
        message, payload = await self._client.receive()
        if type(message) is ErrorResponse:
            error = RemoteError(message)
            if raise_failures or message.channel is None or message.channel == self.number:
                raise error
            self.failures[message.channel - self.number - 1] = error
            self.open -= 1
            return False
        if type(message) is not BufferResponse:
            return False
        index = message.channel - self.number - 1
        if message.sequence_number != self._sequence[index]:
            raise AssertionError(f"sequence: {message}, expected {self._sequence[index]}")
        self._sequence[index] += 1
        if message.data_type != DATA:
            totals = decode_event(payload)
            if totals != EndOfPartition(len(self.content[index]), self.buffers[index]):
                raise AssertionError(f"totals: {totals}")
            self.open -= 1
            return False
        # Several buffers may come in one message; each costs a credit.
        count = -(-len(payload) // self._client.connection.max_payload_bytes)
        self._credit[index] -= count
        if self._credit[index] < 0:
            raise AssertionError("data without credit")
        self.content[index] += payload
        self.buffers[index] += count
        self.backlogs[index].append(message.backlog)
        self.order.append(index)
        if give_credit:
            self.add_credit(index, give_credit * count)
        return True

    def add_credit(self, index: int, credit: int) -> None:
        """Announce credit of a channel."""
        self._credit[index] += credit
        self._client.send(AddCredit(self.number + 1 + index, credit))

    async def close(self) -> None:
        """Close the gate; what still comes for it is dropped, errors of its channels too."""
        await close_gate(self._client, self.number)
