"""A connection with very many small messages leaves their turns to others, and loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.codec import encode
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.messages import Message, Ping, Pong, RegionData
from sluice.transport.read_turn import MANY_MESSAGES, ReadTurn
from tests.support.decoding import RecordingSink
from tests.support.peers import RawPeer, a_producer, a_service, turns


class Transport(asyncio.Transport):
    """A transport that notes whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.is_over = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_over


def receive(decoder: FrameDecoder, data: bytes) -> None:
    while data:
        buffer = decoder.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        decoder.buffer_updated(count)
        data = data[count:]


@pytest.fixture
async def decoder() -> FrameDecoder:
    made = FrameDecoder(RecordingSink(0), 64)
    made.handshake_done()
    return made


@pytest.mark.parametrize(
    ("messages", "goes_on"), [(MANY_MESSAGES - 1, True), (MANY_MESSAGES, False)]
)
async def test_a_read_of_many_messages_is_the_last_of_its_turn(decoder, messages, goes_on):
    transport, turn = Transport(), ReadTurn(decoder)
    for _ in range(3):
        receive(decoder, encode(Ping(0)) * messages)
        turn.after_read(transport)
        assert transport.reads is goes_on
        await turns()
        assert transport.reads


async def test_reads_of_few_messages_go_on_however_many_there_are(decoder):
    transport, turn = Transport(), ReadTurn(decoder)
    for _ in range(2 * MANY_MESSAGES):
        receive(decoder, encode(Ping(0)))
        turn.after_read(transport)
        assert transport.reads


async def test_a_connection_that_waits_for_memory_does_not_read_on():
    class NoMemory(RecordingSink):
        def payload_buffer(self, message: Message, length: int) -> None:
            return None

    decoder = FrameDecoder(NoMemory(0), 64)
    decoder.handshake_done()
    transport, turn = Transport(), ReadTurn(decoder)
    receive(decoder, encode(Ping(0)) * MANY_MESSAGES + encode(RegionData(5, 0), 3))
    assert decoder.blocked
    turn.after_read(transport)
    await turns()
    assert not transport.reads


async def test_a_connection_that_ends_does_not_read_on(decoder):
    transport, turn = Transport(), ReadTurn(decoder)
    receive(decoder, encode(Ping(0)) * MANY_MESSAGES)
    turn.after_read(transport)
    transport.is_over = True
    await turns()
    assert not transport.reads
    turn.after_read(None)  # the transport is gone


async def test_every_one_of_very_many_pings_is_answered():
    count = 20 * MANY_MESSAGES
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands(**a_producer()._asdict())
            await peer.send(b"".join(encode(Ping(number)) for number in range(count)))
            for number in range(count):
                assert await peer.read_frame() == (Pong(number), b"")
