"""Gates with more channels than are open at a time, and TaskManagers that do not answer."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import CancelPartitionRequest
from sluice.shuffle.taskmanager.bounds.owner_slots import OwnerSlots
from tests.support.mini_cluster import (
    DEADLINE_SECONDS,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
)
from tests.support.network_memory import take_exclusive
from tests.support.tcp_proxy import Fault, FaultProxy
from tests.support.wire_clients import close_gate, open_gate, read_gate

OUTPUTS = 12
MOST = 3
PARTS = [[bytes([attempt]) * 3 * SEGMENT_SIZE_BYTES, b"x"] for attempt in range(OUTPUTS)]
WHOLE = [b"".join(parts) for parts in PARTS]


async def write_all(cluster):
    return [(await cluster.write(0, n, [parts]), [n]) for n, parts in enumerate(PARTS)]


def exclusive(cluster):
    return cluster[1].network_pool.exclusive_segments


async def test_waiting_channels_open_as_others_end(tmp_path):
    async with mini_cluster(tmp_path, max_open_channels_per_gate=MOST) as cluster:
        sources = await write_all(cluster)
        client = await cluster.consumer(1)
        gate = open_gate(client, 1, sources, 0, 2, credit=1)
        most = 0
        while gate.open:
            await gate.read_one()
            most = max(most, exclusive(cluster))
        assert most == 2 * MOST  # two exclusive buffers each
        assert [bytes(part) for part in gate.content] == WHOLE
        await gate.close()


async def test_gates_of_stored_map_outputs_have_their_own_number_of_floating_buffers(tmp_path):
    async with mini_cluster(
        tmp_path, floating_buffers_per_gate=1, floating_buffers_per_stored_gate=5
    ) as cluster:
        sources = await write_all(cluster)
        gate = open_gate(await cluster.consumer(1), 1, sources, 0, 2, credit=1)
        await gate.read_one(give_credit=0)
        pools = cluster[1].network_pool.local_pools
        assert [pool.bounds.maximum_segments for pool in pools if pool.kind == "gate"] == [5]
        await gate.close()


async def test_the_pool_need_not_hold_all_channels(tmp_path):
    """Without the limit most channels would fail at the deadline for exclusive buffers."""
    async with mini_cluster(
        tmp_path,
        network_segments=2 * MOST + 4,
        max_open_channels_per_gate=MOST,
        exclusive_request_timeout_seconds=0.001,
    ) as cluster:
        sources = await write_all(cluster)
        assert await read_gate(await cluster.consumer(1), 1, sources, 0, 2) == WHOLE


@pytest.mark.parametrize("cancelled", [0, OUTPUTS - 1], ids=["an open one", "a waiting one"])
async def test_a_cancelled_channel_leaves_its_place(tmp_path, cancelled):
    async with mini_cluster(tmp_path, max_open_channels_per_gate=MOST) as cluster:
        sources = await write_all(cluster)
        client = await cluster.consumer(1)
        gate = open_gate(client, 1, sources, 0, 2, credit=1)
        await eventually(lambda: exclusive(cluster) == 2 * MOST)
        client.send(CancelPartitionRequest(1 + cancelled))
        gate.open -= 1
        await gate.read_all()
        for number, content in enumerate(gate.content):
            if number != cancelled:
                assert content == WHOLE[number]
        await gate.close()


async def test_a_failed_channel_leaves_its_place(tmp_path):
    async with mini_cluster(
        tmp_path, max_open_channels_per_gate=1, partition_request_timeout_seconds=0.01
    ) as cluster:
        ack, _ = (await write_all(cluster))[0]
        gate = open_gate(await cluster.consumer(1), 1, [(ack, [99]), (ack, [1])], 0, 2)
        await gate.read_all(raise_failures=False)
        assert list(gate.failures) == [0]
        assert gate.content[1] == WHOLE[1]
        await gate.close()


async def test_a_gate_with_waiting_channels_closes(tmp_path):
    async with mini_cluster(tmp_path, max_open_channels_per_gate=MOST) as cluster:
        sources = await write_all(cluster)
        gate = open_gate(await cluster.consumer(1), 1, sources, 0, 2, credit=1)
        await gate.read_one(give_credit=0)
        await gate.close()
        await eventually(lambda: exclusive(cluster) == 0)


async def test_a_channel_cancelled_while_it_is_opened_keeps_no_memory(tmp_path):
    """The wait for exclusive buffers outlives the channel that they are for."""
    async with mini_cluster(tmp_path, network_segments=8) as cluster:
        sources = await write_all(cluster)
        pool = cluster[1].network_pool
        taken = take_exclusive(pool, pool.total_segments - 1)
        client = await cluster.consumer(1)
        gate = open_gate(client, 1, sources[:1], 0, 2)
        await eventually(lambda: pool.waiting_requests)
        client.send(CancelPartitionRequest(1))
        await close_gate(client, 99)  # answered in order: the cancel was taken
        pool.recycle_segments(taken)
        other = await cluster.consumer(1)
        assert await read_gate(other, 1, sources[1:2], 0, 2) == WHOLE[1:2]
        await eventually(lambda: exclusive(cluster) == 0)
        await gate.close()


# ---- TaskManagers that do not answer -------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_reader_without_segments_is_told_at_once(tmp_path, partitions):
    """It goes elsewhere, and would wait for nothing until the deadline."""
    async with mini_cluster(tmp_path, connect_timeout_seconds=10 * DEADLINE_SECONDS) as cluster:
        sources = await write_all(cluster)
        await cluster[0].close()
        client = await cluster.consumer(1, segment_size_bytes=0)
        gate = open_gate(client, 1, sources, 0, partitions)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await gate.read_all(raise_failures=False)
        assert len(gate.failures) == OUTPUTS
        assert {error.code for error in gate.failures.values()} == {ErrorCode.CONNECT_REFUSED}
        assert {error.limit for error in gate.failures.values()} == {"0 retries"}
        assert not sum(cluster[1].connects.counts)  # nothing was connected
        await gate.close()
        cluster.environments[0] = await cluster.start_one(0, {})


async def test_one_that_accepts_and_hangs_up_is_tried_again_for_every_reader(tmp_path):
    async with mini_cluster(tmp_path, connect_timeout_seconds=DEADLINE_SECONDS) as cluster:
        ack, ids = (await write_all(cluster))[0]
        hang_up = Fault(cut_after_bytes=5)
        async with FaultProxy(cluster[0].address, up=hang_up) as proxy:
            behind = replace(ack, advertised_host=proxy.host, data_port=proxy.port)
            gate = open_gate(await cluster.consumer(1), 1, [(behind, ids)], 0, 2)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await (await proxy.connection(0)).up.ended.wait()
                proxy.up = Fault()
                await gate.read_all()
            assert gate.content == WHOLE[:1]
            await gate.close()
            await eventually(lambda: not len(cluster[1].peers))


async def test_a_reader_that_cannot_go_elsewhere_waits_for_a_restart(tmp_path, monkeypatch):
    refused = asyncio.Event()
    sleep = asyncio.sleep

    async def noticed_sleep(seconds: float) -> None:
        refused.set()
        await sleep(seconds)

    settings: dict[str, Any] = {"connect_timeout_seconds": DEADLINE_SECONDS}
    async with mini_cluster(tmp_path, **settings) as cluster:
        ack, ids = (await write_all(cluster))[0]
        await cluster[0].close()
        monkeypatch.setattr("sluice.transport.connector.asyncio.sleep", noticed_sleep)
        gate = open_gate(await cluster.consumer(1), 1, [(ack, ids)], 0, 2)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await refused.wait()
        restarted = {**settings, "data_port": ack.data_port}
        cluster.environments[0] = await cluster.start_one(0, restarted)
        await gate.read_all()
        assert gate.content == WHOLE[:1]
        await gate.close()


async def test_a_reader_that_waits_in_vain_is_told_at_the_deadline(tmp_path):
    settings: dict[str, Any] = {"connect_timeout_seconds": 0.3}
    async with mini_cluster(tmp_path, **settings) as cluster:
        ack, _ = (await write_all(cluster))[0]
        await cluster[0].close()
        gate = open_gate(await cluster.consumer(1), 1, [(ack, [1])], 0, 2)
        await gate.read_all(raise_failures=False)
        assert gate.failures[0].code is ErrorCode.CONNECT_REFUSED
        assert gate.failures[0].limit == "0.3 s"
        await gate.close()
        cluster.environments[0] = await cluster.start_one(0, settings)


# ---- connections being made ----------------------------------------------------------------------


def limit_dials(cluster, total) -> OwnerSlots:
    """Limit the connections that the gates of a TaskManager may be making."""
    dials = OwnerSlots(total, total)
    cluster[1].gate_services = dataclasses.replace(cluster[1].gate_services, dials=dials)
    return dials


async def test_channels_of_one_address_share_one_place_among_the_dials(tmp_path):
    settings: dict[str, Any] = {"connect_timeout_seconds": 10 * DEADLINE_SECONDS}
    async with mini_cluster(tmp_path, **settings) as cluster:
        ack, _ = (await write_all(cluster))[0]
        dials = limit_dials(cluster, 2)
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            nobody = replace(ack, data_port=deaf.getsockname()[1])
            sources = [(nobody, [n]) for n in range(5)] + [(ack, [0])]
            gate = open_gate(await cluster.consumer(1), 1, sources, 0, 2)
            while len(gate.content[5]) < len(WHOLE[0]):
                await gate.read_one()
            assert dials.held == 1
            await gate.close()
            await eventually(lambda: not dials.held)


async def test_the_lookup_of_a_name_counts_until_its_thread_ends(tmp_path, monkeypatch):
    answer = threading.Event()

    def ask(host, port, **_):
        assert answer.wait(DEADLINE_SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    async with mini_cluster(tmp_path) as cluster:
        ack, _ = (await write_all(cluster))[0]
        monkeypatch.setattr("sluice.transport.name_lookup.socket.getaddrinfo", ask)
        dials = limit_dials(cluster, 1)
        nobody = replace(ack, advertised_host="nobody.example")
        gate = open_gate(await cluster.consumer(1), 1, [(nobody, [0])], 0, 2)
        await eventually(lambda: dials.held)
        await gate.close()
        await eventually(lambda: not len(cluster[1].peers))
        assert dials.held == 1
        answer.set()
        await eventually(lambda: not dials.held)
