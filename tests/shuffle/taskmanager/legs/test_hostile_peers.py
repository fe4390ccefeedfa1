"""Peers that stall: they never read, send a byte at a time, or connect and stay silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

import sluice.transport.backlog as backlog_module
from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    AddCredit,
    BeginRegion,
    OpenPartition,
    Ping,
    encode,
)
from tests.support.bad_input import DATA, beside_a_good_client, gate_to
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.raw_client import RawClient, acknowledged
from tests.support.wire_clients import read_gate, write_map_output

pytestmark = pytest.mark.slow  # all of it together

SILENT = 1000
FRAME_TIMEOUT_SECONDS = 0.3
BYTE_PAUSE_SECONDS = 0.02


@pytest.mark.interpreted
async def test_a_client_that_never_reads_its_answers_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(backlog_module, "MAX_UNREAD_PONGS", 2**32)
    monkeypatch.setattr(backlog_module, "MAX_UNREAD_ANSWERS_BYTES", 256 * 1024)
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as deaf:
        acknowledged(await deaf.greet(ROLE_PRODUCER))
        deaf._writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = [c for c in cluster[0].listener.connections if c.name == "raw client"]
        # The kernel would take megabytes of answers first. The receiver's buffer stays as it is:
        # TCP can stall in both directions when an open window shrinks.
        assert connection._transport is not None
        sender = connection._transport.get_extra_info("socket")
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        pings = encode(Ping(2**64 - 1)) * 10_000
        async with asyncio.timeout(20):
            while not connection.closing:
                deaf.send_bytes(pings)
                with contextlib.suppress(ConnectionError):
                    await deaf._writer.drain()
        await eventually(lambda: connection not in cluster[0].listener.connections)


async def test_a_consumer_that_never_reads_costs_its_own_buffers_only(tmp_path):
    """Data waits for it within the watermarks; another consumer reads the same map output."""
    async with mini_cluster(tmp_path, 1) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        deaf = await RawClient.connect(cluster[0].address)
        acknowledged(await deaf.greet(ROLE_CONSUMER))
        deaf._writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = [c for c in cluster[0].listener.connections if c.name == "raw client"]
        for number in range(200):
            deaf.send_message(gate_to(ack, 1000 + number, number))
            deaf.send_message(AddCredit(number, 1000))
        await eventually(lambda: not connection.writable)
        _, high = cluster[0]._transport.write_watermarks(
            cluster[0].config.memory.segment_size_bytes
        )
        assert connection.write_buffer_bytes <= high + connection.large_payload_bytes + 10_000
        good = await cluster.consumer(0)
        assert await read_gate(good, 1, [(ack, [1])], 0, 1) == [DATA]
        await deaf.close()


@pytest.mark.parametrize("kind", ["control", "payload", "hello"])
async def test_a_byte_at_a_time_is_too_slow(tmp_path, kind):
    """Progress within a frame does not move its deadline."""
    async with (
        mini_cluster(
            tmp_path,
            1,
            frame_timeout_seconds=FRAME_TIMEOUT_SECONDS,
            handshake_timeout_seconds=FRAME_TIMEOUT_SECONDS if kind == "hello" else 10,
        ) as cluster,
        beside_a_good_client(cluster) as slow,
    ):
        if kind == "hello":
            frame = bytes([0, 0, 1, 0]) + bytes(300)
        else:
            acknowledged(await slow.greet(ROLE_PRODUCER))
            frame = encode(BeginRegion(0, 0, 0, [1] * 1000, 0))
        if kind == "payload":
            slow.send_message(OpenPartition(0, 1, 7, 1))
            slow.send_message(BeginRegion(0, 0, 0, [1000], 0))
            await slow.expect(AddCredit)
            frame = b"\0\0\0\4" + (1000).to_bytes(4) + b"\x93\x18\0\0" + bytes(1000)

        async def drip() -> None:
            for byte in frame:
                slow.send_bytes(bytes([byte]))
                await asyncio.sleep(BYTE_PAUSE_SECONDS)

        dripping = asyncio.create_task(drip())
        try:
            error = await slow.until_refused()
        finally:
            dripping.cancel()
        assert error is not None
        assert error.code == ErrorCode.DEADLINE_EXCEEDED
        assert error.limit == f"{FRAME_TIMEOUT_SECONDS} s"


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_thousand_silent_connections(tmp_path):
    """Some are refused at once, some at the handshake's deadline; an active client is served."""
    limit = SILENT // 10
    async with mini_cluster(
        tmp_path, 1, handshake_timeout_seconds=1.5, max_connections=limit
    ) as cluster:
        consumer = await cluster.consumer(0)
        producer = await cluster.producer(0)
        silent = [await RawClient.connect(cluster[0].address) for _ in range(SILENT)]
        ack = producer.ack
        await write_map_output(producer, 1, 1, [[DATA]])
        assert await read_gate(consumer, 1, [(ack, [1])], 0, 1) == [DATA]
        errors = await asyncio.gather(*(client.until_refused() for client in silent))
        codes = [error.code for error in errors if error is not None]
        assert set(codes) == {ErrorCode.TOO_MANY_CONNECTIONS, ErrorCode.DEADLINE_EXCEEDED}
        assert len(codes) == SILENT
        late = await cluster.consumer(0)
        assert await read_gate(late, 1, [(ack, [1])], 0, 1) == [DATA]
        for client in silent:
            await client.close()
