"""Data through real sockets: it is read byte by byte as it was written, whatever its shape."""

from __future__ import annotations

import asyncio
import random
from itertools import permutations

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import BeginRegion, FinishPartition, OpenPartition, PartitionFinished
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, eventually, mini_cluster
from tests.support.wire_clients import open_gate, read_gate, write_map_output, write_region

SEGMENT = 4096

both_tiers = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)


def noise(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def shape(name: str) -> list[list[bytes]]:
    """Regions of a map output with five subpartitions, by name."""
    lengths = {
        "one byte": [[0, 0, 1, 0, 0]],
        "all empty": [[0, 0, 0, 0, 0]],
        "no region": [],
        "exactly a segment": [[SEGMENT, SEGMENT, SEGMENT, SEGMENT, SEGMENT]],
        "one more and one less": [[SEGMENT + 1, SEGMENT - 1, 1, 2 * SEGMENT + 1, 0]],
        "half a segment": [[SEGMENT // 2, SEGMENT // 2 - 1, SEGMENT // 2 + 1, 7, 9]],
        "three regions": [[100, 0, 5000, 3, 9], [0, 0, 0, 0, 1], [70_000, 1, 1, 1, 40_000]],
        "empty regions between": [[0, 0, 0, 0, 0], [5, 5, 5, 5, 5], [0, 0, 0, 0, 0]],
        "megabytes": [[1 << 20, 3, 1 << 20, 0, 12345]],
    }[name]
    return [
        [noise(10 * region + part, length) for part, length in enumerate(parts)]
        for region, parts in enumerate(lengths)
    ]


SHAPES = [
    "one byte",
    "all empty",
    "no region",
    "exactly a segment",
    "one more and one less",
    "half a segment",
    "three regions",
    "empty regions between",
    "megabytes",
]


def wanted(regions: list[list[bytes]], start: int, end: int) -> bytes:
    return b"".join(b"".join(parts[start:end]) for parts in regions)


@both_tiers
@pytest.mark.parametrize("name", SHAPES)
async def test_every_shape_locally_and_from_the_other_taskmanager(
    tmp_path, memory_tier_bytes, name
):
    regions = shape(name)
    subpartitions = 5 if regions else 1
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, regions)
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            got = await read_gate(client, 1, [(ack, [1])], 0, subpartitions)
            assert got == [wanted(regions, 0, subpartitions)]
            counters = cluster[reader].counters
            sent = {True: counters.consumer_bytes_out_local, False: 0}[reader == 0]
            assert sent + counters.consumer_bytes_out_remote == len(got[0])


@both_tiers
@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 2), (1, 4), (4, 5), (0, 5)])
async def test_ranges_of_subpartitions(tmp_path, memory_tier_bytes, start, end):
    regions = shape("three regions")
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, regions)
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            assert await read_gate(client, 1, [(ack, [1])], start, end) == [
                wanted(regions, start, end)
            ]


async def test_regions_of_a_map_attempt_that_cover_runs_of_subpartitions(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(3, 1, 9, 6))
        await write_region(client, 3, 0, [b"aa", b"b"], first=4)
        await write_region(client, 3, 1, [b"c", b"", b"dd"], first=0)
        await write_region(client, 3, 2, [b"e"], first=5)
        client.send(FinishPartition(3, 7, 3))
        await client.expect(PartitionFinished)
        consumer = await cluster.consumer(1)
        assert await read_gate(consumer, 1, [(client.ack, [9])], 0, 6) == [b"aabcdde"]
        assert await read_gate(consumer, 1, [(client.ack, [9])], 5, 6) == [b"be"]


@both_tiers
async def test_a_mixed_gate_reads_many_map_outputs_of_two_taskmanagers(tmp_path, memory_tier_bytes):
    lengths = random.Random(5)
    outputs = {
        attempt: [
            [noise(attempt, lengths.choice([0, 1, 900, 5000, 30_000])) for _ in range(4)]
            for _ in range(2)
        ]
        for attempt in range(6)
    }
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        acks = [await cluster.write(a % 2, a, regions) for a, regions in outputs.items()]
        sources = [(acks[0], [0, 2, 4]), (acks[1], [1, 3, 5])]
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            got = await read_gate(client, 1, sources, 1, 3)
            for content, (_, attempts) in zip(got, sources, strict=True):
                assert content in {
                    b"".join(wanted(outputs[a], 1, 3) for a in order)
                    for order in permutations(attempts)
                }


