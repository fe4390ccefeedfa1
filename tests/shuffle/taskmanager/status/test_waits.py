"""What waits for what at real TaskManagers: each wait is named with its cause, and ends with it."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.schema import (
    PARTITION_PIPELINED,
    BeginRegion,
    CloseGate,
    ErrorResponse,
    OpenPartition,
    PartitionOpened,
    RegionData,
)
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.serve import serving_waits
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import MAX_DIALS_OF_TENANT
from sluice.shuffle.taskmanager.status import waits as waits_module
from sluice.shuffle.taskmanager.status.waits import MAX_NAME_CHARACTERS, waits_of
from sluice.shuffle.wait_status import MAX_WAITS, map_output, request
from sluice.transport.address import Address
from sluice.transport.fair_queue import Flow
from tests.shuffle.taskmanager.status.rig import causes, pairs, wait_of, waits
from tests.support.mini_cluster import (
    DISK_ONLY,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
)
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.segment_pressure import ask
from tests.support.wire_clients import consumer, open_gate, write_map_output

SHUFFLE = 1
PAYLOAD = bytes(SEGMENT_SIZE_BYTES)


async def test_an_idle_taskmanager_has_no_waits(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        await cluster.write(0, 7, [[PAYLOAD]])
        await cluster.producer(0)
        await cluster.consumer(0)
        await cluster.driver(0)
        for environment in cluster.environments:
            assert waits_of(environment) == ((), 0)


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_gate_waits_for_its_reader(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 7, [[PAYLOAD * 40]])
        client = await cluster.consumer(reader_at)
        gate = open_gate(client, SHUFFLE, [(ack, [7])], 0, 1, credit=2)
        for _ in range(2):
            await gate.read_one(give_credit=0)
            if gate.buffers[0] >= 2:
                break
        await eventually(lambda: ("gate", "reader") in pairs(cluster, reader_at))
        found = wait_of(cluster, "gate", "reader", reader_at)
        assert found.waiter.name.startswith("gate 0 of ")
        assert found.waiter.name.endswith(found.resource.name)
        assert found.waiter.application_id == "app"
        assert found.seconds is not None
        if reader_at:  # its source waits for credit of this TaskManager
            await eventually(lambda: ("channels", "taskmanager") in pairs(cluster, 0))
            assert wait_of(cluster, "channels", "taskmanager").waiter.application_id == "app"
        gate.add_credit(0, 100)
        await gate.read_all()
        await gate.close()
        await eventually(lambda: not waits(cluster, reader_at))
        await eventually(lambda: not waits(cluster, 0))


async def test_readers_at_one_unix_socket_are_different_parties(tmp_path):
    path = tmp_path / "tm.sock"
    async with mini_cluster(tmp_path, 1, socket_path=path) as cluster:
        ack = await cluster.write(0, 7, [[PAYLOAD * 40]])
        gates = []
        for _ in range(2):
            client = await consumer(Address(str(path), 0))
            cluster.clients.append(client)
            gates.append(open_gate(client, SHUFFLE, [(ack, [7])], 0, 1, credit=1))
            await gates[-1].read_one(give_credit=0)
        await eventually(lambda: len(waits(cluster)) == 2)
        found = waits(cluster)
        shown = [
            each
            for handler in cluster[0].handlers.values()
            if isinstance(handler, ConsumerHandler)
            for each in handler.gate_statuses()
        ]
        assert {each.gate_id for each in shown} == {0}
        assert len({each.connection for each in shown}) == 2
        readers = {each.remote for each in shown}
        assert {each.resource.name for each in found} == readers
        assert {each.waiter.name for each in found} == {f"gate 0 of {each}" for each in readers}
        assert len(readers) == 2
        for gate in gates:
            gate.add_credit(0, 100)
            await gate.read_all()
            await gate.close()


async def test_a_gate_waits_for_a_reader_that_does_not_read_its_connection(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        ack = await cluster.write(0, 7, [[PAYLOAD * 1500]])
        client = await cluster.consumer(0)
        client.stop_reading()
        gate = open_gate(client, SHUFFLE, [(ack, [7])], 0, 1, credit=2000)
        await eventually(lambda: ("gate", "reader") in pairs(cluster))
        assert "does not read" in wait_of(cluster, "gate", "reader").text
        client.resume_reading()
        await gate.read_all()
        await gate.close()
        await eventually(lambda: not waits(cluster))


async def test_without_credit_channels_wait_until_their_connection_is_read(tmp_path):
    content = PAYLOAD * 4096
    async with mini_cluster(
        tmp_path, flow_control="watermark", memory_tier_bytes=2 * len(content)
    ) as cluster:
        ack = await cluster.write(0, 7, [[content]])
        client = await cluster.consumer(1)
        gate = open_gate(client, SHUFFLE, [(ack, [7])], 0, 1, credit=1)
        await gate.read_one(give_credit=0)
        await eventually(lambda: ("channels", "taskmanager") in pairs(cluster))
        assert "does not read" in wait_of(cluster, "channels", "taskmanager").text
        assert wait_of(cluster, "gate", "reader", 1).waiter.name.startswith("gate 0 of ")
        gate.add_credit(0, 1_000_000)
        await gate.read_all()
        await gate.close()
        await eventually(lambda: not waits(cluster, 0) + waits(cluster, 1))


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_gate_waits_for_a_map_output_that_is_not_there(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        producer = await cluster.producer(0)
        client = await cluster.consumer(reader_at)
        gate = open_gate(client, SHUFFLE, [(producer.ack, [7])], 0, 1)
        await eventually(lambda: ("request", "map_output") in pairs(cluster, 0))
        request = wait_of(cluster, "request", "map_output")
        assert request.waiter.name == "request for subpartition 0 of shuffle 1"
        assert request.resource.name == "map output 7 of shuffle 1"
        waiter = wait_of(cluster, "channels" if reader_at else "gate", "request")
        assert waiter.resource == request.waiter
        if reader_at:
            there = wait_of(cluster, "gate", "taskmanager", 1)
            assert there.resource.name == str(cluster[0].address)
        await cluster.write(0, 7, [[PAYLOAD]])
        await gate.read_all()
        await gate.close()
        await eventually(lambda: not waits(cluster, 0) + waits(cluster, 1))


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_pipelined_partition_waits_for_the_reader_of_its_longest_queue(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 2)
        clients = [await cluster.consumer(reader_at) for _ in range(2)]
        sources = [(writer.client.ack, 7)]
        reader = PipelinedReader(clients[0], sources, 1, credit=1)
        reader.give_credit = 0
        sending = asyncio.create_task(_send_all(writer, 1, 200))
        await eventually(lambda: ("pipelined_partition", "subpartition") in pairs(cluster))
        await reader.round_trip()
        await eventually(
            lambda: (
                ("pipelined_partition", "subpartition") in pairs(cluster)
                and ("subpartition", "channel" if reader_at else "gate") in pairs(cluster)
            )
        )
        found = wait_of(cluster, "pipelined_partition", "subpartition")
        assert found.seconds is not None
        assert found.resource.name == ("subpartition 1 of pipelined partition 7 of shuffle 1")
        kinds = {each.kind for each in causes(waits(cluster), found.waiter)}
        expected = {"channel", "taskmanager"} if reader_at else {"gate", "reader"}
        assert kinds == {"subpartition"} | expected
        reader.give_credit = 1
        reader.add_credit(1)
        reading = asyncio.create_task(reader.read_all())
        other = PipelinedReader(clients[1], sources, 0)
        await sending
        await writer.finish()
        await asyncio.gather(reading, other.read_all())
        for each in (reader, other):
            await each.close()
        await eventually(lambda: not waits(cluster, 0) + waits(cluster, 1))


async def _send_all(writer: PipelinedWriter, subpartition: int, count: int) -> None:
    for _ in range(count):
        await writer.send(subpartition, PAYLOAD)


async def test_a_pipelined_partition_without_a_reader_says_so(tmp_path):
    async with mini_cluster(tmp_path, 1, check=False) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
        sending = asyncio.create_task(_send_all(writer, 0, 200))
        await eventually(lambda: ("subpartition", "missing_reader") in pairs(cluster))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_gate_waits_for_the_map_task_behind_a_partition(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
        reader = PipelinedReader(await cluster.consumer(0), [(writer.client.ack, 7)])
        await eventually(lambda: ("gate", "pipelined_partition") in pairs(cluster))
        gate = wait_of(cluster, "gate", "pipelined_partition")
        task = wait_of(cluster, "pipelined_partition", "writer")
        assert causes(waits(cluster), gate.waiter) == {task.waiter, task.resource}
        await writer.send(0, PAYLOAD)
        await writer.finish()
        await reader.read_all()
        await reader.close()
        await eventually(lambda: not waits(cluster))


async def test_a_writer_waits_for_segments_that_a_gate_of_another_application_holds(tmp_path):
    async with mini_cluster(
        tmp_path, 1, network_segments=16, memory_tier_bytes=DISK_ONLY
    ) as cluster:
        greedy = await cluster.producer(0, "greedy")
        writer = await PipelinedWriter.open(greedy, 7, 1, partition_type=PARTITION_PIPELINED)
        client = await cluster.consumer(0, "greedy")
        reader = PipelinedReader(client, [(greedy.ack, 7)], credit=1)
        reader.give_credit = 0
        sending = asyncio.create_task(_send_all(writer, 0, 200))
        await eventually(lambda: ("subpartition", "gate") in pairs(cluster))
        await eventually(lambda: not cluster[0].network_pool.available_segments)
        innocent = await cluster.producer(0, "innocent")
        writing = asyncio.create_task(write_map_output(innocent, SHUFFLE, 8, [[PAYLOAD * 3]]))
        await eventually(lambda: ("map_output", "network_memory") in pairs(cluster))
        starved = wait_of(cluster, "map_output", "network_memory")
        assert starved.waiter == map_output(ShuffleKey("innocent", SHUFFLE), 8)
        assert starved.seconds is not None
        found = causes(waits(cluster), starved.waiter)
        assert {"network_memory", "application", "gate", "reader"} <= {each.kind for each in found}
        assert {each.application_id for each in found if each.kind == "gate"} == {"greedy"}
        reader.give_credit = 1
        reader.add_credit(1)
        reading = asyncio.create_task(reader.read_all())
        await asyncio.gather(writing, sending)
        await writer.finish()
        await reading
        await reader.close()
        await eventually(lambda: not waits(cluster))


async def test_a_writer_at_its_quota_waits_for_what_its_own_application_holds(tmp_path):
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=DISK_ONLY, quota_network_segments=12
    ) as cluster:
        producer = await cluster.producer(0)
        writer = await PipelinedWriter.open(producer, 7, 1, partition_type=PARTITION_PIPELINED)
        client = await cluster.consumer(0)
        reader = PipelinedReader(client, [(producer.ack, 7)], credit=1)
        reader.give_credit = 0
        sending = asyncio.create_task(_send_all(writer, 0, 100))
        await eventually(lambda: ("subpartition", "gate") in pairs(cluster))
        other = await cluster.producer(0)
        writing = asyncio.create_task(write_map_output(other, SHUFFLE, 8, [[PAYLOAD * 3]]))
        await eventually(lambda: ("map_output", "application") in pairs(cluster))
        starved = wait_of(cluster, "map_output", "application")
        assert "quota" in starved.text
        assert "quota_network_segments" in starved.remedy
        assert {each.kind for each in causes(waits(cluster), starved.waiter)} >= {"gate", "reader"}
        reader.give_credit = 1
        reader.add_credit(1)
        reading = asyncio.create_task(reader.read_all())
        await asyncio.gather(writing, sending)
        await writer.finish()
        await reading
        await reader.close()
        await eventually(lambda: not waits(cluster))


async def test_connections_wait_for_their_turn_of_the_event_loop(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        shares = cluster[0].listener.loop_shares
        flow = Flow("app", 1)
        sent = asyncio.Event()
        shares.join(flow).sends.wait(sent.set, flow)
        assert "1 connections" in wait_of(cluster, "application", "event_loop").text
        await sent.wait()
        assert not waits(cluster)
        shares.leave(flow)


async def test_gates_wait_until_other_connections_of_their_tenant_are_made(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        dials = cluster[0].gate_services.dials
        for _ in range(MAX_DIALS_OF_TENANT):
            await dials.take("app")
        waiting = asyncio.create_task(dials.take("app"))
        await eventually(lambda: pairs(cluster) == {("application", "rate")})
        for _ in range(MAX_DIALS_OF_TENANT):
            dials.release("app")
        await waiting
        assert not waits(cluster)
        dials.release("app")


async def test_an_application_that_was_refused_segments_waits_for_those_that_hold_them(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=16) as cluster:
        greedy = await cluster.producer(0, "greedy")
        assert isinstance(await ask(greedy), PartitionOpened)
        innocent = await cluster.producer(0, "innocent")
        assert isinstance(await ask(innocent), ErrorResponse)
        refused = wait_of(cluster, "application", "network_memory")
        assert refused.waiter.name == "innocent"
        found = causes(waits(cluster), refused.waiter)
        assert {each.name for each in found} >= {"network memory", "greedy"}
        assert "pipelined partition 7 of shuffle 1" in {each.name for each in found}


async def test_a_map_output_waits_for_its_task(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(0, SHUFFLE, 7, 1))
        await client.expect(PartitionOpened)
        assert not waits(cluster)  # a task that computes before its first region
        client.send(BeginRegion(0, 0, 0, [2 * SEGMENT_SIZE_BYTES], 0))
        await eventually(lambda: ("map_output", "writer") in pairs(cluster))
        client.send(RegionData(0, 0), PAYLOAD)
        await eventually(
            lambda: f"{SEGMENT_SIZE_BYTES} of " in wait_of(cluster, "map_output", "writer").text
        )
        client.vanish()
        await client.until_lost()
        await eventually(lambda: not waits(cluster))


async def test_a_drain_waits_for_what_is_written_and_read(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
        reader = PipelinedReader(await cluster.consumer(0), [(writer.client.ack, 7)])
        await reader.round_trip()
        cluster[0].drain()
        found = {each.resource.kind for each in waits(cluster) if each.waiter.kind == "drain"}
        assert found == {"gate", "pipelined_partition"}
        await writer.finish()
        await reader.read_all()
        await reader.close()
        await eventually(lambda: not waits(cluster))


async def test_a_status_examines_only_some_of_many_channels(tmp_path, monkeypatch):
    monkeypatch.setattr(waits_module, "MAX_CHANNELS", 4)
    monkeypatch.setattr(serving_waits, "MAX_REQUESTS", 4)
    async with mini_cluster(tmp_path, partition_request_timeout_seconds=60) as cluster:
        producer = await cluster.producer(0)
        client = await cluster.consumer(1)
        sources = [(producer.ack, [each]) for each in range(10)]
        open_gate(client, SHUFFLE, sources, 0, 1)
        await eventually(lambda: cluster[0].partitions.waiting_requests == 10)
        there = wait_of(cluster, "gate", "taskmanager", 1)
        assert there.text.startswith("4 channels")
        assert there.text.endswith("6 more channels wait")
        assert wait_of(cluster, "channels", "request").text.startswith("4 channels")
        found, omitted = waits_of(cluster[0])
        assert len(found) == 1 + 4
        assert omitted == 6 + 6
        client.send(CloseGate(0))
        await eventually(lambda: not waits(cluster, 0) + waits(cluster, 1))


async def test_omitted_waits_are_not_made(tmp_path, monkeypatch):
    made = []

    def recorded(wanted):
        made.append(wanted)
        return request(wanted)

    monkeypatch.setattr(serving_waits, "request", recorded)
    gates = 2 * MAX_WAITS
    async with mini_cluster(tmp_path, 1, partition_request_timeout_seconds=60) as cluster:
        client = await cluster.consumer(0)
        for number in range(0, 2 * gates, 2):
            open_gate(client, number, [(client.ack, [7])], 0, 1, first_number=number)
        await eventually(lambda: cluster[0].partitions.waiting_requests == gates)
        assert not made
        found, omitted = waits_of(cluster[0])
        assert len(made) == len(found) == MAX_WAITS
        assert omitted == 2 * gates - MAX_WAITS
        for number in range(0, 2 * gates, 2):
            client.send(CloseGate(number))
        await eventually(lambda: not waits(cluster))


async def test_waits_are_bounded_and_names_are_cut(tmp_path):
    name = "x" * 250
    async with mini_cluster(tmp_path, 1, partition_request_timeout_seconds=60) as cluster:
        client = await cluster.consumer(0, name)
        gates = 1000
        for number in range(0, 2 * gates, 2):
            open_gate(client, number, [(client.ack, [7])], 0, 1, first_number=number)
        await eventually(lambda: cluster[0].partitions.waiting_requests == gates)
        found, omitted = waits_of(cluster[0])
        assert len(found) == MAX_WAITS
        assert omitted == 2 * gates - MAX_WAITS  # each gate, and its request
        assert all(len(each.waiter.application_id) <= MAX_NAME_CHARACTERS for each in found)
        seconds = [each.seconds for each in found]
        assert None not in seconds
        assert seconds == sorted(seconds, key=lambda each: -(each or 0.0))
        for number in range(0, 2 * gates, 2):
            client.send(CloseGate(number))
        await eventually(lambda: waits_of(cluster[0]) == ((), 0))
