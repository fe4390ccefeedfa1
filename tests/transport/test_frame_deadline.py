"""The deadline of a frame: from its first byte on, except while this side does not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import ROLE_PRODUCER, ErrorResponse, Ping, Pong, RegionData, encode
from sluice.transport.address import Address
from sluice.transport.errors import DeadlineExceeded
from tests.support.memory_supplier import MemorySupplier
from tests.support.peers import (
    SEGMENT,
    RawPeer,
    RecordingHandler,
    Service,
    a_config,
    a_service,
    turns,
)
from tests.support.tcp_proxy import Fault, FaultProxy

DRIP_SECONDS = 0.02
PRODUCER: dict[str, Any] = {"role": ROLE_PRODUCER, "application_id": "app"}


async def opened(service: Service, peer: RawPeer) -> RecordingHandler:
    await peer.shake_hands(**PRODUCER)
    return await service.handler()


async def test_a_frame_that_arrives_byte_by_byte_is_given_up_after_the_deadline() -> None:
    config = a_config(frame_timeout_seconds=0.2, close_timeout_seconds=0.1)
    async with a_service(config) as service, FaultProxy(service.address) as proxy:
        with await RawPeer.connect(Address(proxy.host, proxy.port)) as peer:
            handler = await opened(service, peer)
            link = await proxy.connection()
            link.up.fault = Fault(delay_seconds=DRIP_SECONDS, chunk_bytes=1)
            await peer.send_message(RegionData(1, 0), bytes(200))
            answer, _ = await peer.read_frame()
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.DEADLINE_EXCEEDED
            assert answer.channel is None
            assert isinstance(await handler.until_lost(), DeadlineExceeded)
            assert handler.received == []
            assert handler.supplier.lent == 0


@pytest.mark.parametrize("begun", [1, 8, 9, 12, 13, 60])
async def test_a_frame_that_stops_after_its_first_bytes_is_given_up(begun: int) -> None:
    frame = encode(RegionData(1, 0), 50) + bytes(50)
    async with a_service(a_config(frame_timeout_seconds=0.1, close_timeout_seconds=0.1)) as service:
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            await peer.send(frame[:begun])
            assert isinstance(await handler.until_lost(), DeadlineExceeded)


async def test_a_connection_between_frames_may_be_silent() -> None:
    async with a_service(a_config(frame_timeout_seconds=0.1, close_timeout_seconds=0.1)) as service:
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            await peer.send(encode(Ping(1))[:5])
            await turns()
            await peer.send(encode(Ping(1))[5:])
            assert await peer.read_frame() == (Pong(1), b"")
            await asyncio.sleep(0.3)  # three deadlines; no event tells that nothing happened
            await peer.send_message(Ping(2))
            assert await peer.read_frame() == (Pong(2), b"")
            assert not handler.lost


async def test_time_in_which_this_side_does_not_read_does_not_count() -> None:
    async with a_service(a_config(frame_timeout_seconds=0.1, close_timeout_seconds=0.1)) as service:
        service.segments = 0
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            payload = bytes(range(256)) * (SEGMENT // 256)
            frame = encode(RegionData(1, 0), SEGMENT) + payload
            await peer.send(frame[:5])
            await turns(10)
            await peer.send(frame[5:100])
            await handler.until(lambda: handler.supplier.refused)
            await asyncio.sleep(0.35)  # three deadlines; no event tells that nothing happened
            assert not handler.lost
            handler.supplier = MemorySupplier(1, SEGMENT)
            handler.connection.resume_reading()
            await peer.send(frame[100:])
            await handler.until(lambda: handler.received)
            assert handler.received == [(RegionData(1, 0), payload)]


async def test_after_a_pause_the_rest_of_the_frame_has_a_deadline_again() -> None:
    async with a_service(a_config(frame_timeout_seconds=0.1, close_timeout_seconds=0.1)) as service:
        service.segments = 0
        with await RawPeer.connect(service.address) as peer:
            handler = await opened(service, peer)
            await peer.send(encode(RegionData(1, 0), SEGMENT))  # the payload never comes
            await handler.until(lambda: handler.supplier.refused)
            handler.supplier = MemorySupplier(1, SEGMENT)
            handler.connection.resume_reading()
            assert handler.supplier.lent == 1
            assert isinstance(await handler.until_lost(), DeadlineExceeded)
            assert handler.supplier.lent == 0
