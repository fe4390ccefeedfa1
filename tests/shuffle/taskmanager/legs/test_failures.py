"""A failure has bounded effects: of gates, consumers, producers, peers and applications."""

from __future__ import annotations

import random
import sys

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AddCredit,
    ApplicationReleased,
    BeginRegion,
    GateOpened,
    OpenPartition,
    RegionData,
    ReleaseApplication,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.names import ShuffleKey
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    eventually,
    gates,
    mini_cluster,
    network_leftovers,
    storage_leftovers,
    until_clean,
)
from tests.support.tcp_proxy import Cut, Fault, FaultProxy
from tests.support.wire_clients import open_gate, producer, read_gate, write_map_output

DATA = random.Random(7).randbytes(40 * SEGMENT_SIZE_BYTES)

both_tiers = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)
both_sides = pytest.mark.parametrize("reader", [0, 1], ids=["local", "remote"])


@both_tiers
@both_sides
async def test_a_gate_is_closed_in_the_middle(tmp_path, memory_tier_bytes, reader):
    """The partition survives, the connection serves the next gate."""
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(reader)
        for _ in range(3):
            gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=8)
            while not await gate.read_one():
                pass
            await gate.close()
            assert not gates(cluster[reader])
        assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [DATA]


@both_tiers
@both_sides
async def test_a_gate_is_closed_before_it_has_opened_its_channels(
    tmp_path, memory_tier_bytes, reader
):
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(reader)
        gate = open_gate(client, 1, [(ack, [1]), (ack, [99])], 0, 1)
        await gate.close()
        assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [DATA]


@both_tiers
@both_sides
async def test_a_consumer_vanishes_in_the_middle(tmp_path, memory_tier_bytes, reader):
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(reader)
        gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=8)
        while not await gate.read_one(give_credit=0):
            pass
        client.vanish()
        for environment in cluster.environments:
            await until_clean(environment, network_leftovers)


@both_tiers
async def test_a_producer_vanishes_in_the_middle_of_a_region(tmp_path, memory_tier_bytes):
    """Its extents are free again, and the map output is never found."""
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=memory_tier_bytes, partition_request_timeout_seconds=0.1
    ) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 1, 1))
        client.send(BeginRegion(0, 0, 0, [len(DATA)], crc32c(DATA)))
        await client.expect(AddCredit)
        client.send(RegionData(0, 0), DATA[:SEGMENT_SIZE_BYTES])
        await eventually(lambda: cluster[0].counters.producer_buffers_in == 1)
        assert storage_leftovers(cluster[0])
        client.vanish()
        await until_clean(cluster[0], storage_leftovers)
        assert cluster[0].counters.map_outputs_aborted == 1
        with pytest.raises(RemoteError) as caught:
            await read_gate(await cluster.consumer(0), 1, [(client.ack, [1])], 0, 1)
        assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND


@both_tiers
async def test_a_producer_vanishes_in_the_middle_of_a_payload(tmp_path, memory_tier_bytes):
    async with (
        mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster,
        FaultProxy(cluster[0].address) as proxy,
    ):
        environment = cluster[0]
        sender = await producer(environment.address._replace(port=proxy.port))
        sender.send(OpenPartition(0, 1, 1, 1))
        sender.send(BeginRegion(0, 0, 0, [len(DATA)], crc32c(DATA)))
        await sender.expect(AddCredit)
        up = (await proxy.connection()).up
        up.fault = Fault(cut_after_bytes=up.passed_bytes + 1000, cut=Cut.RESET)
        sender.send(RegionData(0, 0), DATA[:SEGMENT_SIZE_BYTES])
        await sender.until_lost()
        await until_clean(environment, storage_leftovers)
        await until_clean(environment, network_leftovers)


