"""Sending the regions of a stored partition: credit, sizes of payloads, aborting."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import SluiceError, UnexpectedMessage
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import (
    EVERY_SUBPARTITION,
    AbortPartition,
    AddCredit,
    BeginRegion,
    FinishPartition,
    OpenPartition,
    PartitionFinished,
    PartitionOpened,
    RegionData,
    RegionOpened,
)
from sluice.shuffle.client.leg_region_sink import LegRegionSink, gathered
from sluice.shuffle.errors import PartitionReleased
from sluice.shuffle.partition.region_builder import OutgoingRegion
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from tests.shuffle.client.rig import SEGMENT_SIZE_BYTES, ProducerRig, turns

CONTENT = bytes(range(250))
BROKEN = SluiceError("broken on purpose")


def region(content=CONTENT, number=0):
    parts = [content[:33], memoryview(content)[33:]]
    return OutgoingRegion(number, [len(content), 0], crc32c(content), parts, False)


async def a_sink(rig):
    number = rig.leg.new_number()
    sink = LegRegionSink(rig.leg, number)
    opening = asyncio.create_task(rig.leg.open(number, OpenPartition(number, 1, 7, 2), sink))
    await turns(1)
    rig.leg.message_received(PartitionOpened(number), 0)
    await opening
    rig.connection.sent.clear()
    rig.connection.payloads.clear()
    return sink


async def test_a_region_is_sent_as_credit_comes():
    rig = ProducerRig()
    sink = await a_sink(rig)
    writing = asyncio.create_task(sink.write_region(region()))
    await turns()
    assert rig.connection.sent == [BeginRegion(0, 0, 0, [250, 0], crc32c(CONTENT))]
    rig.leg.message_received(RegionOpened(0, 0, SEGMENT_SIZE_BYTES), 0)
    rig.leg.message_received(AddCredit(0, 1), 0)
    await turns()
    assert rig.connection.sent[1:] == [RegionData(0, 0)]
    rig.leg.message_received(AddCredit(0, 9), 0)
    await writing
    assert b"".join(rig.connection.payloads) == CONTENT
    assert [each.offset for each in rig.connection.take(RegionData)] == [0, 64, 128, 192]
    # The unused credit was for that region only.
    writing = asyncio.create_task(sink.write_region(region(number=1)))
    await turns()
    assert rig.connection.take(RegionData) == []
    rig.leg.message_received(RegionOpened(0, 1, SEGMENT_SIZE_BYTES), 0)
    rig.leg.message_received(AddCredit(0, 4), 0)
    await writing


async def test_a_broadcast_region_has_one_length_for_every_subpartition():
    rig = ProducerRig()
    sink = await a_sink(rig)
    given = OutgoingRegion(0, [len(CONTENT)], crc32c(CONTENT), [CONTENT], True)
    writing = asyncio.create_task(sink.write_region(given))
    await turns()
    begin = BeginRegion(0, 0, EVERY_SUBPARTITION, [len(CONTENT)], crc32c(CONTENT))
    assert rig.connection.sent == [begin]
    rig.leg.message_received(RegionOpened(0, 0, SEGMENT_SIZE_BYTES), 0)
    rig.leg.message_received(AddCredit(0, 9), 0)
    await writing
    assert b"".join(rig.connection.payloads) == CONTENT


async def test_an_empty_region_is_sent_without_waiting():
    rig = ProducerRig()
    sink = await a_sink(rig)
    await sink.write_region(region(b""))
    assert rig.connection.sent == [BeginRegion(0, 0, 0, [0, 0], 0)]


async def test_payloads_are_as_large_as_the_region_allows():
    rig = ProducerRig()
    sink = await a_sink(rig)
    for number, payload_bytes in enumerate((100, 250, 64)):
        writing = asyncio.create_task(sink.write_region(region(number=number)))
        await turns()
        rig.leg.message_received(RegionOpened(0, number, payload_bytes), 0)
        rig.leg.message_received(AddCredit(0, 9), 0)
        await writing
        sizes = [len(payload) for payload in rig.connection.payloads if payload]
        assert set(sizes[:-1]) <= {payload_bytes}
        assert sum(sizes) == len(CONTENT)
        rig.connection.payloads.clear()


async def test_early_partition_finished_is_refused():
    """It must not hide the loss of the connection from the region that is being sent."""
    rig = ProducerRig()
    sink = await a_sink(rig)
    writing = asyncio.create_task(sink.write_region(region()))
    await turns()
    rig.leg.message_received(RegionOpened(0, 0, SEGMENT_SIZE_BYTES), 0)
    with pytest.raises(UnexpectedMessage, match="before FinishPartition"):
        rig.leg.message_received(PartitionFinished(0), 0)
    rig.leg.connection_lost(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await writing


async def test_an_abort_after_the_commit_has_no_effect():
    rig = ProducerRig()
    sink = await a_sink(rig)
    finishing = asyncio.create_task(sink.finish(0, 0))
    await turns()
    assert rig.connection.sent == [FinishPartition(0, 0, 0)]
    rig.leg.message_received(PartitionFinished(0), 0)
    rig.leg.connection_lost(ConnectionLost("a little later"))
    await finishing
    sink.abort()
    assert rig.connection.take(AbortPartition) == []


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_a_finish_without_an_answer_is_aborted(how):
    rig = ProducerRig(answer_timeout_seconds=0.02 if how == "late" else 30)
    sink = await a_sink(rig)
    finishing = asyncio.create_task(sink.finish(0, 0))
    await turns(1)
    if how == "cancelled":
        finishing.cancel()
    with pytest.raises((DeadlineExceeded, asyncio.CancelledError)):
        await finishing
    sink.abort()
    sink.abort()
    assert rig.connection.take(AbortPartition) == [AbortPartition(0)]


@pytest.mark.parametrize("waiting_for", ["opening", "credit"])
@pytest.mark.parametrize("end", ["refused", "lost", "aborted", "late", "cancelled"])
async def test_the_end_of_a_region_under_way(waiting_for, end):
    rig = ProducerRig(answer_timeout_seconds=0.02 if end == "late" else 30)
    sink = await a_sink(rig)
    writing = asyncio.create_task(sink.write_region(region()))
    await turns()
    if waiting_for == "credit":
        rig.leg.message_received(RegionOpened(0, 0, SEGMENT_SIZE_BYTES), 0)
        rig.leg.message_received(AddCredit(0, 1), 0)
        await turns()
    if end == "refused":
        rig.leg.message_received(error_response(0, BROKEN), 0)
    elif end == "lost":
        rig.leg.connection_lost(ConnectionLost("gone"))
    elif end == "aborted":
        sink.abort()
    elif end == "cancelled":
        writing.cancel()
    error = {
        "refused": RemoteError,
        "lost": ConnectionLost,
        "aborted": PartitionReleased,
        "late": DeadlineExceeded,
        "cancelled": asyncio.CancelledError,
    }[end]
    with pytest.raises(error):
        await writing
    sent = len(rig.connection.payloads)
    sink.credit_granted(5)  # late: the parts are the writer's again
    await turns()
    assert len(rig.connection.payloads) == sent
    sink.abort()
    told = end in ("aborted", "late", "cancelled")
    assert rig.connection.take(AbortPartition) == [AbortPartition(0)] * told
    with pytest.raises(SluiceError):
        await sink.write_region(region())
    with pytest.raises(SluiceError):
        await sink.finish(0, 0)


async def test_credit_that_comes_slowly_does_not_exceed_the_deadline():
    rig = ProducerRig(answer_timeout_seconds=1.0)
    sink = await a_sink(rig)
    writing = asyncio.create_task(sink.write_region(region()))
    await turns()
    rig.leg.message_received(RegionOpened(0, 0, SEGMENT_SIZE_BYTES), 0)
    for _ in range(4):
        await asyncio.sleep(0.3)  # all together it takes longer than an answer may
        rig.leg.message_received(AddCredit(0, 1), 0)
    await writing


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(1, 25))
def test_gathering_cuts_and_joins(parts, size_bytes):
    payloads = list(gathered(parts, size_bytes))
    assert b"".join(payloads) == b"".join(parts)
    assert all(len(payload) == size_bytes for payload in payloads[:-1])
    assert all(payloads)
