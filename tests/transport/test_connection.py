"""A connection reads payloads into supplied memory, pauses without any, and answers pings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sluice.transport.backlog as backlog_module
from sluice.protocol.errors import ErrorCode, MalformedMessage, SluiceError
from sluice.protocol.schema import (
    ROLE_PRODUCER,
    AbortPartition,
    ErrorResponse,
    Message,
    Ping,
    Pong,
    RegionData,
    encode,
)
from sluice.transport.errors import ConnectionLost
from tests.support.memory_supplier import MemorySupplier
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    Service,
    a_service,
    end,
    open_client,
    small_send_buffer,
    turns,
)

PRODUCER: dict[str, Any] = {"role": ROLE_PRODUCER, "application_id": "app"}


def payload_of(number: int, length: int = SEGMENT) -> bytes:
    return (number.to_bytes(4, "big") * (length // 4 + 1))[:length]


async def received(handler: RecordingHandler, count: int) -> None:
    await handler.until(lambda: len(handler.received) >= count)


async def asked_in_vain(handler: RecordingHandler) -> None:
    await handler.until(lambda: handler.supplier.refused)


async def opened(service: Service, peer: RawPeer) -> RecordingHandler:
    await peer.shake_hands(**PRODUCER)
    return await service.handler()


async def test_a_blocked_sink_stops_reading_and_loses_nothing() -> None:
    """Twelve full payloads through two segments, each given back only when the test says so."""
    async with a_service() as service:
        service.segments = 2
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            handler.keep_memory = True
            supplier = handler.supplier
            lengths = [SEGMENT, 1, SEGMENT - 1, 7, SEGMENT, 100] * 2
            stream = b""
            for number, length in enumerate(lengths):
                stream += encode(RegionData(number, 0), length) + payload_of(number, length)
                stream += encode(AbortPartition(number))
            sending = asyncio.ensure_future(peer.send(stream))
            for number in range(0, len(lengths), 2):
                expected = 2 * number + 3  # two payloads and the credit between (or after)
                await received(handler, expected)
                await handler.until(lambda: supplier.refused or len(handler.received) == 24)
                await turns()
                assert supplier.lent == 2
                assert len(handler.received) <= expected + 1
                transport = handler.connection._transport
                assert transport is not None
                if number + 2 < len(lengths):
                    assert not transport.is_reading()
                supplier.refused = 0
                for memory in handler.kept:
                    supplier.give(memory)
                handler.kept.clear()
                handler.connection.resume_reading()
            await sending
            await handler.until(lambda: len(handler.received) == 24)
            for number, length in enumerate(lengths):
                assert handler.received[2 * number] == (
                    RegionData(number, 0),
                    payload_of(number, length),
                )
                assert handler.received[2 * number + 1] == (AbortPartition(number), b"")
            assert supplier.lent == 0


@pytest.mark.parametrize("blocked", [False, True])
async def test_an_error_of_a_handler_closes_its_connection_only(
    blocked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for error, code in (
        (MalformedMessage("Bad", value=1), ErrorCode.MALFORMED_MESSAGE),
        (KeyError("a bug of ours"), ErrorCode.INTERNAL),
    ):
        async with a_service() as service:
            service.segments = 0 if blocked else 1
            other = await open_client(service.address, **PRODUCER)
            with await RawPeer.connect(service.address) as peer:
                await peer.shake_hands(**PRODUCER)
                handler = await service.handler(1)

                def refuse(message: Message, error: Exception = error) -> None:
                    raise error

                handler.on_message = refuse
                await peer.send_message(RegionData(1, 0), b"x")
                if blocked:
                    await asked_in_vain(handler)
                    handler.supplier = MemorySupplier(1, SEGMENT)
                    handler.connection.resume_reading()
                answer, _ = await peer.read_frame()
                assert isinstance(answer, ErrorResponse)
                assert answer.code == code
            assert isinstance(await handler.until_lost(), SluiceError)
            await _answers(other)
            await end(other)
    assert "a bug of ours" in caplog.text


async def _answers(client: RecordingHandler) -> None:
    before = client.connection.bytes_in
    client.connection.send(Ping(1))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while client.connection.bytes_in == before:  # noqa: ASYNC110 - Pongs have no event
            await asyncio.sleep(0)


async def test_pings_are_answered_in_order_among_messages() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            await peer.send(
                encode(Ping(0))
                + encode(RegionData(5, 0), 3)
                + b"abc"
                + encode(Ping(2**64 - 1))
                + encode(Pong(7))
            )
            assert await peer.read_frame() == (Pong(0), b"")
            assert await peer.read_frame() == (Pong(2**64 - 1), b"")
            await handler.until(lambda: handler.received)
            assert handler.received == [(RegionData(5, 0), b"abc")]  # the handler gets no ping


@pytest.mark.interpreted
async def test_a_peer_that_asks_and_never_reads_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_module, "MAX_UNREAD_PONGS", 2**32)
    monkeypatch.setattr(backlog_module, "MAX_UNREAD_ANSWERS_BYTES", 64 * 1024)
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands(**PRODUCER)
            handler = await service.handler()
            small_send_buffer(handler.connection)
            pings = encode(Ping(2**63)) * 1000
            peak = 0
            with pytest.raises(ConnectionError):  # noqa: PT012
                for _ in range(2000):
                    await peer.send(pings)
                    peak = max(peak, handler.connection.write_buffer_bytes)
            error = await handler.until_lost()
            assert isinstance(error, ConnectionLost)
            assert "does not read" in str(error)
            assert peak < 64 * 1024 + 2 * SEGMENT + len(pings)
