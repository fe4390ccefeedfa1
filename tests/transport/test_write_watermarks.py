"""Write watermarks: not writable above high, writable again at or below low, to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import Pong, RegionData, encode
from tests.support.intercepting_transport import held
from tests.support.peers import (
    SEGMENT,
    RawPeer,
    a_config,
    a_service,
    end,
    small_send_buffer,
    turns,
)

if TYPE_CHECKING:
    from sluice.transport.connection import Connection


EVENT = RegionData(0, 0)
HEAD = len(encode(EVENT))


def fill(connection: Connection, total: int) -> None:
    """Send messages that take so many bytes in all, the last of them with a payload."""
    while total > HEAD + SEGMENT:
        connection.send(EVENT, bytes(SEGMENT - HEAD))
        total -= SEGMENT
    connection.send(EVENT, bytes(total - HEAD))


@pytest.mark.parametrize(
    ("low", "high", "expected_low", "expected_high"),
    [
        (None, None, SEGMENT + 1, 2 * SEGMENT),
        (100, 1000, 100, 1000),
        (1000, 1000, 1000, 1000),
        (0, 1000, 0, 1000),
        (0, 1, 0, 1),
    ],
)
async def test_the_watermarks_are_exact(
    low: int | None, high: int | None, expected_low: int, expected_high: int
) -> None:
    config = a_config(write_low_watermark_bytes=low, write_high_watermark_bytes=high)
    async with a_service() as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        first = max(expected_high - HEAD, HEAD)
        fill(connection, first)
        if expected_high >= 2 * HEAD:
            assert connection.writable
            fill(connection, HEAD)
            assert connection.write_buffer_bytes == expected_high
            assert connection.writable  # at the high watermark
            fill(connection, HEAD)
        assert not connection.writable  # above it

        transport.let_through(connection.write_buffer_bytes - expected_low - 1)
        assert not connection.writable  # one byte above the low watermark
        assert handler.writable_calls == 0
        transport.let_through(1)
        assert connection.write_buffer_bytes == expected_low
        assert connection.writable  # at it
        assert handler.writable_calls == 1

        transport.let_through()
        assert handler.writable_calls == 1
        transport.flow()
        await end(handler)


@pytest.mark.parametrize("high", [1000, 8192])
async def test_the_drain_watch_does_not_move_the_edges(high: int) -> None:
    """While the loop's own limits are zero, writable follows the configured watermarks."""
    config = a_config(write_low_watermark_bytes=500, write_high_watermark_bytes=high)
    async with a_service() as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        released: list[int] = []
        connection.send(EVENT, memoryview(bytes(100)), lambda: released.append(1))
        await turns()
        assert transport.limits[-1] == (0, 0)  # the watch is on
        assert connection.writable
        fill(connection, high - connection.write_buffer_bytes)
        assert connection.writable
        fill(connection, HEAD)
        assert not connection.writable
        assert transport.limits[-1] == (500, high)  # and off: the low watermark counts
        transport.let_through(HEAD + 100)
        assert released == []  # no event has ended them yet
        transport.let_through(connection.write_buffer_bytes - 500)
        assert connection.writable
        assert released == [1]
        assert handler.writable_calls == 1
        transport.flow()
        await end(handler)


async def test_the_end_of_a_drain_watch_does_not_call_the_handler() -> None:
    async with a_service() as service:
        handler, transport = await held(service, a_config())
        released: list[int] = []
        for round_number in range(3):
            handler.connection.send(EVENT, bytes(100), lambda: released.append(1))
            await turns()
            transport.let_through()
            await turns()
            assert len(released) == round_number + 1
            assert transport.limits[-1] == (SEGMENT + 1, 2 * SEGMENT)
        assert handler.writable_calls == 0
        assert handler.connection.writable
        transport.flow()
        await end(handler)


@pytest.mark.parametrize(("low", "high"), [(None, None), (0, 1), (0, 20000), (20000, 20000)])
async def test_a_stopped_writer_goes_on_by_itself_on_a_real_socket(
    low: int | None, high: int | None
) -> None:
    """A writer that sends only while writable: all bytes arrive, the buffer stays bounded."""
    config = a_config(write_low_watermark_bytes=low, write_high_watermark_bytes=high)
    async with a_service(config) as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            small_send_buffer(connection)
            peak = sent = 0

            def send_on() -> None:
                nonlocal sent, peak
                while connection.writable and sent < 400:
                    connection.send(Pong(sent), sent.to_bytes(2, "big") * (SEGMENT // 2))
                    sent += 1
                    peak = max(peak, connection.write_buffer_bytes)

            handler.on_writable = send_on
            send_on()
            assert sent < 400
            for number in range(400):
                message, payload = await peer.read_frame()
                assert message == Pong(number)
                assert payload == number.to_bytes(2, "big") * (SEGMENT // 2)
            _, high_bytes = config.write_watermarks(SEGMENT)
            assert peak <= high_bytes + SEGMENT + 32
            assert handler.writable_calls > 1


async def test_writers_learn_that_the_connection_is_lost_while_paused() -> None:
    """Neither loop calls ``resume_writing`` then."""
    async with a_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            while connection.writable:
                fill(connection, SEGMENT)
            peer.reset()
        await handler.until_lost()
        assert handler.writable_calls == 0
        assert not connection.writable
        assert connection.write_buffer_bytes == 0
