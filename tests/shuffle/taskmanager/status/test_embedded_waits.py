"""Waits of the gates that tasks in the TaskManager's own process read."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.partition.partition_type import ResultPartitionType
from tests.shuffle.taskmanager.status.rig import causes, pairs, wait_of, waits
from tests.support.api_clients import embedded_clients, give_back
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

PAYLOAD = bytes(SEGMENT_SIZE_BYTES)


async def drained(gate):
    """Read a gate to its end."""
    while (taken := await gate.next_buffer_or_event()) is not None:
        give_back(taken.buffer)


async def test_a_gate_waits_for_a_task_that_does_not_read_it(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with (
            client.open_result_partition(1, 7, 1) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            await partition.emit_buffer(PAYLOAD, 0)
            await eventually(lambda: ("gate", "reader") in pairs(cluster))
            found = wait_of(cluster, "gate", "reader")
            assert found.waiter.name == "gate 1 of this process"
            assert found.waiter.application_id == found.resource.application_id == "app"
            assert found.resource.name == "this process"
            assert found.text == "1 of 1 channels have data that the task does not read"
            held = wait_of(cluster, "subpartition", "gate")
            assert held.waiter.name == "subpartition 0 of pipelined partition 7 of shuffle 1"
            assert held.resource == found.waiter
            await partition.finish()
            await drained(gate)
        assert not waits(cluster)


async def test_a_full_partition_leads_to_the_task_behind_its_gate(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        embedded_clients(cluster, 0) as (client,),
        client.open_result_partition(1, 7, 1) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        writing = asyncio.create_task(partition.emit_buffer(PAYLOAD * 200, 0))
        await eventually(lambda: ("pipelined_partition", "subpartition") in pairs(cluster))
        full = wait_of(cluster, "pipelined_partition", "subpartition")
        kinds = {each.kind for each in causes(waits(cluster), full.waiter)}
        assert kinds == {"subpartition", "gate", "reader"}

        async def finish() -> None:
            await writing
            await partition.finish()

        await asyncio.gather(finish(), drained(gate))


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_gate_waits_for_a_pipelined_partition_without_data(tmp_path, reader_at):
    async with (
        mini_cluster(tmp_path) as cluster,
        embedded_clients(cluster, 0, reader_at) as (producer, consumer),
        producer.open_result_partition(1, 7, 1) as partition,
        consumer.open_gate([partition.location], 0) as gate,
    ):
        resource = "taskmanager" if reader_at else "pipelined_partition"
        await eventually(lambda: ("gate", resource) in pairs(cluster, reader_at))
        assert wait_of(cluster, "gate", resource, reader_at).seconds is None  # its task computes
        reading = asyncio.create_task(drained(gate))
        await eventually(lambda: wait_of(cluster, "gate", resource, reader_at).seconds is not None)
        await partition.finish()
        await reading


async def test_a_gate_waits_for_a_map_output_that_is_not_there(tmp_path):
    blocking = ResultPartitionType.BLOCKING
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with (
            client.open_result_partition(1, 7, 1, partition_type=blocking) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            await eventually(lambda: ("gate", "request") in pairs(cluster))
            found = wait_of(cluster, "gate", "request")
            assert "1 channel: the partition is not here yet" in found.text
            await eventually(lambda: ("request", "map_output") in pairs(cluster))
            sought = {each.kind for each in causes(waits(cluster), found.waiter)}
            assert sought == {"request", "map_output"}
            await partition.finish()
            await drained(gate)
        assert not waits(cluster)


async def test_gates_of_one_shuffle_have_different_names(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        embedded_clients(cluster, 0, 0) as clients,
        clients[0].open_result_partition(1, 7, 2) as partition,
        clients[0].open_gate([partition.location], 0) as first,
        clients[1].open_gate([partition.location], 1) as second,
    ):
        await eventually(lambda: ("gate", "pipelined_partition") in pairs(cluster))
        names = {each.waiter.name for each in waits(cluster) if each.waiter.kind == "gate"}
        assert names == {"gate 1 of this process", "gate 2 of this process"}
        await partition.finish()
        await asyncio.gather(drained(first), drained(second))


async def test_a_drain_waits_for_embedded_tasks(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        embedded_clients(cluster, 0) as (client,),
        client.open_result_partition(1, 6, 1, partition_type=ResultPartitionType.BLOCKING),
        client.open_result_partition(1, 7, 1) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        cluster[0].drain()
        found = {each.resource.name for each in waits(cluster) if each.waiter.kind == "drain"}
        assert found == {
            "gate 1 of this process",
            "map output 6 of shuffle 1",
            "pipelined partition 7 of shuffle 1",
        }
        await partition.finish()
        await drained(gate)
