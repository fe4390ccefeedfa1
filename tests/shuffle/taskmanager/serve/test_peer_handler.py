"""Partition requests of another TaskManager: early ones, cancelled ones, and impossible ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.limits import MAX_CREDIT, MAX_GATE_ATTEMPTS
from sluice.shuffle.counters import Counters
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.gate.local_input_channel import TaskEventDispatcher
from sluice.shuffle.histogram import Histogram
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.serve.serving_handler import ServingEvents
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.bad_input import PEER, beside_a_good_client, greet
from tests.support.fakes import FakeConnection
from tests.support.mini_cluster import mini_cluster, taskmanager_config
from tests.support.peers import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY = ShuffleKey("app", 1)
SIZE = 64
SEGMENTS = 8
REQUEST = m.PartitionRequest(3, "app", 1, [7], 0, 1, 2)
BARRIER = encode_event(CheckpointBarrier(1, 2, False))


class Rig:
    """A handler over a connection that records, and a partition that can be registered."""

    def __init__(self, directory: Path, max_channels: int = 4) -> None:
        self.store = ShuffleStore.open(taskmanager_config(directory).storage)
        self.partitions = ResultPartitionManager(self.store, SIZE, 5)
        self.events = TaskEventDispatcher()
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        self.connection = FakeConnection()
        self.connection.is_encrypted = True  # without checksums
        self.connection.max_payload_bytes = self.connection.large_payload_bytes = SIZE
        self.counters = Counters()
        self.credit_waits = Histogram()
        self.lost = 0
        self.handler = PeerHandler(
            self.connection,
            self.partitions,
            self.events,
            ReadPool(self.network, "read", 2),
            self.counters,
            ServingEvents(lambda: None, self._lost),
            max_channels,
            self.credit_waits,
        )

    def _lost(self) -> None:
        self.lost += 1

    def register(self) -> PipelinedResultPartition:
        pool = self.network.create_local_pool("partition", 1, 4)
        partition = PipelinedResultPartition("p", 1, pool)
        self.partitions.register_pipelined(KEY, 7, partition, partition.fail)
        return partition

    def told(self, message: m.Message, payload: bytes = b"") -> None:
        if payload:
            memory = self.handler.payload_buffer(message, len(payload))
            assert memory is not None
            memory[:] = payload
        self.handler.message_received(message, len(payload))

    def errors(self) -> list[tuple[int | None, int]]:
        return [(e.channel, e.code) for e in self.connection.sent if type(e) is m.ErrorResponse]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    if not rig.lost:
        rig.handler.connection_lost(SluiceError("the end"))
    await turns(3)
    await rig.store.close()


def write(partition: PipelinedResultPartition, content: bytes) -> None:
    builder = partition.request_builder(0)
    assert builder is not None
    partition.add_consumer(builder.create_consumer(), 0)
    builder.append_and_commit(content)
    builder.finish()


async def test_an_early_request_keeps_messages_to_the_producer_until_it_is_there(rig):
    rig.told(REQUEST)
    rig.told(m.TaskEvent(3, 5), b"early")
    await turns(3)
    assert rig.partitions.waiting_requests == 1
    heard: list[tuple[int, bytes]] = []
    rig.events.register(KEY, 7, lambda event_type, payload: heard.append((event_type, payload)))
    partition = rig.register()
    write(partition, b"data")
    await turns(5)
    assert heard == [(5, b"early")]
    assert rig.connection.sent == [m.BufferResponse(3, 0, 0, m.DATA)]
    assert rig.connection.payloads == [b"data"]
    assert (rig.counters.peer_bytes_out, rig.counters.peer_buffers_out) == (4, 1)
    rig.told(m.TaskEvent(3, 6), b"later")
    assert heard[1:] == [(6, b"later")]
    partition.release()


async def test_a_request_is_charged_until_its_channel_is_closed(rig):
    account = rig.partitions.accounts.of("app")
    rig.told(replace(REQUEST, map_attempt_ids=list(range(100))))
    assert account.amount(Resource.METADATA_BYTES) == 800
    rig.told(m.CancelPartitionRequest(3))
    assert account.amount(Resource.METADATA_BYTES) == 0
    rig.told(replace(REQUEST, map_attempt_ids=[1, 2, 1]))
    rig.told(replace(REQUEST, map_attempt_ids=list(range(MAX_GATE_ATTEMPTS + 1))))
    limits: list[int | None] = [None] * len(Resource)
    limits[Resource.METADATA_BYTES] = 799
    account.set_limits(tuple(limits))
    rig.told(replace(REQUEST, map_attempt_ids=list(range(100))))
    refused = (ErrorCode.MALFORMED_MESSAGE, ErrorCode.LIMIT_EXCEEDED, ErrorCode.QUOTA_EXCEEDED)
    assert rig.errors() == [(3, code) for code in refused]
    assert not rig.handler.is_busy
    assert account.held == (0,) * len(Resource)


async def test_a_cancelled_request_waits_no_longer(rig):
    rig.told(REQUEST)
    await turns(3)
    rig.told(m.CancelPartitionRequest(3))
    await turns(3)
    assert rig.partitions.waiting_requests == 0
    assert not rig.handler.is_busy
    partition = rig.register()
    write(partition, b"data")
    await turns(5)
    assert rig.connection.sent == []
    partition.release()


async def test_a_lost_connection_cancels_its_requests(rig):
    rig.told(REQUEST)
    await turns(3)
    rig.handler.connection_lost(SluiceError("gone"))
    await turns(3)
    assert rig.partitions.waiting_requests == 0
    assert (rig.lost, rig.handler.is_busy) == (1, False)


async def test_a_request_that_cannot_be_served_fails_its_channel_and_frees_the_number(rig):
    partition = rig.register()
    rig.told(replace(REQUEST, start_subpartition=1, end_subpartition=2))
    await turns(5)
    assert rig.errors() == [(3, ErrorCode.MALFORMED_MESSAGE)]
    rig.told(REQUEST)
    write(partition, b"data")
    await turns(5)
    assert rig.connection.payloads[-1] == b"data"
    partition.release()


async def test_a_channel_too_many_is_refused_and_the_others_live_on(rig):
    for number in range(5):
        rig.told(replace(REQUEST, channel=number, map_attempt_ids=[number]))
    assert rig.errors() == [(4, ErrorCode.LIMIT_EXCEEDED)]
    await turns(3)
    assert rig.partitions.waiting_requests == 4


async def test_a_channel_that_is_not_blocked_has_nothing_to_resume(rig):
    rig.told(REQUEST)
    await turns(3)
    with pytest.raises(InvalidRequest, match="not blocked"):
        rig.handler.resume_consumption(rig.handler.readers[3])
    rig.told(m.ResumeConsumption(3))
    assert rig.counters.late_messages == {"ResumeConsumption": 1}


async def test_a_closing_peer_closes_the_connection(rig):
    rig.told(m.CloseRequest())
    assert rig.connection.closing


@pytest.mark.parametrize("credit", [MAX_CREDIT + 1, 2**32 - 1])
async def test_too_much_initial_credit_closes_the_connection(tmp_path, credit):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, PEER)
        bad.send_message(m.PartitionRequest(1, "app", 1, [1], 0, 1, credit))
        error = await bad.until_refused()
        assert error is not None
        assert (error.code, error.limit) == (ErrorCode.CREDIT_OVERFLOW, str(MAX_CREDIT))


async def test_a_channel_number_used_twice_closes_the_connection_of_a_peer(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, PEER)
        for _ in range(2):
            bad.send_message(m.PartitionRequest(7, "app", 1, [9], 0, 1, 1))
        error = await bad.until_refused()
        assert error is not None
        assert (error.code, error.value) == (ErrorCode.CHANNEL_IN_USE, "7")


async def test_a_channel_without_first_credit_is_told_of_data_again_after_a_blocking_event(rig):
    """Credit from before ResumeConsumption is void: the consumer has given its buffers away."""
    partition = rig.register()
    rig.told(replace(REQUEST, initial_credit=0))
    await turns(5)
    assert rig.connection.sent == []
    write(partition, b"before")
    await turns(5)
    assert rig.connection.sent == [m.BacklogAnnouncement(3, 1)]
    rig.told(m.AddCredit(3, 2))
    partition.emit_event(BARRIER, m.BLOCKING_EVENT, 0)
    write(partition, b"after")
    await turns(5)
    assert rig.connection.sent[1:] == [
        m.BufferResponse(3, 0, 2, m.DATA),
        m.BufferResponse(3, 1, 0, m.BLOCKING_EVENT),
    ]
    rig.told(m.AddCredit(3, 1))  # was on its way
    rig.told(m.ResumeConsumption(3))
    await turns(5)
    assert rig.connection.sent[3:] == [m.BacklogAnnouncement(3, 1)]
    rig.told(m.AddCredit(3, 1))
    rig.told(m.ResumeConsumption(3))  # late: nothing blocks, and the credit counts
    await turns(5)
    assert rig.connection.sent[4:] == [m.BufferResponse(3, 2, 0, m.DATA)]
    rig.connection.drain()
    partition.release()


async def test_a_channel_with_first_credit_is_never_sent_an_announcement(rig):
    partition = rig.register()
    rig.told(replace(REQUEST, initial_credit=1))
    await turns(5)
    for content in (b"first", b"second"):
        write(partition, content)
        await turns(5)
    assert rig.connection.sent == [m.BufferResponse(3, 0, 0, m.DATA)]
    rig.connection.drain()
    partition.release()