async def test_many_small_blocks_are_packed_densely(tmp_path):
    """300 map outputs of 50 small subpartitions are read in 5 buffers and not in 300."""
    outputs, size = 300, 61
    async with mini_cluster(tmp_path) as cluster:
        producer = await cluster.producer(0)
        for attempt in range(outputs):
            parts = [noise(attempt * 50 + part, size) for part in range(50)]
            await write_map_output(producer, 1, attempt, [parts])
        sources = [(producer.ack, list(range(outputs)))]
        for reader in (0, 1):
            gate = open_gate(await cluster.consumer(reader), 1, sources, 7, 8)
            await gate.read_all()
            await gate.close()
            blocks = [bytes(gate.content[0][n : n + size]) for n in range(0, outputs * size, size)]
            assert sorted(blocks) == sorted(noise(a * 50 + 7, size) for a in range(outputs))
            assert gate.buffers[0] == -(-outputs * size // SEGMENT)
            # The first buffer tells how many follow, and the count falls to 0.
            assert gate.backlogs[0][-1] == 0
            if reader == 0:
                assert gate.backlogs[0] == list(range(gate.buffers[0] - 1, -1, -1))


async def test_disk_reads_send_full_buffers_and_no_empty_one(tmp_path):
    async with mini_cluster(tmp_path, memory_tier_bytes=DISK_ONLY) as cluster:
        data = noise(1, 50 * SEGMENT + 5)
        ack = await cluster.write(0, 1, [[data]])
        for reader in (0, 1):
            gate = open_gate(await cluster.consumer(reader), 1, [(ack, [1])], 0, 1, credit=30)
            await gate.read_all()
            assert gate.content == [data]
            assert gate.buffers == [51]
            await gate.close()


async def test_many_gates_share_one_connection_of_each_leg(tmp_path):
    """Ten gates on one consumer connection and one peer connection, at the same time."""
    regions = [[noise(part, 20_000) for part in range(10)]]
    async with mini_cluster(tmp_path, network_segments=256) as cluster:
        ack = await cluster.write(0, 1, regions)
        client = await cluster.consumer(1)
        gates = [
            open_gate(client, 1, [(ack, [1])], part, part + 1, first_number=10 * part)
            for part in range(10)
        ]
        by_channel = {gate.number + 1: gate for gate in gates}
        most_peers = 0
        while any(gate.open for gate in gates):
            most_peers = max(most_peers, len(cluster[1].peers.clients()))
            # Every gate reads the same connection: hand the message to the one it is for.
            message, _ = client._messages[0] if client._messages else (None, b"")
            if message is None:
                client._messages.appendleft(await client.receive())
                continue
            gate = by_channel.get(getattr(message, "channel", -1), gates[0])
            await gate.read_one()
        assert most_peers == 1
        assert cluster[0].listener.accepted_total == 2  # the producer and one peer
        for gate, data in zip(gates, regions[0], strict=True):
            assert gate.content == [data]
            await gate.close()


@both_tiers
async def test_a_request_before_the_commit_is_served_by_it(tmp_path, memory_tier_bytes):
    """For a local and a remote channel."""
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        producer = await cluster.producer(0)
        gates = []
        readings = []
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            gate = open_gate(client, 1, [(producer.ack, [5, 6])], 0, 2)
            readings.append(asyncio.ensure_future(gate.read_all()))
            gates.append(gate)
        await eventually(lambda: cluster[0].partitions.waiting_requests == 2)
        await write_map_output(producer, 1, 5, [[b"five", b"5"]])
        assert cluster[0].partitions.waiting_requests == 2  # map attempt 6 is missing still
        await write_map_output(producer, 1, 6, [[b"six", b"6"]])
        for reading in readings:
            await reading
        for gate in gates:
            assert bytes(gate.content[0]) in (b"five5six6", b"six6five5")
            await gate.close()


async def test_a_map_output_that_is_never_committed_is_not_found_by_name(tmp_path):
    """After the deadline, with the channel and the map attempt."""
    async with mini_cluster(tmp_path, partition_request_timeout_seconds=0.2) as cluster:
        ack = await cluster.write(0, 1, [[b"here"]])
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            gate = open_gate(client, 1, [(ack, [1]), (ack, [1, 77])], 0, 1)
            await gate.read_all(raise_failures=False)
            assert gate.content[0] == b"here"
            failure = gate.failures[1]
            assert failure.code is ErrorCode.PARTITION_NOT_FOUND
            assert failure.map_attempt_id == 77
            assert "0.2 s" in str(failure)
            await gate.close()


async def test_a_range_beyond_the_map_output_fails_its_channel(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[b"a", b"b"]])
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            with pytest.raises(RemoteError, match="Range of subpartitions") as caught:
                await read_gate(client, 1, [(ack, [1])], 1, 3)
            assert caught.value.limit == "2"
            assert not client.connection.closing


async def test_a_gate_with_an_empty_range_is_refused(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[b"a", b"b"]])
        client = await cluster.consumer(0)
        with pytest.raises(RemoteError, match="empty"):
            await read_gate(client, 1, [(ack, [1])], 1, 1)
        assert await read_gate(client, 1, [(ack, [1])], 1, 2) == [b"b"]


async def test_gates_work_without_floating_buffers(tmp_path):
    async with mini_cluster(tmp_path, floating_buffers_per_gate=0) as cluster:
        data = noise(1, 100_000)
        ack = await cluster.write(0, 1, [[data]])
        assert await read_gate(await cluster.consumer(1), 1, [(ack, [1])], 0, 1) == [data]


async def test_credit_bounds_the_buffers_sent(tmp_path):
    """Credit 3 brings exactly three buffers; the end needs no credit."""
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[noise(1, 5 * SEGMENT)]])
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=3)
            for _ in range(3):
                while not await gate.read_one(give_credit=0):
                    pass
            with pytest.raises(TimeoutError):
                await client.receive(timeout=0.1)
            gate.add_credit(0, 2)
            await gate.read_all()  # two buffers and the end
            assert gate.buffers == [5]
            await gate.close()


async def test_begin_region_and_finish_in_one_go(tmp_path):
    """An empty output may be sent without waiting for any answer."""
    async with mini_cluster(tmp_path) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 1, 3))
        client.send(BeginRegion(0, 0, 0, [0, 0, 0], 0))
        client.send(FinishPartition(0, 0, 1))
        await client.expect(PartitionFinished)
        assert await read_gate(await cluster.consumer(1), 1, [(client.ack, [1])], 0, 3) == [b""]
