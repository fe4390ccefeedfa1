"""The half that both serving legs share: credit, cancels, messages of consumers to producers."""

from __future__ import annotations

import pytest

from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import MAX_CREDIT
from sluice.protocol.schema import (
    FLOW_WATERMARK,
    ROLE_CONSUMER,
    ROLE_PEER,
    AddCredit,
    CancelPartitionRequest,
    PartitionRequest,
    Ping,
    Pong,
    ResumeConsumption,
    TaskEvent,
)
from tests.support.bad_input import CONSUMER, PEER, beside_a_good_client, control, gate_to, greet
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.raw_client import acknowledged

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


@pytest.mark.parametrize("role", [ROLE_CONSUMER, ROLE_PEER])
async def test_too_much_credit_closes_the_connection(tmp_path, role):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        if role == ROLE_PEER:
            acknowledged(await bad.greet(role, "", segment_size_bytes=SEGMENT_SIZE_BYTES))
            bad.send_message(PartitionRequest(1, "app", 1, [9], 0, 1, 1))
        else:
            ack = acknowledged(await bad.greet(role))
            bad.send_message(gate_to(ack, 0, 1, attempt=9))
        bad.send_message(AddCredit(1, 2**31 - 1))
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.CREDIT_OVERFLOW
        assert error.limit == str(2**31 - 1)


async def test_late_messages_are_counted_and_dropped(tmp_path):
    """Credit, cancels and events for channels that are gone."""
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as late:
        acknowledged(await late.greet(ROLE_PEER, "", segment_size_bytes=SEGMENT_SIZE_BYTES))
        late.send_message(AddCredit(1, 1))
        late.send_message(CancelPartitionRequest(1))
        late.send_message(CancelPartitionRequest(1))
        late.send_message(TaskEvent(1, 4), b"for nobody")
        late.send_message(Ping(3))
        assert await late.receive() == (Pong(3), b"")
        assert cluster[0].counters.late_messages == {
            "AddCredit": 1,
            "CancelPartitionRequest": 2,
            "TaskEvent": 1,
        }


@pytest.mark.parametrize("greeting", [PEER, CONSUMER], ids=["peer", "consumer"])
@pytest.mark.parametrize("credit", [-1, 0, 2**32, 2**64 - 1, -(2**63), True, 1.5, None], ids=repr)
async def test_malformed_credit_closes_its_connection(tmp_path, greeting, credit):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, greeting)
        bad.send_bytes(control(5, 1, credit))
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.MALFORMED_MESSAGE
        assert "AddCredit.credit" in error.message


@pytest.mark.parametrize("greeting", [PEER, CONSUMER], ids=["peer", "consumer"])
async def test_credit_for_an_unknown_channel_is_counted_and_dropped(tmp_path, greeting):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, greeting)
        bad.send_message(m.AddCredit(2**32 - 1, MAX_CREDIT))
        bad.send_message(m.Ping(1))
        assert await bad.receive() == (m.Pong(1), b"")
        assert cluster[0].counters.late_messages == {"AddCredit": 1}


async def test_a_channel_without_credit_needs_a_message_of_at_least_one_buffer(tmp_path):
    """Its request is refused; the connection and the next request live on."""
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as peer:
        await cluster.write(0, 9, [[b"data"]])
        acknowledged(
            await peer.greet(
                ROLE_PEER, "", segment_size_bytes=SEGMENT_SIZE_BYTES, flow_control=FLOW_WATERMARK
            )
        )
        peer.send_message(PartitionRequest(1, "app", 1, [9], 0, 1, 0))
        error, _ = await peer.receive()
        assert isinstance(error, m.ErrorResponse)
        assert (error.channel, error.code) == (1, ErrorCode.MALFORMED_MESSAGE)
        peer.send_message(PartitionRequest(2, "app", 1, [9], 0, 1, 1))
        data, payload = await peer.receive()
        assert isinstance(data, m.BufferResponse)
        assert (data.channel, payload) == (2, b"data")
