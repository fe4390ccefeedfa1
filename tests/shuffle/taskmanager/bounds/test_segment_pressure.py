"""Segments of those who do not move, while another application waits for some; look by look."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    DATA,
    PARTITION_PIPELINED,
    PARTITION_PIPELINED_BOUNDED,
    AddCredit,
    BufferResponse,
    CloseGate,
    ErrorResponse,
    GateChannel,
    GateClosed,
    GateOpened,
    Message,
    OpenGate,
    OpenPipelinedPartition,
    PartitionOpened,
    PipelinedData,
)
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.segment_pressure import ATTEMPT, HALF, SHUFFLE, answer, ask, look

if TYPE_CHECKING:
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

SEGMENTS = 16
GREEDY, INNOCENT = "greedy", "innocent"
PAYLOAD = bytes(SEGMENT_SIZE_BYTES)


def check_taken_back(message: Message, channel: int) -> None:
    assert isinstance(message, ErrorResponse)
    assert message.code == ErrorCode.DEADLINE_EXCEEDED
    assert message.channel == channel
    assert message.retryable
    assert message.limit == "20.0 s without progress"
    assert "gate_progress_timeout_seconds" in message.message


async def refused(client: Client) -> None:
    told = await ask(client)
    assert isinstance(told, ErrorResponse)
    assert told.code == ErrorCode.INSUFFICIENT_BUFFERS


async def open_gate(client: Client, credit: int = 1, *, at: MiniCluster, index: int = 0) -> None:
    """Open gate 0 with channel 1, to the pipelined partition or map output."""
    host, port = at[index].address
    source = GateChannel(1, at[index].taskmanager_id, host, port, [ATTEMPT])
    client.send(OpenGate(0, SHUFFLE, 0, 1, credit, [source]))
    assert isinstance(await answer(client, GateOpened), GateOpened)


# ---- producers ---------------------------------------------------------------------------------


async def test_a_partition_without_data_goes_when_another_application_needs_its_segments(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy), PartitionOpened)
        await refused(innocent)
        await look(cluster)
        check_taken_back(await answer(greedy, ErrorResponse), 0)
        assert isinstance(await ask(innocent), PartitionOpened)
        assert cluster[0].counters.progress_deadlines == {"partition": 1}


async def test_without_anyone_waiting_a_partition_stays_for_ever(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        assert isinstance(await ask(greedy), PartitionOpened)
        await look(cluster, 5)
        assert not cluster[0].counters.progress_deadlines
        assert not cluster[0].segment_pressure._watch.is_watching


async def test_an_application_that_waits_for_itself_takes_nothing_from_itself(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy, same = [await cluster.producer(0, GREEDY) for _ in range(2)]
        assert isinstance(await ask(greedy), PartitionOpened)
        same.send(
            OpenPipelinedPartition(
                0, SHUFFLE, ATTEMPT + 1, HALF, PARTITION_PIPELINED, CONSUME_WHEN_REGISTERED
            )
        )
        assert isinstance(await answer(same, PartitionOpened), ErrorResponse)
        await look(cluster, 5)
        assert not cluster[0].counters.progress_deadlines


async def test_a_partition_whose_data_comes_stays(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy), PartitionOpened)
        for number in range(4):
            await refused(innocent)
            greedy.send(PipelinedData(0, 0, DATA), b"x")
            (output,) = _outputs(cluster, GREEDY)
            await eventually(lambda n=number, o=output: o.total_bytes == n + 1, "a byte")  # type: ignore[misc]
            await look(cluster)
        assert not cluster[0].counters.progress_deadlines


async def test_a_partition_that_nobody_reads_goes(tmp_path):
    """Its client has sent all that fits; no reader has come."""
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy), PartitionOpened)
        await fill(greedy, cluster)
        await refused(innocent)
        await look(cluster)
        check_taken_back(await answer(greedy, ErrorResponse), 0)
        assert isinstance(await ask(innocent), PartitionOpened)


def _outputs(cluster: MiniCluster, application_id: str, index: int = 0):
    return [
        output
        for connection, handler in cluster[index].handlers.items()
        if connection.application_id == application_id
        for output in getattr(handler, "pipelined_outputs", ())
    ]


async def fill(producer: Client, cluster: MiniCluster, index: int = 0) -> None:
    """Send data until there is no credit left."""
    (output,) = _outputs(cluster, GREEDY, index)
    while credit := output.available_credit:
        bytes_now = output.total_bytes
        for _ in range(credit):
            producer.send(PipelinedData(0, 0, DATA), PAYLOAD)
        wanted = bytes_now + credit * len(PAYLOAD)
        await eventually(lambda w=wanted: output.total_bytes == w, "the data")  # type: ignore[misc]


async def fill_up(producer: Client, cluster: MiniCluster, index: int = 0) -> None:
    """Send data again when all buffers that were read have been given back."""
    connections = cluster[index].handlers
    await eventually(lambda: not any(each.leased_buffers for each in connections), "no lease")
    await fill(producer, cluster, index)


# ---- readers -----------------------------------------------------------------------------------


async def test_a_gate_that_is_not_read_goes_when_another_application_waits(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        reader = await cluster.consumer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy, 1), PartitionOpened)
        await open_gate(reader, at=cluster)
        await fill(greedy, cluster)
        assert isinstance(await answer(reader, BufferResponse), BufferResponse)
        await fill_up(greedy, cluster)
        assert isinstance(await ask(innocent, SEGMENTS - 2), ErrorResponse)
        await look(cluster)
        check_taken_back(await answer(reader, ErrorResponse), 1)
        told = await answer(greedy, ErrorResponse)  # its reader is gone
        assert isinstance(told, ErrorResponse)
        assert told.code == ErrorCode.PARTITION_RELEASED
        assert isinstance(await ask(innocent, SEGMENTS - 2), PartitionOpened)
        reader.send(CloseGate(0))  # late, and answered all the same
        assert isinstance(await answer(reader, GateClosed), GateClosed)
        assert cluster[0].counters.progress_deadlines == {"gate": 1}


@pytest.mark.parametrize("waits", [False, True], ids=["nobody", "others"])
async def test_a_slow_reader_is_legal(tmp_path, waits):
    """Without anyone waiting it may stop for ever; while others wait it must move."""
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        reader = await cluster.consumer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy, 1), PartitionOpened)
        await open_gate(reader, at=cluster)
        await fill(greedy, cluster)
        for _ in range(4):
            assert isinstance(await answer(reader, BufferResponse), BufferResponse)
            if waits:
                assert isinstance(await ask(innocent, SEGMENTS - 2), ErrorResponse)
                reader.send(AddCredit(1, 1))
                await eventually(lambda: reader._messages, "the next buffer")
                await fill(greedy, cluster)
            else:
                await look(cluster, 3)
                reader.send(AddCredit(1, 1))
            await look(cluster)
        assert not cluster[0].counters.progress_deadlines


async def test_a_reader_that_waits_for_data_is_legal(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        reader = await cluster.consumer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy, 1), PartitionOpened)
        await open_gate(reader, 10, at=cluster)
        assert isinstance(await ask(innocent, SEGMENTS - 2), ErrorResponse)
        await look(cluster)
        # Its producer stands still, and is told so. The gate is not closed: it had credit.
        check_taken_back(await answer(greedy, ErrorResponse), 0)
        told = await answer(reader, ErrorResponse)
        assert isinstance(told, ErrorResponse)
        assert (told.channel, told.code) == (1, ErrorCode.PRODUCER_FAILED)
        assert cluster[0].counters.progress_deadlines == {"partition": 1}


async def test_a_remote_gate_that_is_not_read_gives_its_segments_back(tmp_path):
    async with mini_cluster(tmp_path, 2, network_segments=SEGMENTS) as cluster:
        writer = await cluster.producer(1, GREEDY)
        reader = await cluster.consumer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(writer, 1), PartitionOpened)
        await open_gate(reader, at=cluster, index=1)
        for _ in range(3):
            writer.send(PipelinedData(0, 0, DATA), PAYLOAD)
        assert isinstance(await answer(reader, BufferResponse), BufferResponse)
        handlers = cluster[0].handlers.values()
        (handler,) = [each for each in handlers if isinstance(each, ConsumerHandler)]
        await eventually(lambda: list(handler.unmoved()), "a gate with data")
        assert isinstance(await ask(innocent, SEGMENTS - 2), ErrorResponse)
        await look(cluster)
        check_taken_back(await answer(reader, ErrorResponse), 1)
        assert isinstance(await ask(innocent, SEGMENTS - 2), PartitionOpened)


async def test_a_channel_of_another_taskmanager_that_is_not_read_goes(tmp_path):
    """The segments are those of the partition, and the reader is on another host."""
    async with mini_cluster(tmp_path, 2, network_segments=SEGMENTS) as cluster:
        writer = await cluster.producer(1, GREEDY)
        reader = await cluster.consumer(0, GREEDY)
        innocent = await cluster.producer(1, INNOCENT)
        assert isinstance(await ask(writer, 1), PartitionOpened)
        await open_gate(reader, at=cluster, index=1)
        handlers = cluster[1].handlers.values()
        await eventually(lambda: len(handlers) == 3, "the connection of the other one")
        (peer,) = [each for each in handlers if isinstance(each, PeerHandler)]
        while not list(peer.unmoved()):
            await fill(writer, cluster, 1)
            await asyncio.sleep(0.001)  # until the channel has no credit left
        assert isinstance(await answer(reader, BufferResponse), BufferResponse)
        await fill_up(writer, cluster, 1)
        assert isinstance(await ask(innocent, SEGMENTS - 2), ErrorResponse)
        await look(cluster, index=1)
        check_taken_back(await answer(reader, ErrorResponse), 1)
        assert isinstance(await ask(innocent, SEGMENTS - 2), PartitionOpened)
        assert cluster[1].counters.progress_deadlines == {"channel": 1}


async def test_stored_data_in_memory_holds_no_segments_and_may_stay_unread(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        await cluster.write(0, ATTEMPT, [[bytes(20 * SEGMENT_SIZE_BYTES)]])
        reader = await cluster.consumer(0)
        greedy = await cluster.producer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        await open_gate(reader, at=cluster)
        assert isinstance(await answer(reader, BufferResponse), BufferResponse)
        assert isinstance(await ask(greedy), PartitionOpened)
        await refused(innocent)
        await look(cluster)
        assert cluster[0].counters.progress_deadlines == {"partition": 1}
        reader.send(AddCredit(1, 1))
        assert isinstance(await answer(reader, BufferResponse), BufferResponse)


# ---- waiting -----------------------------------------------------------------------------------


async def test_a_request_that_waits_is_served_with_what_was_taken_back(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        assert isinstance(await ask(greedy), PartitionOpened)
        pool = cluster[0].network_pool
        owner = cluster[0].accounts.of(INNOCENT)
        request = asyncio.create_task(pool.request_segments_within(SEGMENTS - 2, 30, owner))
        await asyncio.sleep(0)
        assert pool.waiting_owners() == {owner}
        await look(cluster)
        segments = await request
        assert len(segments) == SEGMENTS - 2
        assert pool.waiting_owners() == set()
        pool.recycle_segments(segments)
        check_taken_back(await answer(greedy, ErrorResponse), 0)


async def test_only_as_much_is_taken_back_as_others_wait_for(tmp_path):
    """The application with the most promised segments gives way first."""
    async with mini_cluster(
        tmp_path,
        1,
        network_segments=SEGMENTS,
        exclusive_buffers_per_channel=1,
        floating_buffers_per_gate=1,
    ) as cluster:
        small, large = await cluster.producer(0, "small"), await cluster.producer(0, "large")
        innocent = await cluster.producer(0, INNOCENT)
        bounded = PARTITION_PIPELINED_BOUNDED
        for client, subpartitions in ((small, 2), (large, 8)):
            assert isinstance(await ask(client, subpartitions, bounded), PartitionOpened)
        assert isinstance(await ask(innocent, 9, bounded), ErrorResponse)
        await look(cluster)
        check_taken_back(await answer(large, ErrorResponse), 0)
        assert isinstance(await ask(innocent, 9, bounded), PartitionOpened)
        await look(cluster, 4)
        assert cluster[0].counters.progress_deadlines == {"partition": 1}


async def test_what_is_gone_already_is_not_taken_back_again(tmp_path):
    """Something may end with something else that was taken back in the same look."""
    async with mini_cluster(tmp_path, 2, network_segments=SEGMENTS) as cluster:
        writer, reader = await cluster.producer(0), await cluster.consumer(0)
        source = await cluster.producer(1)
        assert isinstance(await ask(source, 1), PartitionOpened)
        await open_gate(reader, at=cluster, index=1)
        error = SluiceError("It stands still", code=ErrorCode.DEADLINE_EXCEEDED)
        for index in range(2):
            await eventually(lambda i=index: cluster[i].handlers, "a connection")  # type: ignore[misc]
            for handler in cluster[index]._segment_holders():
                assert not handler.take_back(99, error)
        assert not reader._messages
        assert not writer._messages
        reader.send(CloseGate(0))
        assert isinstance(await answer(reader, GateClosed), GateClosed)


async def test_a_connection_that_goes_is_forgotten(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = await cluster.producer(0, GREEDY)
        innocent = await cluster.producer(0, INNOCENT)
        assert isinstance(await ask(greedy), PartitionOpened)
        await refused(innocent)
        await asyncio.sleep(0)
        pressure = cluster[0].segment_pressure
        assert len(pressure._owners) == 1
        await greedy.close()
        await eventually(lambda: len(cluster[0].handlers) == 1, "the end")
        assert not pressure._owners
        await look(cluster, 3)
        assert not cluster[0].counters.progress_deadlines
