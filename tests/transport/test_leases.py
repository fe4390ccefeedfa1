"""Leases: memory given to ``send`` is released once, and never before its bytes have left."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import DATA, BufferResponse, Ping, RegionData, encode
from sluice.transport.connection import Connection
from sluice.transport.errors import ConnectionLost
from sluice.transport.write_side import WriteSide
from tests.support.intercepting_transport import held
from tests.support.memory_supplier import MemorySupplier
from tests.support.peers import (
    BUFFERS,
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    Service,
    a_config,
    a_producer,
    a_service,
    end,
    pattern,
    small_send_buffer,
    start_sending,
    turns,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluice.transport.address import Address

EVENT = RegionData(0, 0)
HEAD = len(encode(EVENT))


async def wrong_buffers(service: Service, address: Address | Path, segments: int) -> int:
    """Send buffers to a peer that reads slowly; return how many arrived with other content."""
    with await RawPeer.connect(address, receive_buffer_bytes=4096) as peer:
        await peer.shake_hands()
        handler = await service.handler()
        small_send_buffer(handler.connection)
        supplier = MemorySupplier(segments, SEGMENT)
        start_sending(handler, supplier, BUFFERS)
        wrong = 0
        for number in range(BUFFERS):
            message, payload = await peer.read_frame(most=1500)
            assert message == BufferResponse(0, number, 0, DATA)
            wrong += payload != pattern(number)
            await turns(1)
        await until(lambda: supplier.lent == 0)  # the last ones too, without further sends
        assert handler.connection.leased_buffers == 0
        return wrong


@pytest.mark.parametrize("segments", [2, 5, 64])
@pytest.mark.parametrize("over", ["tcp", "unix"])
async def test_memory_may_be_reused_as_soon_as_it_is_released(
    tmp_path: Path, over: str, segments: int
) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path)) as service:
        address = service.address if over == "tcp" else path
        assert await wrong_buffers(service, address, segments) == 0


@pytest.mark.interpreted
@pytest.mark.asyncio(loop_factories=["uvloop"])  # asyncio on Python 3.11 copies and hides it
@pytest.mark.parametrize("early_bytes", [SEGMENT, 4 * SEGMENT])
async def test_control_the_test_above_sees_a_release_that_comes_too_early(
    monkeypatch: pytest.MonkeyPatch, early_bytes: int
) -> None:
    exact = WriteSide.release_drained

    def early(side: WriteSide) -> None:
        side.bytes_out += early_bytes
        exact(side)
        side.bytes_out -= early_bytes

    monkeypatch.setattr(WriteSide, "release_drained", early)
    async with a_service() as service:
        assert await wrong_buffers(service, service.address, 64) > 0


async def test_a_lease_ends_with_its_very_last_byte() -> None:
    async with a_service() as service:
        handler, transport = await held(service)
        released: list[str] = []
        handler.connection.send(EVENT, bytes(100), lambda: released.append("a"))
        await turns()
        transport.let_through(HEAD + 99)
        await turns()
        assert released == []
        assert handler.connection.leased_buffers == 1
        transport.let_through(1)
        assert released == ["a"]
        assert handler.connection.leased_buffers == 0
        transport.flow()
        await end(handler)


async def test_each_send_ends_the_leases_of_sent_bytes() -> None:
    async with a_service() as service:
        handler, transport = await held(service)
        released: list[int] = []

        def send(number: int) -> None:
            release = functools.partial(released.append, number)
            handler.connection.send(EVENT, bytes(100), release)

        send(0)
        send(1)
        transport.let_through(HEAD + 100)
        send(2)
        assert released == [0]
        await turns()
        assert released == [0]
        transport.let_through()
        await turns()
        assert released == [0, 1, 2]
        transport.flow()
        await end(handler)


async def test_the_last_small_rest_is_released_without_further_sends() -> None:
    """The rest is far below every watermark: only the drain watch ends its lease."""
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            small_send_buffer(connection)
            released = asyncio.Event()
            while connection.write_buffer_bytes == 0:  # until the kernel's buffer is full
                connection.send(BufferResponse(0, 0, 0, DATA), bytes(SEGMENT))
                await turns()
            connection.send(BufferResponse(0, 0, 0, DATA), memoryview(b"last"), released.set)
            await turns(10)
            assert not released.is_set()
            assert connection.leased_buffers == 1
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not released.is_set():
                    await peer.read(2000)
            assert connection.leased_buffers == 0
            assert connection.writable


async def test_a_release_that_sends_does_not_recurse() -> None:
    """A recycled segment wakes the next sender, whose send ends the next lease, and so on."""
    async with a_service() as service:
        handler, transport = await held(service)
        transport.flow()
        left = 5000

        def send_next() -> None:
            nonlocal left
            if left:
                left -= 1
                handler.connection.send(EVENT, b"x", send_next)

        for _ in range(3):
            send_next()
        await handler.until(lambda: True)
        await until(lambda: handler.connection.leased_buffers == 0)
        assert left == 0
        server = await service.handler()
        await server.until(lambda: len(server.received) == 5000)
        await end(handler)


def counting(counts: list[int], number: int) -> Callable[[], None]:
    def count() -> None:
        counts[number] += 1

    return count


@pytest.mark.parametrize("how", ["abort", "peer resets", "close deadline", "peer ends"])
async def test_every_lease_ends_exactly_once_when_the_connection_does(how: str) -> None:
    config = a_config(close_timeout_seconds=0.2)
    async with a_service(config) as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            small_send_buffer(connection)
            counts = [0] * 40
            for number in range(30):
                message = BufferResponse(0, number, 0, DATA)
                connection.send(message, bytes(SEGMENT), counting(counts, number))
            await turns()
            assert not connection.writable  # paused
            assert sum(counts) < 30
            if how == "abort":
                connection.abort(ConnectionLost("given up"))
            elif how == "peer resets":
                peer.reset()
            elif how == "close deadline":
                connection.close()
            else:
                peer.half_close()
            if how in ("abort", "close deadline"):
                for number in range(30, 35):  # after the end: released at once
                    connection.send(Ping(1), b"abc", counting(counts, number))
                    assert counts[number] == 1
            await handler.until_lost()
            for number in range(35, 40):
                connection.send(Ping(1), b"abc", counting(counts, number))
            skipped = [0] * 5 if how in ("peer resets", "peer ends") else [1] * 5
            assert counts == [1] * 30 + skipped + [1] * 5
            await turns()
            assert counts == [1] * 30 + skipped + [1] * 5
            assert connection.leased_buffers == 0
            assert len(handler.lost) == 1


async def test_a_lease_before_there_is_a_connection_ends_at_once() -> None:
    released: list[int] = []
    connection = Connection(a_config(), SEGMENT, RecordingHandler, hello=a_producer())
    connection.send(EVENT, b"abc", lambda: released.append(1))
    assert released == [1]
