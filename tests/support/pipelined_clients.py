"""Clients of pipelined partitions that speak the wire, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.events import EndOfPartition, decode_event, is_end_of_partition
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    DATA,
    PARTITION_PIPELINED_BOUNDED,
    PRIORITY_EVENT,
    AddCredit,
    BufferResponse,
    CloseGate,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    GateClosed,
    Message,
    OpenGate,
    OpenPipelinedPartition,
    PartitionFinished,
    PartitionOpened,
    PipelinedData,
)
from tests.support.wire_clients import close_gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.protocol.schema import HelloAck
    from tests.support.wire_clients import Client


class PipelinedWriter:
    """The producer of a pipelined partition; waits for credit before it sends."""

    def __init__(self, client: Client, number: int, subpartitions: int) -> None:
        self.client = client
        self.number = number
        self.subpartitions = subpartitions
        self.credit = 0
        self.total_bytes = 0
        self.heard: list[tuple[Message, bytes]] = []
        """Return the messages that came beside credit."""

    @classmethod
    async def open(
        cls,
        client: Client,
        map_attempt_id: int,
        subpartitions: int,
        *,
        shuffle_id: int = 1,
        number: int = 0,
        partition_type: int = PARTITION_PIPELINED_BOUNDED,
        consumption: int = CONSUME_WHEN_REGISTERED,
    ) -> PipelinedWriter:
        """Open a partition.

        Raises:
            RemoteError: It was refused.
        """
        writer = cls(client, number, subpartitions)
        client.send(
            OpenPipelinedPartition(
                number, shuffle_id, map_attempt_id, subpartitions, partition_type, consumption
            )
        )
        assert await client.expect(PartitionOpened) == PartitionOpened(number)
        return writer

    async def send(self, subpartition: int, payload: bytes, data_type: int = DATA) -> None:
        """Send a buffer or event as soon as there is credit, a priority event also on account."""
        while self.credit <= (-MAX_OVERDRAFT_EVENTS if data_type == PRIORITY_EVENT else 0):
            await self.hear()
        self.credit -= 1
        if data_type == DATA:
            self.total_bytes += len(payload)
        self.client.send(PipelinedData(self.number, subpartition, data_type), payload)

    async def hear(self, kind: type[Message] = AddCredit) -> tuple[Message, bytes]:
        """Wait for a message of a kind; an error is raised."""
        while True:
            message, payload = await self.client.receive()
            if type(message) is ErrorResponse:
                raise RemoteError(message)
            if type(message) is AddCredit:
                assert message.channel == self.number
                self.credit += message.credit
            else:
                self.heard.append((message, payload))
            if type(message) is kind:
                return message, payload

    async def finish(self) -> None:
        self.client.send(FinishPartition(self.number, self.total_bytes, 0))
        await self.hear(PartitionFinished)


class PipelinedReader:
    """A gate over subpartitions of pipelined partitions, read by hand."""

    def __init__(
        self,
        client: Client,
        sources: Sequence[tuple[HelloAck, int]],
        subpartition: int = 0,
        *,
        shuffle_id: int = 1,
        credit: int = 4,
        first_number: int = 0,
    ) -> None:
        self.client = client
        self.number = first_number
        self.received: list[list[tuple[int, bytes]]] = [[] for _ in sources]
        """Data type and payload of all that came, by channel; the end not included."""
        self.errors: dict[int, RemoteError] = {}
        self.open = set(range(len(sources)))
        self.give_credit = 1
        """Credit given back for each data buffer and event."""
        self.backlogs: list[int] = []
        self._sequence = [0] * len(sources)
        self._credit = [credit] * len(sources)
        channels = [
            GateChannel(
                first_number + 1 + index,
                ack.taskmanager_id,
                ack.advertised_host,
                ack.data_port,
                [attempt],
            )
            for index, (ack, attempt) in enumerate(sources)
        ]
        client.send(
            OpenGate(first_number, shuffle_id, subpartition, subpartition + 1, credit, channels)
        )

    def data(self, index: int = 0) -> bytes:
        return b"".join(payload for kind, payload in self.received[index] if kind == DATA)

    def kinds(self, index: int = 0) -> list[int]:
        return [kind for kind, _ in self.received[index]]

    def channel(self, index: int = 0) -> int:
        """The number of a channel on the wire."""
        return self.number + 1 + index

    def add_credit(self, credit: int, index: int = 0) -> None:
        self._credit[index] += credit
        self.client.send(AddCredit(self.channel(index), credit))

    async def read_until(self, messages: int, index: int = 0) -> None:
        """Read until a channel has brought so many buffers and events."""
        while len(self.received[index]) < messages:
            await self.read_one()

    async def read_all(self) -> None:
        """Read until every channel has ended or failed."""
        while self.open:
            await self.read_one()

    async def read_one(self) -> None:
        """Take one message; the error of a channel is kept, that of the gate is raised."""
        self._handle(*await self.client.receive())

    async def round_trip(self) -> None:
        """Read until the TaskManager has answered twice: what it had to say before has come too."""
        for stranger in (9001, 9002):
            self.client.send(CloseGate(stranger))
            while (received := await self.client.receive())[0] != GateClosed(stranger):
                self._handle(*received)

    def _handle(self, message: Message, payload: bytes) -> None:
        if type(message) is ErrorResponse:
            error = RemoteError(message)
            if message.channel in (None, self.number):
                raise error
            assert message.channel is not None
            self.errors[message.channel - self.number - 1] = error
            self.open.discard(message.channel - self.number - 1)
        elif type(message) is BufferResponse:
            self._take(message, payload)

    def _take(self, message: BufferResponse, payload: bytes) -> None:
        index = message.channel - self.number - 1
        assert index in self.open
        assert message.sequence_number == self._sequence[index]
        self._sequence[index] += 1
        if message.data_type != DATA and is_end_of_partition(payload):
            sizes = [len(data) for kind, data in self.received[index] if kind == DATA]
            assert decode_event(payload) == EndOfPartition(sum(sizes), len(sizes))
            self.open.discard(index)
            return
        self.received[index].append((message.data_type, payload))
        self._credit[index] -= 1
        if message.data_type == PRIORITY_EVENT:
            assert self._credit[index] >= -MAX_OVERDRAFT_EVENTS
        else:
            assert self._credit[index] >= 0, "sent without credit"
        if message.data_type == DATA:
            self.backlogs.append(message.backlog)
        if self.give_credit:
            self.add_credit(self.give_credit, index)

    async def close(self) -> None:
        """Close the gate; what still comes for it is dropped."""
        await close_gate(self.client, self.number)
