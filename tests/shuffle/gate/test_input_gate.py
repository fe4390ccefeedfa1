"""Reading through a gate: in turn, without polling, with failures that stay."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import DATA
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.transport.address import Address
from tests.support.gates import gate_of, source
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, SEGMENT_SIZE_BYTES, mini_cluster
from tests.support.wire_clients import write_map_output

PIECES = 20
PARTS = [random.Random(n).randbytes(PIECES * SEGMENT_SIZE_BYTES) for n in range(4)]


async def read_all(gate):
    content = [bytearray() for _ in gate.channels]
    order = []
    while (taken := await gate.next_buffer_or_event()) is not None:
        if taken.buffer.data_type == DATA:
            content[taken.channel_index] += taken.buffer.payload
            order.append(taken.channel_index)
        if taken.buffer.release is not None:
            taken.buffer.release()
    return [bytes(part) for part in content], order


@pytest.mark.parametrize("memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
async def test_local_and_remote_channels_through_one_gate(tmp_path, memory_tier_bytes):
    """The consumer awaits data; the gate ends when all its channels have ended."""
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        for attempt, part in enumerate(PARTS):
            await cluster.write(attempt % 2, attempt, [[part]])
        async with gate_of(cluster[0]) as gate:
            for attempt in range(len(PARTS)):
                gate.add_channel(source(cluster[attempt % 2], attempt))
            assert [channel.is_local for channel in gate.channels] == [True, False, True, False]
            content, _ = await read_all(gate)
            assert content == PARTS
            for channel in gate.channels:
                assert channel.bytes_in == len(PARTS[0])
            assert await gate.next_buffer_or_event() is None


async def test_a_channel_whose_producer_is_not_known_yet(tmp_path):
    """The reader waits, without polling, until the map output is committed."""
    async with mini_cluster(tmp_path, 1) as cluster, gate_of(cluster[0]) as gate:
        gate.add_channel(source(cluster[0], 5))
        reading = asyncio.ensure_future(read_all(gate))
        producer = await cluster.producer(0)
        await write_map_output(producer, 1, 5, [[b"late"]])
        content, _ = await reading
        assert content == [b"late"]


async def test_cancelling_a_reader_takes_nothing(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        producer = await cluster.producer(0)
        async with gate_of(cluster[0]) as gate:
            gate.add_channel(source(cluster[0], 1))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await gate.next_buffer_or_event()
            await write_map_output(producer, 1, 1, [[b"x"]])
            content, _ = await read_all(gate)
            assert content == [b"x"]


async def test_a_gate_is_released_while_its_channels_connect(tmp_path):
    """Release races with connecting; the mini cluster checks that nothing is left."""
    async with mini_cluster(tmp_path) as cluster:
        await cluster.write(1, 1, [[PARTS[0]]])
        for turns in range(24):
            async with gate_of(cluster[0]) as gate:
                gate.add_channel(source(cluster[1], 1))
                gate.add_channel(source(cluster[0], 1))
                for _ in range(turns):
                    await asyncio.sleep(0)


async def test_an_impossible_range_and_address(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        with pytest.raises(SluiceError) as caught:
            async with gate_of(cluster[0], 3, 3):
                pass
        assert caught.value.code is ErrorCode.MALFORMED_MESSAGE
        async with gate_of(cluster[0]) as gate:
            gate.add_channel(ChannelSource("other", Address("/some/socket", 0), [1]))
            with pytest.raises(SluiceError, match="no TCP port"):
                await gate.next_buffer_or_event()
