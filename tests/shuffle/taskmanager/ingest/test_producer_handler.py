"""The producer leg hands each message to its output; an error that it raises ends that output."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode, UnexpectedMessage
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    DATA,
    PARTITION_PIPELINED,
    AbortPartition,
    AddCredit,
    BeginRegion,
    CloseRequest,
    ErrorResponse,
    FinishPartition,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionAborted,
    PartitionOpened,
    PipelinedData,
    RegionData,
)
from sluice.shuffle.taskmanager.ingest.producer_handler import ProducerHandler
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.transport.errors import ConnectionLost
from tests.shuffle.taskmanager.ingest.rig import SEGMENT, ProducerConnection, producer_services
from tests.support.mini_cluster import MEMORY_TIER, mini_cluster, taskmanager_config

SEGMENTS = 64
STORED, PIPELINED = 0, 1


class Rig:
    """A handler with a map output and a pipelined partition."""

    def __init__(self, store: ShuffleStore) -> None:
        self.store = store
        self.services = producer_services(store, SEGMENTS, 8)
        self.connection = ProducerConnection()
        self.lost = 0
        self.handler = ProducerHandler(self.connection, self.services, self._lost)
        self.handler.message_received(OpenPartition(STORED, 1, 1, 1), 0)
        self.handler.message_received(
            OpenPipelinedPartition(PIPELINED, 2, 1, 1, PARTITION_PIPELINED, 0), 0
        )

    def _lost(self) -> None:
        self.lost += 1

    def used_bytes(self) -> int:
        return sum(tier.used_bytes for tier in self.store.tiers())


@pytest.fixture
async def rig(tmp_path):
    rig = Rig(
        ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=MEMORY_TIER).storage)
    )
    yield rig
    if not rig.lost:
        rig.handler.connection_lost(ConnectionLost("gone"))
    assert rig.services.network_pool.available_segments == SEGMENTS
    assert rig.used_bytes() == 0
    rig.services.resumable.close()
    rig.services.region_areas.close()
    await rig.store.close()


async def test_both_kinds_of_outputs_are_opened_and_shown(rig):
    opened = [each for each in rig.connection.sent if isinstance(each, PartitionOpened)]
    assert [each.partition for each in opened] == [STORED, PIPELINED]
    assert isinstance(rig.connection.sent[-1], AddCredit)
    assert [each.number for each in rig.handler.stored_outputs] == [STORED]
    assert [each.number for each in rig.handler.pipelined_outputs] == [PIPELINED]
    assert rig.handler.stored_credit == 0
    assert rig.handler.is_busy


async def test_an_output_that_cannot_be_opened_has_failed(rig):
    rig.handler.message_received(OpenPipelinedPartition(2, 2, 1, 1, PARTITION_PIPELINED, 0), 0)
    told = rig.connection.sent[-1]
    assert isinstance(told, ErrorResponse)
    assert (told.channel, told.code) == (2, ErrorCode.DUPLICATE_MAP_OUTPUT)
    rig.handler.message_received(FinishPartition(2, 0, 0), 0)  # late, and no error
    assert rig.connection.sent[-1] is told


@pytest.mark.parametrize(
    ("wrong", "length"),
    [
        (RegionData(STORED, 0), 1),
        (RegionData(STORED, 0), 0),
        (PipelinedData(PIPELINED, 7, DATA), 1),
        (FinishPartition(PIPELINED, 1, 0), 0),
    ],
)
async def test_an_error_ends_its_output_alone(rig, wrong, length):
    if length:
        assert rig.handler.payload_buffer(wrong, length) is not None
    rig.handler.message_received(wrong, length)
    numbers = [each.channel for each in rig.connection.sent if isinstance(each, ErrorResponse)]
    assert numbers == [wrong.partition]
    left = [*rig.handler.stored_outputs, *rig.handler.pipelined_outputs]
    assert [each.number for each in left] == [1 - wrong.partition]


@pytest.mark.parametrize(
    "wrong", [RegionData(PIPELINED, 0), PipelinedData(STORED, 0, DATA), RegionData(9, 0)]
)
async def test_data_of_the_other_kind_ends_the_connection(rig, wrong):
    with pytest.raises(UnexpectedMessage):
        rig.handler.payload_buffer(wrong, 1)
    with pytest.raises(UnexpectedMessage):
        rig.handler.message_received(wrong, 1)


async def test_a_payload_of_any_other_message_ends_the_connection(rig):
    with pytest.raises(UnexpectedMessage, match="Payload on a producer leg"):
        rig.handler.payload_buffer(CloseRequest(), 1)


async def begin_payload(rig: Rig, number: int) -> RegionData | PipelinedData:
    """Let a payload begin to arrive."""
    message: RegionData | PipelinedData = PipelinedData(PIPELINED, 0, DATA)
    if number == STORED:
        content = bytes(SEGMENT)
        begin = BeginRegion(STORED, 0, 0, [SEGMENT], crc32c(content))
        rig.handler.message_received(begin, 0)
        message = RegionData(STORED, 0)
    assert rig.handler.payload_buffer(message, SEGMENT) is not None
    return message


@pytest.mark.parametrize("number", [STORED, PIPELINED])
async def test_a_payload_whose_output_fails_meanwhile_is_late(rig, number):
    message = await begin_payload(rig, number)
    output = rig.handler._outputs.by_number[number]
    rig.handler._outputs.fail(number, ConnectionLost("resumed elsewhere"))
    if number == STORED:
        assert rig.used_bytes() > 0
    rig.handler.message_received(message, SEGMENT)
    assert rig.services.counters.late_messages == {type(message).__name__: 1}
    assert rig.used_bytes() == 0
    assert not rig.handler._outputs.contains(output)


@pytest.mark.parametrize("number", [STORED, PIPELINED])
async def test_a_connection_lost_amid_a_payload_leaves_nothing(rig, number):
    """The fixture looks for memory that is left."""
    await begin_payload(rig, number)
    rig.handler.connection_lost(ConnectionLost("gone"))
    assert rig.lost == 1
    assert not rig.handler.is_busy


async def test_an_abort_is_answered_whatever_it_names(rig):
    for number in (STORED, PIPELINED, 9):
        rig.handler.message_received(AbortPartition(number), 0)
        answer = rig.connection.sent[-1]
        assert isinstance(answer, PartitionAborted)
        assert answer.partition == number
    assert not rig.handler.is_busy


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


async def test_a_buffer_for_a_failed_partition_returns_its_segment(rig):
    (output,) = rig.handler.pipelined_outputs
    data = PipelinedData(PIPELINED, 0, DATA)
    assert rig.handler.payload_buffer(data, 1) is not None
    output.partition.fail(ConnectionLost("a reader's"))
    rig.handler.message_received(data, 1)
    told = rig.connection.sent[-1]
    assert isinstance(told, ErrorResponse)
    assert told.channel == PIPELINED


@pytest.mark.interpreted
async def test_a_bug_on_the_arrival_of_a_buffer_keeps_no_segment(rig, monkeypatch):
    (output,) = rig.handler.pipelined_outputs
    data = PipelinedData(PIPELINED, 0, DATA)
    assert rig.handler.payload_buffer(data, 1) is not None

    def broken(*_):
        raise AttributeError("a bug")

    monkeypatch.setattr(output.partition, "extend_last", broken)
    with pytest.raises(AttributeError):
        rig.handler.message_received(data, 1)
