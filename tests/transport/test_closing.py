"""How connections end: flushed, aborted, told why; by us, by the peer, by the network."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, UnexpectedMessage
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import (
    DATA,
    ROLE_PRODUCER,
    BufferResponse,
    CloseRequest,
    ErrorResponse,
    Ping,
    RegionData,
    encode,
)
from sluice.transport.address import Address
from sluice.transport.errors import ConnectionLost
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    a_config,
    a_service,
    open_client,
    small_send_buffer,
    turns,
)
from tests.support.tcp_proxy import FaultProxy


async def test_close_flushes_what_was_sent() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            small_send_buffer(connection)
            for number in range(50):
                connection.send(BufferResponse(0, number, 0, DATA), bytes(SEGMENT))
            connection.close()
            connection.close()
            assert connection.closing
            assert not connection.writable
            connection.send(Ping(1))  # too late
            for number in range(50):
                message, _ = await peer.read_frame()
                assert message == BufferResponse(0, number, 0, DATA)
            assert await peer.read_to_end() == b""
        error = await handler.until_lost()
        assert type(error) is ConnectionLost
        assert handler.writable_calls == 0


async def test_a_peer_that_half_closes_and_reads_nothing_is_given_up_too() -> None:
    async with a_service(a_config(close_timeout_seconds=0.2)) as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            small_send_buffer(handler.connection)
            for number in range(50):
                handler.connection.send(BufferResponse(0, number, 0, DATA), bytes(SEGMENT))
            peer.half_close()
            await handler.until_lost()


async def test_a_peer_that_half_closes_gets_what_was_sent() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            small_send_buffer(handler.connection)
            for number in range(50):
                handler.connection.send(BufferResponse(0, number, 0, DATA), bytes(SEGMENT))
            peer.half_close()
            for _ in range(50):
                await peer.read_frame()
            assert await peer.read_to_end() == b""


@pytest.mark.parametrize("paused", [False, True])
async def test_abort_gives_its_error_to_the_handler(paused: bool) -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            while paused and handler.connection.writable:
                handler.connection.send(BufferResponse(0, 0, 0, DATA), bytes(SEGMENT))
            error = ConnectionLost("given up")
            handler.connection.abort(error)
            handler.connection.abort(ConnectionLost("again"))
            assert handler.connection.closing
            assert await handler.until_lost() is error
            await turns()
            assert handler.lost == [error]


async def test_fail_sends_its_error_to_the_peer_and_the_handler() -> None:
    async with a_service() as service:
        client = await open_client(service.address)
        handler = await service.handler()
        error = UnexpectedMessage("Not like this", value=7, limit=3, remedy="Do otherwise")
        handler.connection.fail(error)
        handler.connection.fail(UnexpectedMessage("again"))
        assert await handler.until_lost() is error
        remote = await client.until_lost()
        assert isinstance(remote, RemoteError)
        assert remote.code == ErrorCode.UNEXPECTED_MESSAGE
        assert (remote.message, remote.value, remote.limit) == (
            "Not like this. Do otherwise",
            "7",
            "3",
        )
        assert client.received == []


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_peer_that_still_sends_gets_the_error(blocked: bool) -> None:
    """A close with unread bytes would send a reset, and the peer's next write would fail first."""
    async with a_service() as service:
        service.segments = 0 if blocked else 1
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands(role=ROLE_PRODUCER, application_id="app")
            handler = await service.handler()
            await peer.send_message(RegionData(0, 0), bytes(SEGMENT))
            await handler.until(lambda: handler.supplier.refused or handler.received)
            error = UnexpectedMessage("Not like this")
            handler.connection.fail(error)
            assert handler.connection.closing
            await turns(10)
            for number in range(200):
                await peer.send_message(RegionData(0, number), bytes(SEGMENT))
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.UNEXPECTED_MESSAGE
            assert await peer.read_to_end() == b""
        assert await handler.until_lost() is error
        assert len(handler.received) == (0 if blocked else 1)


@pytest.mark.parametrize("closes", [False, True])
async def test_a_peer_that_stays_after_an_error_is_given_up(closes: bool) -> None:
    """After the close deadline, or at once if this side closes."""
    seconds = PATIENCE_SECONDS * 2 if closes else 0.1
    async with a_service(a_config(close_timeout_seconds=seconds)) as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            handler.connection.fail(UnexpectedMessage("Not like this"))
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert await peer.read_to_end() == b""
            if closes:
                handler.connection.close()
            await handler.until_lost()


async def test_an_error_of_one_channel_goes_to_the_handler() -> None:
    async with a_service() as service:
        client = await open_client(service.address)
        handler = await service.handler()
        message = error_response(5, UnexpectedMessage("Only channel 5"))
        handler.connection.send(message)
        await client.until(lambda: client.received)
        assert client.received == [(message, b"")]
        assert not client.lost
        client.connection.close()


async def test_messages_behind_the_one_that_closes_are_dropped() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            handler.on_message = lambda message: handler.connection.close()
            await peer.send(encode(CloseRequest()) * 3 + encode(Ping(1)))
            assert await peer.read_to_end() == b""
            await handler.until_lost()
            assert handler.received == [(CloseRequest(), b"")]


async def test_a_link_that_stalls_holds_nothing_up_when_it_flows_again() -> None:
    async with (
        a_service() as service,
        FaultProxy(service.address, socket_buffer_bytes=4096) as proxy,
    ):
        client = await open_client(Address(proxy.host, proxy.port))
        handler = await service.handler()
        small_send_buffer(handler.connection)
        link = await proxy.connection()
        link.down.stop_reading()
        sent = 0
        while handler.connection.writable or sent < 50:
            handler.connection.send(BufferResponse(0, sent, 0, DATA), bytes(SEGMENT))
            sent += 1
            await turns(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await link.down.stalled.wait()
        link.down.resume_reading()
        await client.until(lambda: len(client.received) == sent)
        await handler.until(lambda: handler.writable_calls == 1)
        client.connection.close()
        await handler.until_lost()


async def test_a_handler_that_fails_in_connection_lost_does_not_hang_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context.get("exception")))
    async with a_service() as service:
        client = await open_client(service.address)
        handler = await service.handler()
        bug = KeyError("a bug of ours")

        def fail(error: object) -> None:
            raise bug

        monkeypatch.setattr(handler, "connection_lost", fail)
        client.connection.close()
        await client.until_lost()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.listener.close()
    assert bug in raised


async def test_the_error_reaches_a_peer_that_is_still_sending() -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands()
            bad = encode(BufferResponse(0, 0, 0, DATA), 4) + b"abcd"
            sending = asyncio.ensure_future(peer.send(bad + encode(Ping(1)) * 500_000))
            await asyncio.gather(sending, return_exceptions=True)
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.UNEXPECTED_MESSAGE
