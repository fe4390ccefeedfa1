"""Events that nobody reads hold their producer back, on every leg, and all of them arrive later.

What waits in TaskManagers and clients is bounded by the buffers of the channels, whichever kind the
events are, with and without flow control by credit.
"""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.schema import EVENT, PRIORITY_EVENT, GateOpened
from sluice.shuffle.gate.partition_request_client import UncreditedPartitionRequestClient
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from tests.support.api_clients import TASKS, give_back
from tests.support.mini_cluster import MiniCluster, eventually, gates, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

EVENTS = 1000
READER_CREDIT = 4
EXCLUSIVE, FLOATING = 2, 8
"""Buffers of a channel, and of a partition of one subpartition."""

CONTENT = [encode_event(CustomEvent("e", b"%d" % number)) for number in range(EVENTS)]

kinds = pytest.mark.parametrize("kind", [EVENT, PRIORITY_EVENT], ids=["event", "priority"])


class Sending:
    """A producer that sends events as it gets credit."""

    def __init__(self, writer: PipelinedWriter, kind: int) -> None:
        self.sent = 0
        self.task = asyncio.create_task(self._send(writer, kind))

    async def _send(self, writer: PipelinedWriter, kind: int) -> None:
        for event in CONTENT:
            await writer.send(0, event, kind)
            self.sent += 1
        await writer.finish()


async def round_trip(cluster: MiniCluster) -> None:
    """Let a partition come and go."""
    writer = await PipelinedWriter.open(await cluster.producer(0), 8, 1)
    await writer.finish()
    reader = PipelinedReader(await cluster.consumer(0), [(writer.client.ack, 8)])
    await reader.read_all()


@kinds
@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_reader_with_a_paused_socket_holds_back_the_producer(tmp_path, kind, reader_at):
    async with mini_cluster(
        tmp_path,
        exclusive_buffers_per_channel=EXCLUSIVE,
        floating_buffers_per_gate=FLOATING,
    ) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
        client = await cluster.consumer(reader_at)
        reader = PipelinedReader(client, [(writer.client.ack, 7)], credit=READER_CREDIT)
        await client.expect(GateOpened)
        client.stop_reading()
        sending = Sending(writer, kind)

        waiting = [READER_CREDIT, EXCLUSIVE + FLOATING]  # for the reader, in the partition
        if reader_at:  # in the channel; there is no backlog of priority events
            waiting.append(EXCLUSIVE + (FLOATING if kind == EVENT else 0))
        if kind == PRIORITY_EVENT:
            waiting = [each + MAX_OVERDRAFT_EVENTS for each in waiting]
        await eventually(lambda: sending.sent >= sum(waiting))
        await round_trip(cluster)
        assert sending.sent == sum(waiting)
        assert not sending.task.done()

        client.resume_reading()
        await reader.read_all()
        await sending.task
        assert reader.received[0] == [(kind, event) for event in CONTENT]


@kinds
async def test_without_credit_a_taskmanager_stops_reading_the_connection(tmp_path, kind):
    async with mini_cluster(
        tmp_path,
        flow_control="watermark",
        exclusive_buffers_per_channel=EXCLUSIVE,
        floating_buffers_per_gate=FLOATING,
    ) as cluster:
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
        client = await cluster.consumer(1)
        reader = PipelinedReader(client, [(writer.client.ack, 7)], credit=READER_CREDIT)
        await client.expect(GateOpened)
        client.stop_reading()
        sending = Sending(writer, kind)

        await eventually(lambda: cluster[1].peers.clients())
        (peer,) = cluster[1].peers.clients()
        assert isinstance(peer, UncreditedPartitionRequestClient)
        (gate,) = gates(cluster[1])
        (channel,) = gate.channels
        assert isinstance(channel, RemoteInputChannel)
        await eventually(lambda: channel.events_on_account == MAX_OVERDRAFT_EVENTS)
        await eventually(lambda: peer.waits_for is channel, "standing still")
        await round_trip(cluster)
        assert channel.events_on_account == MAX_OVERDRAFT_EVENTS
        assert channel.queued_buffers <= EXCLUSIVE + FLOATING + MAX_OVERDRAFT_EVENTS

        client.resume_reading()
        await reader.read_all()
        await sending.task
        assert reader.received[0] == [(kind, event) for event in CONTENT]


@TASKS
@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_task_that_waits_for_memory_is_held_back(tmp_path, clients_at, reader_at):
    """A gate is open and not read; the task awaits ``wait_available`` between events."""
    emitted = 0

    async def emit() -> None:
        nonlocal emitted
        for event in CONTENT:
            await partition.writer.wait_available()
            partition.writer.emit_event(event, EVENT, 0)
            emitted += 1
        await partition.finish()

    async with (
        mini_cluster(tmp_path) as cluster,
        clients_at(cluster, 0, reader_at) as (client, other),
        client.open_result_partition(1, 7, 1) as partition,
        other.open_gate([partition.location], 0) as gate,
    ):
        emitting = asyncio.create_task(emit())
        await eventually(lambda: emitting.done() or not partition.writer.is_available)
        await round_trip(cluster)
        assert not emitting.done()
        assert emitted <= 6 * (EXCLUSIVE + FLOATING)
        seen = []
        while (taken := await gate.next_buffer_or_event()) is not None:
            seen.append(bytes(taken.buffer.payload))
            give_back(taken.buffer)
        await emitting
        assert seen[:-1] == CONTENT  # the end comes last
