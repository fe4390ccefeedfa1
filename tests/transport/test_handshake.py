"""The handshake from both sides, and every way to be refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import (
    ErrorCode,
    FrameTooLarge,
    ProtocolViolation,
    SluiceError,
    UnexpectedMessage,
)
from sluice.protocol.limits import MAX_HANDSHAKE_CONTROL_BYTES
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    AbortPartition,
    CloseRequest,
    ErrorResponse,
    Hello,
    HelloAck,
    Ping,
    Pong,
    RegionData,
    encode,
)
from sluice.transport.address import Address
from sluice.transport.errors import ConnectFailed, DeadlineExceeded
from sluice.transport.listener import Listener
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    a_config,
    a_hello,
    a_producer,
    a_service,
    an_ack,
    end,
    open_client,
)
from tests.support.raises_code import raises_code

if TYPE_CHECKING:
    from sluice.transport.connection import Connection


@pytest.mark.parametrize(
    ("role", "application"),
    [(ROLE_PEER, ""), (ROLE_PRODUCER, "app"), (ROLE_CONSUMER, "app"), (ROLE_DRIVER, "app")],
)
async def test_both_sides_learn_of_each_other(role: int, application: str) -> None:
    async with a_service() as service:
        client = await open_client(
            service.address, role=role, application_id=application, name="executor 7"
        )
        server = await service.handler()
        assert client.greeting == an_ack()
        assert server.greeting == a_hello(role=role, application_id=application, name="executor 7")
        assert server.connection.role == client.connection.role == role
        assert server.connection.application_id == application
        assert server.connection.name == "executor 7"
        assert client.connection.writable
        assert server.connection.writable
        assert not client.connection.closing
        await end(client)
        await server.until_lost()
        assert client.connection.closing
        assert server.connection.closing
        assert not server.connection.writable


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (a_hello(magic="slutch"), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(version_min=2, version_max=9), ErrorCode.UNSUPPORTED_VERSION),
        (a_hello(version_min=0, version_max=0), ErrorCode.UNSUPPORTED_VERSION),
        (a_hello(role=0), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(role=6), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(application_id="app"), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(role=ROLE_PRODUCER), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(flow_control=2), ErrorCode.MALFORMED_MESSAGE),
        (a_hello(segment_size_bytes=2 * SEGMENT), ErrorCode.SEGMENT_SIZE_MISMATCH),
        (a_hello(segment_size_bytes=0), ErrorCode.SEGMENT_SIZE_MISMATCH),
        (an_ack(), ErrorCode.UNEXPECTED_MESSAGE),
        (Ping(1), ErrorCode.UNEXPECTED_MESSAGE),
        (CloseRequest(), ErrorCode.UNEXPECTED_MESSAGE),
    ],
    ids=lambda value: getattr(value, "name", None) or type(value).__name__,
)
async def test_an_acceptor_says_why_it_refuses(
    hello: Hello | HelloAck | Ping, code: ErrorCode
) -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.send_message(hello)
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert (answer.channel, answer.code) == (None, code)
            assert await peer.read_to_end() == b""
        assert service.handlers == []


async def test_garbage_and_a_too_long_hello_are_refused() -> None:
    great = (MAX_HANDSHAKE_CONTROL_BYTES + 1).to_bytes(4, "big") + bytes(4)
    async with a_service() as service:
        for data in (b"GET / HTTP/1.1\r\n\r\n", great, bytes(8), b"\0\0\0\1\0\0\0\0\xc1"):
            with await RawPeer.connect(service.address) as peer:
                await peer.send(data)
                answer, _ = await peer.read_frame()
                assert isinstance(answer, ErrorResponse)
                assert answer.code in (ErrorCode.FRAME_TOO_LARGE, ErrorCode.MALFORMED_MESSAGE)
        assert service.handlers == []


async def test_a_second_hello_is_refused() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands()
            await peer.send_message(a_hello())
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.UNEXPECTED_MESSAGE
        assert isinstance(await (await service.handler()).until_lost(), UnexpectedMessage)


@pytest.mark.parametrize("drip", [False, True])
async def test_a_silent_or_slow_peer_is_given_up(drip: bool) -> None:
    async with a_service(a_config(handshake_timeout_seconds=0.2)) as service:
        with await RawPeer.connect(service.address) as peer:
            dripping = asyncio.ensure_future(_drip(peer, encode(a_hello()))) if drip else None
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.DEADLINE_EXCEEDED
            assert "0.2" in answer.limit
            assert await peer.read_to_end() == b""
            if dripping is not None:
                dripping.cancel()
                await asyncio.gather(dripping, return_exceptions=True)
        assert not service.listener.connections


async def _drip(peer: RawPeer, data: bytes) -> None:
    for byte in data:
        await peer.send(bytes((byte,)))
        await asyncio.sleep(0.02)  # the pace of a slow peer


async def _answering_server(answer: bytes) -> tuple[asyncio.Server, Address]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(len(encode(a_hello())))
            writer.write(answer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, Address("127.0.0.1", server.sockets[0].getsockname()[1])


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "kind", "code", "text"),
    [
        (encode(an_ack(version=2)), ProtocolViolation, ErrorCode.UNSUPPORTED_VERSION, "value 2"),
        (encode(an_ack(version=0)), ProtocolViolation, ErrorCode.UNSUPPORTED_VERSION, "value 0"),
        (encode(Pong(1)), UnexpectedMessage, ErrorCode.UNEXPECTED_MESSAGE, "Pong is not allowed"),
        (encode(a_hello()), UnexpectedMessage, ErrorCode.UNEXPECTED_MESSAGE, "Hello is not"),
        (HTTP, FrameTooLarge, ErrorCode.FRAME_TOO_LARGE, "The answer is HTTP"),
    ],
    ids=["version 2", "version 0", "pong", "hello", "http"],
)
async def test_a_client_refuses_a_wrong_answer(
    answer: bytes, kind: type[SluiceError], code: ErrorCode, text: str
) -> None:
    server, address = await _answering_server(answer)
    try:
        with raises_code(code, text, kind):
            await open_client(address)
    finally:
        server.close()


async def test_a_silent_server_is_given_up() -> None:
    server, address = await _answering_server(b"")
    try:
        with pytest.raises(ConnectFailed):
            await open_client(address, a_config(connect_timeout_seconds=0.2))
        with pytest.raises(DeadlineExceeded):
            await open_client(address, a_config(handshake_timeout_seconds=0.2))
    finally:
        server.close()


async def test_payloads_are_limited_to_the_smaller_segment() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands(
                role=ROLE_PRODUCER, application_id="app", segment_size_bytes=SEGMENT // 2
            )
            server = await service.handler()
            assert server.connection.max_payload_bytes == SEGMENT // 2
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands(role=ROLE_PRODUCER, application_id="app", segment_size_bytes=0)
            server = await service.handler(1)
            assert server.connection.max_payload_bytes == SEGMENT


async def test_a_handler_that_closes_at_once_gets_no_messages() -> None:
    made: list[RecordingHandler] = []

    def closing(connection: Connection, greeting: Hello | HelloAck) -> RecordingHandler:
        made.append(RecordingHandler(connection, greeting))
        connection.close()
        return made[0]

    listener = Listener(a_config(), SEGMENT, closing, an_ack)
    await listener.start()
    with await RawPeer.connect(Address("127.0.0.1", listener.port)) as peer:
        event = encode(RegionData(0, 0), 3) + b"abc"
        await peer.send(encode(a_producer()) + event + encode(AbortPartition(0)))
        assert await peer.read_to_end() == b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await listener.close()
    assert made[0].received == []
    assert made[0].supplier.lent == 0
    assert len(made[0].lost) == 1
