"""The outputs of one connection: finding one, failing one, and telling late from wrong messages."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import ChannelInUse, ErrorCode, UnexpectedMessage
from sluice.protocol.schema import (
    BeginRegion,
    ErrorResponse,
    FinishPartition,
    OpenPartition,
    PartitionAborted,
    PipelinedData,
    RegionData,
    SecureRegion,
)
from sluice.shuffle.errors import PartitionReleased
from sluice.shuffle.taskmanager.ingest.incoming_output import MAX_FAILED_OUTPUTS
from sluice.shuffle.taskmanager.ingest.stored_output import StoredOutput

ERROR = PartitionReleased("gone")


@pytest.mark.parametrize(
    "message", [RegionData(0, 0), BeginRegion(0, 0, 0, [1], 0), FinishPartition(0, 0, 0)]
)
async def test_a_message_finds_the_output_with_its_number(rig, message):
    assert rig.outputs.find(message) is rig.output
    assert rig.outputs.contains(rig.output)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (PipelinedData(0, 0, 0), "PipelinedData is for a partition that is not open"),
        (PipelinedData(1, 0, 0), "PipelinedData is for a partition that is not open"),
        (RegionData(1, 0), "^RegionData is for a partition that is not open"),
        (SecureRegion(1, 0), "^SecureRegion is for a partition that is not open"),
    ],
)
async def test_a_message_for_an_output_that_was_not_opened(rig, message, words):
    """The connection ends: its client does not know which outputs it has."""
    with pytest.raises(UnexpectedMessage, match=words) as caught:
        rig.outputs.find(message)
    assert caught.value.value == message.partition


async def test_a_message_for_a_failed_output_is_late(rig):
    rig.outputs.fail(0, ERROR)
    assert rig.outputs.find(RegionData(0, 0)) is None
    assert rig.outputs.find(PipelinedData(0, 0, 0)) is None
    rig.outputs.count_late(RegionData(0, 0))
    rig.outputs.count_late(PipelinedData(0, 0, 0))
    counters = rig.services.counters
    assert counters.late_messages == {"RegionData": 1, "PipelinedData": 1}
    assert counters.errors_by_code == {ErrorCode.PARTITION_RELEASED.name: 1}
    assert counters.map_outputs_aborted == 1
    (told,) = rig.failures
    assert told.code is ErrorCode.PARTITION_RELEASED
    rig.outputs.answer_abort(0)
    assert isinstance(rig.connection.sent[-1], PartitionAborted)
    with pytest.raises(UnexpectedMessage):
        rig.outputs.find(RegionData(0, 0))


async def test_the_oldest_failures_are_forgotten(rig):
    for number in range(1, MAX_FAILED_OUTPUTS + 2):
        rig.outputs.fail(number, ERROR)
    assert rig.outputs.find(RegionData(2, 0)) is None
    assert rig.outputs.find(RegionData(MAX_FAILED_OUTPUTS + 1, 0)) is None
    with pytest.raises(UnexpectedMessage):
        rig.outputs.find(RegionData(1, 0))


async def test_a_number_is_free_again_when_its_output_has_ended(rig):
    with pytest.raises(ChannelInUse):
        rig.outputs.may_open(0, stored=True)
    idle = []
    rig.services.on_idle = lambda: idle.append(True)
    rig.output.abort()
    assert idle == [True]
    assert not rig.outputs.contains(rig.output)
    assert rig.outputs.may_open(0, stored=True)


async def test_a_connection_writes_a_limited_number_of_outputs(rig):
    for number in (1, 2, 3):
        assert rig.outputs.may_open(number, stored=True)
        StoredOutput(rig.outputs, OpenPartition(number, 1, 1 + number, 4)).open()
    assert not rig.outputs.may_open(4, stored=True)
    told = rig.connection.sent[-1]
    assert isinstance(told, ErrorResponse)
    assert (told.channel, told.code, told.value) == (4, ErrorCode.LIMIT_EXCEEDED, "5")
    assert rig.outputs.find(RegionData(4, 0)) is None


@pytest.mark.parametrize("begun", [False, True])
async def test_a_draining_taskmanager_takes_only_outputs_that_are_begun(rig, begun):
    rig.services.draining = True
    assert rig.outputs.may_open(1, stored=True, begun=begun) is begun
    codes = [failure.code for failure in rig.failures]
    assert codes == ([] if begun else [ErrorCode.SHUTTING_DOWN])
