"""Back pressure that the socket between two TaskManagers carries."""

from __future__ import annotations

import asyncio
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET

from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord
from tests.shuffle.model.rig import (
    PATIENCE_SECONDS,
    POOL_2,
    Pipe,
    full_record,
    pipe,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES

MUCH_CREDIT = 1000
STUCK_SECONDS = 0.3
"""A producer that waits this long for a buffer counts as stopped; a turn takes below 1 ms."""


async def write_until_stuck(between: Pipe, held_2: int) -> tuple[int, asyncio.Task[None]]:
    """Write full records until the producer waits for a buffer that does not come.

    Args:
        held_2: Buffers that the gate holds by then.
    """
    written = 0
    while True:
        pending = between.writer.emit(full_record(written))
        written += 1
        if pending is None:
            continue
        producing = asyncio.ensure_future(pending)
        done: set[asyncio.Task[None]] = set()
        while not done:
            done, _ = await asyncio.wait([producing], timeout=STUCK_SECONDS)
            if not done and not between.connection.writable and between.held_2 == held_2:
                return written, producing


async def read_all(between: Pipe, written: int) -> None:
    """Read everything, and check that the back pressure ends."""
    for number in range(written):
        assert await between.reader.next() == ChannelRecord(0, full_record(number))
    await between.until(held_1=0, held_2=0)
    await between.writer.finish()
    assert isinstance(await between.reader.next(), ChannelEvent)


def shrink_socket_buffers(between: Pipe) -> asyncio.Transport:
    """Make the kernel buffer little; return the receiving transport."""
    (client,) = between.cluster[1].peers.clients()
    receiving, sending = client.connection._transport, between.connection._transport
    assert receiving is not None
    assert sending is not None
    small = SEGMENT_SIZE_BYTES
    receiving.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, small)
    sending.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, small)
    return receiving


async def test_without_credit_the_socket_alone_carries_back_pressure(tmp_path):
    """Watermark mode: a receiver without memory does not read, and the sender fills up."""
    segments = 3
    async with (
        pipe(tmp_path, segments, flow_control="watermark") as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        shrink_socket_buffers(between)
        written, producing = await write_until_stuck(between, POOL_2)
        assert between.held_1 == segments
        assert written > segments + POOL_2 + 1, "some are in the kernel"
        await read_all(between, written)
        await producing


async def test_the_socket_carries_back_pressure_beside_credit(tmp_path):
    """There is credit, but the network takes no more: the producer stops."""
    segments = 3
    async with (
        pipe(
            tmp_path, segments, exclusive_buffers_per_channel=MUCH_CREDIT, network_segments=2048
        ) as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        receiving = shrink_socket_buffers(between)
        receiving.pause_reading()
        written, producing = await write_until_stuck(between, 0)
        assert written < MUCH_CREDIT
        assert between.credit > 0
        assert between.held_1 == segments
        receiving.resume_reading()
        await producing
        await read_all(between, written)
