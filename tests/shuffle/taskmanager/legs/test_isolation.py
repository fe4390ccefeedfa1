"""Back pressure: a consumer that stops reading stops its own channels and nothing else."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.protocol.schema import GateOpened
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from tests.support.mini_cluster import DISK_ONLY, SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.wire_clients import open_gate, read_gate

LARGE = 14 * 1024 * 1024
"""More than the kernel's socket buffers take on their way."""

PATIENCE_SECONDS = 60

tiers = pytest.mark.parametrize("memory_tier_bytes", [2 * LARGE, DISK_ONLY], ids=["memory", "disk"])


@tiers
@pytest.mark.parametrize("stalled_at", [0, 1], ids=["local", "remote"])
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_consumer_that_stops_reading_stops_only_itself(
    tmp_path, memory_tier_bytes, stalled_at
):
    """Over the same pair of TaskManagers another gate finishes."""
    data = random.Random(1).randbytes(LARGE)
    small = [random.Random(2).randbytes(1 << 20), b"the end"]
    async with mini_cluster(
        tmp_path, memory_tier_bytes=memory_tier_bytes, network_segments=128
    ) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        await cluster.write(0, 2, [small])

        stalled = await cluster.consumer(stalled_at)
        gate = open_gate(stalled, 1, [(ack, [1])], 0, 1, credit=100_000)
        await stalled.expect(GateOpened)
        stalled.stop_reading()
        reader = cluster[stalled_at]
        (handler,) = (h for h in reader.handlers.values() if isinstance(h, ConsumerHandler))
        await eventually(lambda: not handler.connection.writable, "back pressure of the socket")

        async with asyncio.timeout(PATIENCE_SECONDS):
            for other_at in (0, 1):
                other = await cluster.consumer(other_at)
                assert await read_gate(other, 1, [(ack, [2])], 0, 2) == [b"".join(small)]
        # The memory held for the gate that does not read is bounded, however much it asks for.
        await eventually(lambda: not handler.connection.writable, "back pressure of the socket")
        assert handler.connection.write_buffer_bytes < 3 * SEGMENT_SIZE_BYTES
        for environment in cluster.environments:
            pool = environment.network_pool
            memory = environment.config.memory
            most = memory.exclusive_buffers_per_channel + memory.floating_buffers_per_gate
            assert pool.lent_segments <= most + memory.read_segments_per_connection

        stalled.resume_reading()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gate.read_all()
        assert gate.content == [data]
        await gate.close()


@tiers
async def test_a_gate_without_credit_stops_only_itself_on_one_connection(
    tmp_path, memory_tier_bytes
):
    """The channel without credit does not hold up those behind it."""
    data = random.Random(1).randbytes(100 * SEGMENT_SIZE_BYTES)
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, [[data, data]])
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            stalled = open_gate(client, 1, [(ack, [1])], 0, 1, credit=2)
            for _ in range(2):
                while not await stalled.read_one(give_credit=0):
                    pass
            other = open_gate(client, 1, [(ack, [1])], 1, 2, first_number=10)
            await other.read_all()
            assert other.content == [data]
            await other.close()
            # When the stalled gate goes on, pool after pool has buffers again.
            stalled.add_credit(0, 5)
            await stalled.read_all()
            assert stalled.content == [data]
            await stalled.close()


async def test_channels_of_one_connection_are_served_in_turn(tmp_path):
    """With credit and data, reads of two channels differ by at most 1."""
    data = random.Random(1).randbytes(64 * SEGMENT_SIZE_BYTES)
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        await cluster.write(0, 2, [[data]])
        client = await cluster.consumer(0)
        gate = open_gate(client, 1, [(ack, [1]), (ack, [2])], 0, 1, credit=100)
        await gate.read_all()
        for count in range(0, len(gate.order), 2):
            assert abs(gate.order[:count].count(0) - gate.order[:count].count(1)) <= 1
        await gate.close()


async def test_back_pressure_reaches_the_sending_side(tmp_path):
    """A consumer without credit fills its channel's buffers and no more is sent."""
    data = random.Random(1).randbytes(100 * SEGMENT_SIZE_BYTES)
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        client = await cluster.consumer(1)
        gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=1)
        memory = cluster[1].config.memory
        most = memory.exclusive_buffers_per_channel + memory.floating_buffers_per_gate
        while not await gate.read_one(give_credit=0):
            pass
        # One buffer went to the consumer; then the channel's own buffers fill up, and nothing more.
        # (It may be part of a group, whose memory is free with its last part.)
        await eventually(lambda: cluster[1].network_pool.lent_segments == most)
        await eventually(lambda: cluster[0].counters.peer_buffers_out >= most)
        assert cluster[1].counters.peer_buffers_in <= most + 1
        gate.add_credit(0, 1)
        await gate.read_all()
        assert gate.content == [data]
        await gate.close()
