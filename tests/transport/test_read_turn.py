"""A connection with very many small messages leaves their turns to others, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from msgspec.structs import asdict

from sluice.protocol.framing import FrameDecoder
from sluice.protocol.schema import BeginRegion, Message, Ping, Pong, RegionData, encode
from sluice.transport.loop_share import (
    CONTENDED_DIVISOR,
    CONTENDED_TURNS,
    LONG_CONTROL_COST,
    MESSAGE_COST_BYTES,
    MIN_EXPECTED_BYTES,
    READS_A_TURN_BYTES,
    LoopShares,
    ReadTurn,
)
from tests.support.decoding import RecordingSink
from tests.support.peers import RawPeer, a_producer, a_service, turns, until

MANY_MESSAGES: Final = READS_A_TURN_BYTES // MESSAGE_COST_BYTES


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


def a_turn(decoder: FrameDecoder) -> ReadTurn:
    turn = ReadTurn(decoder, LoopShares())
    turn.join("app", 1)
    return turn


def read(turn: ReadTurn, decoder: FrameDecoder, transport: Transport, messages: int) -> None:
    """Read some Pings at once, of which each counts about as much as another."""
    receive(decoder, encode(Ping(0)) * messages)
    turn.after_read(transport, messages)


@pytest.mark.parametrize(
    ("messages", "goes_on"), [(MANY_MESSAGES - 1, True), (MANY_MESSAGES, False)]
)
async def test_a_read_of_many_messages_is_the_last_of_its_turn(decoder, messages, goes_on):
    transport, turn = Transport(), a_turn(decoder)
    for _ in range(3):
        read(turn, decoder, transport, messages)
        assert transport.reads is goes_on
        await turns()
        assert transport.reads


async def test_a_long_control_part_costs_the_turns_that_its_numbers_take(decoder):
    """A million lengths take as much time as 32 MB of payload."""
    transport, turn = Transport(), a_turn(decoder)
    message = encode(BeginRegion(0, 0, 0, [0] * 1_000_000, 0))
    receive(decoder, message)
    turn.after_read(transport, len(message))
    assert not transport.reads
    due = len(message) * LONG_CONTROL_COST // READS_A_TURN_BYTES
    assert due > 100
    await turns(due - 1)
    assert not transport.reads
    await until(lambda: transport.reads)


async def test_the_connections_of_an_application_have_one_share_together():
    shares = LoopShares()
    decoders = [FrameDecoder(RecordingSink(0), 64) for _ in range(3)]
    own, sibling, other = (ReadTurn(decoder, shares) for decoder in decoders)
    own.join("greedy", 1)
    sibling.join("greedy", 2)
    other.join("innocent", 3)
    transports = [Transport(), Transport(), Transport()]
    own.after_read(transports[0], READS_A_TURN_BYTES)
    sibling.after_read(transports[1], 1)
    other.after_read(transports[2], 1)
    assert [each.reads for each in transports] == [False, False, True]


async def test_connections_without_an_application_have_a_share_each():
    shares = LoopShares()
    decoders = [FrameDecoder(RecordingSink(0), 64) for _ in range(2)]
    peers = [ReadTurn(decoder, shares) for decoder in decoders]
    for number, peer in enumerate(peers):
        peer.join("", number)
    assert peers[0].share is not peers[1].share
    for peer in peers:
        peer.leave()
    assert len(shares) == 0


async def test_a_share_is_smaller_while_another_tenant_works():
    shares = LoopShares()
    transports = {name: Transport() for name in ("greedy", "innocent", "")}
    each = {}
    for number, name in enumerate(transports):
        each[name] = ReadTurn(FrameDecoder(RecordingSink(0), 64), shares)
        each[name].join(name, number)

    def reads_on(name: str, size: int) -> bool:
        each[name].after_read(transports[name], size)
        return transports[name].reads

    contended_bytes = READS_A_TURN_BYTES // CONTENDED_DIVISOR
    assert reads_on("greedy", contended_bytes)
    await turns()
    assert reads_on("", 1)  # another TaskManager
    assert reads_on("greedy", contended_bytes)
    await turns()
    assert reads_on("innocent", 1)
    await turns()
    assert not reads_on("greedy", contended_bytes)
    for _ in range(CONTENDED_TURNS):
        assert reads_on("", 1)  # counts the turns
        await turns(1)
    await turns()
    assert reads_on("greedy", contended_bytes)


async def test_as_many_connections_go_on_as_are_expected_to_use_up_the_share():
    shares = LoopShares()
    count = 2 * READS_A_TURN_BYTES // MIN_EXPECTED_BYTES
    connections = [
        (ReadTurn(FrameDecoder(RecordingSink(0), 64), shares), Transport()) for _ in range(count)
    ]
    for number, (turn, _) in enumerate(connections):
        turn.join("app", number)
    connections[0][0].after_read(None, READS_A_TURN_BYTES)  # the share is used up
    for turn, transport in connections:
        turn.after_read(transport, 0)
    assert not any(transport.reads for _, transport in connections)
    await turns(1)
    reading = [transport.reads for _, transport in connections]
    assert reading == [True] * (count // 2) + [False] * (count // 2)
    await turns(1)
    assert all(transport.reads for _, transport in connections)


async def test_a_connection_whose_reads_cost_much_goes_on_alone():
    shares = LoopShares()
    connections = [
        (ReadTurn(FrameDecoder(RecordingSink(0), 64), shares), Transport()) for _ in range(3)
    ]
    for number, (turn, transport) in enumerate(connections):
        turn.join("app", number)
        turn.after_read(transport, READS_A_TURN_BYTES)
    went_on = []
    for _ in range(10):
        await turns(1)
        went_on.append(sum(transport.reads for _, transport in connections))
    assert went_on[:2] == [0, 0]  # what was too much is paid back first
    assert went_on[2:5] == [1, 2, 3]


async def test_a_connection_that_waits_for_memory_does_not_read_on():
    class NoMemory(RecordingSink):
        def payload_buffer(self, message: Message, length: int) -> None:
            return None

    decoder = FrameDecoder(NoMemory(0), 64)
    decoder.handshake_done()
    transport, turn = Transport(), a_turn(decoder)
    receive(decoder, encode(Ping(0)) * MANY_MESSAGES + encode(RegionData(5, 0), 3))
    assert decoder.blocked
    turn.after_read(transport, 0)
    await turns()
    assert not transport.reads


async def test_a_connection_that_ends_does_not_read_on(decoder):
    transport, turn = Transport(), a_turn(decoder)
    read(turn, decoder, transport, MANY_MESSAGES)
    transport.is_over = True
    await turns()
    assert not transport.reads
    turn.after_read(None, 1)  # the transport is gone


async def test_every_one_of_very_many_pings_is_answered():
    count = 20 * MANY_MESSAGES
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands(**asdict(a_producer()))
            await peer.send(b"".join(encode(Ping(number)) for number in range(count)))
            for number in range(count):
                assert await peer.read_frame() == (Pong(number), b"")