async def test_an_application_without_clients_expires(tmp_path):
    """By deadline; while one client is left, nothing is dropped."""
    async with mini_cluster(tmp_path, 1, application_expiry_seconds=0.3) as cluster:
        environment = cluster[0]
        driver = await cluster.driver(0)
        await cluster.write(0, 1, [[DATA]])
        await eventually(lambda: environment.applications.snapshot() == [("app", 1, None)])
        driver.vanish()
        await eventually(lambda: environment.applications.expired_total == 1)
        await eventually(lambda: not storage_leftovers(environment))
        assert environment.applications.snapshot() == []
        assert environment.store.lookup(ShuffleKey("app", 1), 1) is None


@both_tiers
@both_sides
async def test_a_shuffle_is_released_while_it_is_read(tmp_path, memory_tier_bytes, reader):
    """Its readers go on to the end; extents are free after that; new readers fail."""
    async with mini_cluster(
        tmp_path, memory_tier_bytes=memory_tier_bytes, partition_request_timeout_seconds=0.1
    ) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(reader)
        gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=2)
        while not await gate.read_one(give_credit=0):
            pass
        driver = await cluster.driver(0)
        driver.send(ReleaseShuffle(1))
        assert await driver.expect(ShuffleReleased) == ShuffleReleased(1, len(DATA))
        assert storage_leftovers(cluster[0])
        gate.add_credit(0, 3)
        await gate.read_all()
        assert gate.content == [DATA]
        await gate.close()
        await until_clean(cluster[0], storage_leftovers)
        with pytest.raises(RemoteError) as caught:
            await read_gate(client, 1, [(ack, [1])], 0, 1)
        assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
        driver.send(ReleaseShuffle(1))
        assert await driver.expect(ShuffleReleased) == ShuffleReleased(1, 0)


async def test_releasing_an_application_frees_all_its_shuffles_and_no_other(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 1, [[b"x" * 5000]], shuffle_id=1)
        await cluster.write(0, 2, [[b"y" * 100]], shuffle_id=2)
        other = await cluster.producer(0, "other")
        await write_map_output(other, 1, 1, [[b"mine"]])
        driver = await cluster.driver(0)
        driver.send(ReleaseApplication())
        message, _ = await driver.receive()
        assert message == ApplicationReleased(5100)
        assert cluster[0].store.applications() == ["other"]
        consumer = await cluster.consumer(0, "other")
        assert await read_gate(consumer, 1, [(other.ack, [1])], 0, 1) == [b"mine"]


async def test_another_application_cannot_read_it(tmp_path):
    async with mini_cluster(tmp_path, 1, partition_request_timeout_seconds=0.1) as cluster:
        ack = await cluster.write(0, 1, [[b"secret"]])
        with pytest.raises(RemoteError) as caught:
            await read_gate(await cluster.consumer(0, "thief"), 1, [(ack, [1])], 0, 1)
        assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND


# ---- other TaskManagers --------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [Cut.RESET, Cut.CLOSE])
async def test_a_peer_dies_in_the_middle_of_a_stream(tmp_path, cut):
    """All channels of that connection fail, the local channel of the gate does not."""
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        await cluster.write(0, 2, [[DATA]])
        here = await cluster.write(1, 3, [[DATA]])
        async with FaultProxy(
            cluster[0].address, down=Fault(cut_after_bytes=len(DATA), cut=cut)
        ) as proxy:
            far = replace(ack, data_port=proxy.port)
            client = await cluster.consumer(1)
            gate = open_gate(client, 1, [(far, [1]), (far, [2]), (here, [3])], 0, 1)
            await gate.read_all(raise_failures=False)
            assert {f.code for f in gate.failures.values()} == {ErrorCode.CONNECTION_LOST}
            assert sorted(gate.failures) == [0, 1]
            assert all(failure.retryable for failure in gate.failures.values())
            assert gate.content[2] == DATA
            await gate.close()
        # A fresh connection serves the next gate.
        assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [DATA]


