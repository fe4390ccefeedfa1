"""Messages of consumers to producers over real connections, and the limits of a connection."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.messages import (
    BeginRegion,
    BufferResponse,
    GateChannel,
    OpenGate,
    OpenPartition,
    PartitionOpened,
    ResumeConsumption,
    TaskEvent,
)
from sluice.protocol.remote_error import RemoteError
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])


@READ_AT
async def test_task_events_reach_the_producer(tmp_path, reader_at):
    """Also those that were sent before the producer was registered, in their order."""
    async with mini_cluster(tmp_path) as cluster:
        client = await cluster.producer(0)
        reader = PipelinedReader(await cluster.consumer(reader_at), [(client.ack, 7)])
        for number in range(3):
            reader.client.send(TaskEvent(reader.channel(), number), b"early %d" % number)
        await eventually(lambda: cluster[0].partitions.waiting_requests == 1)
        writer = await PipelinedWriter.open(client, 7, 1, number=5)
        for number in range(3):
            assert await writer.hear(TaskEvent) == (TaskEvent(5, number), b"early %d" % number)
        reader.client.send(TaskEvent(reader.channel(), 2**32 - 1))
        assert await writer.hear(TaskEvent) == (TaskEvent(5, 2**32 - 1), b"")
        await writer.finish()
        await reader.read_all()
        assert not reader.errors


@READ_AT
async def test_task_events_for_stored_outputs_are_refused(tmp_path, reader_at):
    """An unknown producer is reported, on that channel only."""
    async with mini_cluster(tmp_path) as cluster:
        acks = [await cluster.write(0, attempt, [[bytes(400_000)]]) for attempt in (1, 2)]
        client = await cluster.consumer(reader_at)
        reader = PipelinedReader(client, [(acks[0], 1), (acks[1], 2)], credit=1)
        reader.give_credit = 0
        await reader.read_until(1)
        client.send(TaskEvent(reader.channel(), 9), b"to nobody")
        while not reader.errors:
            await reader.read_one()
        assert reader.errors[0].code is ErrorCode.UNKNOWN_PRODUCER
        reader.give_credit = 1
        reader.add_credit(4, 1)
        await reader.read_all()
        assert reader.data(1) == bytes(400_000)


@READ_AT
async def test_a_task_event_for_a_producer_that_has_finished_is_late(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 7, 1)
        reader = PipelinedReader(await cluster.consumer(reader_at), [(client.ack, 7)], credit=1)
        reader.give_credit = 0
        for _ in range(3):
            await writer.send(0, b"data")
        await reader.read_until(1)
        await writer.finish()
        reader.client.send(TaskEvent(reader.channel(), 1), b"late")
        await eventually(lambda: cluster[reader_at].counters.late_messages.get("TaskEvent"))
        reader.give_credit = 1
        reader.add_credit(2)
        await reader.read_all()
        assert reader.data() == b"data" * 3


async def test_messages_for_channels_that_do_not_exist_are_late(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.consumer(0)
        client.send(TaskEvent(3, 1), b"x")
        client.send(ResumeConsumption(3))
        late = cluster[0].counters.late_messages
        await eventually(lambda: late == {"TaskEvent": 1, "ResumeConsumption": 1})
        assert client.lost is None


async def test_regions_of_a_map_output_are_bounded(tmp_path):
    async with mini_cluster(tmp_path, 1, max_regions_per_partition=2) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 1, 1))
        await client.expect(PartitionOpened)
        for region in range(3):
            client.send(BeginRegion(0, region, 0, [0], 0))
        with pytest.raises(RemoteError, match="too many regions") as caught:
            await client.expect(BeginRegion)
        error = caught.value
        assert (error.code, error.value, error.limit) == (ErrorCode.LIMIT_EXCEEDED, "3", "2")
        assert "max_regions_per_partition" in str(error)


async def test_channels_of_a_consumer_are_bounded(tmp_path):
    """A gate and its channels count; a gate too many is refused, the others live on."""
    async with mini_cluster(tmp_path, 1, max_channels_per_connection=3) as cluster:
        ack = await cluster.write(0, 1, [[b"x"]])
        client = await cluster.consumer(0)
        reader = PipelinedReader(client, [(ack, 1)], credit=1)
        here = GateChannel(21, ack.taskmanager_id, ack.advertised_host, ack.data_port, [1])
        client.send(OpenGate(20, 1, 0, 1, 1, [here, here._replace(channel=22)]))
        with pytest.raises(RemoteError, match="Too many channels") as caught:
            await client.expect(BufferResponse)
        assert (caught.value.code, caught.value.limit) == (ErrorCode.LIMIT_EXCEEDED, "3")
        assert "max_channels_per_connection" in str(caught.value)
        await reader.close()
        again = PipelinedReader(client, [(ack, 1)], first_number=20)
        await again.read_all()
        assert again.data() == b"x"
        await again.close()