async def test_a_gate_with_a_stalled_peer_can_be_closed(tmp_path):
    """A stalled peer holds its channel; closing the gate still gives everything back."""
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        async with FaultProxy(
            cluster[0].address, down=Fault(cut_after_bytes=30_000, cut=Cut.STALL)
        ) as proxy:
            client = await cluster.consumer(1)
            gate = open_gate(client, 1, [(replace(ack, data_port=proxy.port), [1])], 0, 1)
            while not await gate.read_one():
                pass
            down = (await proxy.connection()).down
            await down.stalled.wait()
            await gate.close()
            client.vanish()
            (await proxy.connection()).reset()
            await until_clean(cluster[1], network_leftovers)


async def test_another_taskmanager_answers_at_the_address(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(1)
        gone = replace(ack, taskmanager_id="0123456789abcdef")
        with pytest.raises(RemoteError) as caught:
            await read_gate(client, 1, [(gone, [1])], 0, 1)
        assert caught.value.code is ErrorCode.TASKMANAGER_MISMATCH
        assert caught.value.limit == "0123456789abcdef"
        assert caught.value.value == ack.taskmanager_id


async def test_an_address_without_a_listener(tmp_path):
    async with mini_cluster(tmp_path, connect_timeout_seconds=0.3) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(1)
        gone = replace(ack, taskmanager_id="0123456789abcdef", data_port=1)
        with pytest.raises(RemoteError) as caught:
            await read_gate(client, 1, [(gone, [1])], 0, 1)
        assert caught.value.code is ErrorCode.CONNECT_REFUSED
        assert "127.0.0.1:1" in str(caught.value)
        assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [DATA]


@pytest.mark.parametrize(
    ("host", "port", "code"),
    [
        ("127.0.0.1", 0, ErrorCode.MALFORMED_MESSAGE),
        ("/run/some.sock", 0, ErrorCode.MALFORMED_MESSAGE),
        ("a\0b", 7337, None),
        ("\udce4".encode("utf-8", "replace").decode() * 200, 7337, None),
        ("é" * 250, 7337, None),
    ],
)
async def test_an_impossible_address_fails_its_channel(tmp_path, host, port, code):
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.consumer(1)
        odd = replace(ack, advertised_host=host, data_port=port)
        gate = open_gate(client, 1, [(odd, [1]), (ack, [1])], 0, 1)
        await gate.read_all(raise_failures=False)
        assert gate.content[1] == DATA
        assert code in (None, gate.failures[0].code)
        await gate.close()
    assert sys.exc_info() == (None, None, None), "the error is the context of all later ones"


# ---- memory --------------------------------------------------------------------------------------


async def test_no_memory_for_a_gate_is_a_typed_error_with_the_numbers(tmp_path):
    """Of five segments one gate takes 3; the second waits in vain, the third gets none."""
    async with mini_cluster(
        tmp_path,
        network_segments=5,
        exclusive_request_timeout_seconds=0.2,
    ) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        clients = [await cluster.consumer(1) for _ in range(3)]
        first = open_gate(clients[0], 1, [(ack, [1])], 0, 1, credit=1)
        while not await first.read_one(give_credit=0):
            pass
        second = open_gate(clients[1], 1, [(ack, [1])], 0, 1)
        await clients[1].expect(GateOpened)
        await second.read_all(raise_failures=False)
        assert second.failures[0].code is ErrorCode.INSUFFICIENT_BUFFERS
        assert second.failures[0].retryable
        third = open_gate(clients[2], 1, [(ack, [1])] * 1, 0, 1)
        await clients[2].expect(GateOpened)  # the last segment is its floating one
        fourth = await cluster.consumer(1)
        with pytest.raises(RemoteError, match=r"insufficient number .* required 1, available 0"):
            await read_gate(fourth, 1, [(ack, [1])], 0, 1)
        for client, gate in zip(clients[1:], (second, third), strict=True):
            if gate.open:
                await gate.read_all(raise_failures=False)
            await gate.close()
            assert client.lost is None
        first.add_credit(0, 1)
        await first.read_all()
        assert first.content == [DATA]
        await first.close()
        assert await read_gate(fourth, 1, [(ack, [1])], 0, 1) == [DATA]


async def test_the_smallest_legal_pool_never_deadlocks(tmp_path):
    """Five segments write and read the disk tier, on both sides."""
    async with mini_cluster(tmp_path, network_segments=5, memory_tier_bytes=DISK_ONLY) as cluster:
        ack = await cluster.write(0, 1, [[DATA], [DATA]])
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [DATA + DATA]


# ---- the disk ------------------------------------------------------------------------------------


@pytest.mark.interpreted
async def test_a_failing_disk_fails_the_map_output_at_once(tmp_path, monkeypatch):
    """The producer is told while it waits for credit, and others go on."""
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=DISK_ONLY) as cluster:
        environment = cluster[0]
        good = await cluster.write(0, 1, [[b"good"]])
        (disk,) = environment.store._storage.disks
        client = await cluster.producer(0)
        with monkeypatch.context() as broken:

            def fail(offset, buffers):
                raise OSError(5, "Input/output error")

            broken.setattr(disk, "write", fail)
            with pytest.raises(RemoteError) as caught:
                await write_map_output(client, 1, 2, [[DATA]])
        assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
        assert "Input/output error" in str(caught.value)
        assert caught.value.retryable
        assert not client.connection.closing
        assert await read_gate(await cluster.consumer(0), 1, [(good, [1])], 0, 1) == [b"good"]


@pytest.mark.interpreted
async def test_a_failing_disk_while_the_next_region_arrives(tmp_path, monkeypatch):
    """A segment that receives a payload keeps its owner until the payload is complete."""
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=DISK_ONLY) as cluster:
        (disk,) = cluster[0].store._storage.disks

        def fail(offset, buffers):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "write", fail)
        async with FaultProxy(
            cluster[0].address, up=Fault(chunk_bytes=512, delay_seconds=0.001)
        ) as proxy:
            client = await producer(cluster[0].address._replace(port=proxy.port))
            with pytest.raises(RemoteError, match="No space left"):
                await write_map_output(client, 1, 2, [[DATA[:5000]], [DATA]])
            client.send(OpenPartition(5, 1, 3, 1))
            await client.receive()
            await client.close()


@pytest.mark.interpreted
@both_sides
async def test_a_failing_read_fails_its_channel_only(tmp_path, monkeypatch, reader):
    """A failing read recycles its buffers; the next reader is not touched."""
    async with mini_cluster(tmp_path, memory_tier_bytes=DISK_ONLY) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        (disk,) = cluster[0].store._storage.disks
        client = await cluster.consumer(reader)
        with monkeypatch.context() as broken:

            def fail(offset, buffers):
                raise OSError(5, "Input/output error")

            broken.setattr(disk, "can_read_cached", False)
            broken.setattr(disk, "read", fail)
            with pytest.raises(RemoteError) as caught:
                await read_gate(client, 1, [(ack, [1])], 0, 1)
        assert caught.value.code is ErrorCode.STORAGE_CORRUPT
        other = await cluster.consumer(reader)
        assert await read_gate(other, 1, [(ack, [1])], 0, 1) == [DATA]


async def test_no_room_is_a_typed_error_for_that_map_output(tmp_path):
    """The quota is reached; smaller map outputs go on."""
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=DISK_ONLY, disk_quota_bytes=64 * 1024
    ) as cluster:
        client = await cluster.producer(0)
        with pytest.raises(RemoteError) as caught:
            await write_map_output(client, 1, 1, [[DATA]])
        assert caught.value.code is ErrorCode.STORAGE_FULL
        assert caught.value.retryable
        assert caught.value.value == str(len(DATA))
        assert "disk_quota_bytes" in str(caught.value)
        await write_map_output(client, 1, 2, [[b"small"]], partition=1)
        assert await read_gate(await cluster.consumer(0), 1, [(client.ack, [2])], 0, 1) == [
            b"small"
        ]
