"""The deadline of a region that was announced: only bytes that its producer may send count."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import BeginRegion, ErrorResponse, OpenPartition, RegionData
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.ingest.output_states import StoredState
from sluice.shuffle.taskmanager.ingest.stored_output import StoredOutput
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT, StoredRig

REGION = [2 * SEGMENT]
LOOKS = 3


def look(rig: StoredRig, times: int = 1) -> None:
    """Let the deadline pass."""
    for _ in range(times):
        rig.outputs.progress.look()


def held_bytes(rig: StoredRig) -> int:
    held = rig.outputs.account.held
    return held[Resource.MEMORY_TIER_BYTES] + held[Resource.DISK_TIER_BYTES]


async def test_a_region_whose_bytes_do_not_come_is_taken_back(rig):
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    assert rig.used_bytes() > 0
    assert held_bytes(rig) > 0
    look(rig)
    (error,) = rig.failures
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    assert error.retryable
    assert error.map_attempt_id == 1
    assert error.limit == "120.0 s without a byte"
    assert "region_progress_timeout_seconds" in error.message
    assert rig.output.state is StoredState.ABORTED
    assert rig.used_bytes() == 0
    assert held_bytes(rig) == 0
    assert rig.outputs.account.held[Resource.OPEN_PARTITIONS] == 0
    assert rig.services.counters.progress_deadlines == {"region": 1}
    look(rig)
    assert not rig.outputs.progress.is_watching


async def test_a_region_that_stops_half_way_is_taken_back(rig):
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    rig.payload(0, DATA[:SEGMENT])
    look(rig)
    assert not rig.failures
    look(rig)
    assert [each.code for each in rig.failures] == [ErrorCode.DEADLINE_EXCEEDED]


async def test_a_region_that_moves_is_never_late(rig):
    length = 8 * SEGMENT
    rig.begin([length], DATA[:length])
    for offset in range(0, length, SEGMENT):
        while not rig.output.available_credit:
            rig.connection.changed.clear()
            await rig.connection.changed.wait()
        rig.payload(offset, DATA[offset : offset + SEGMENT])
        look(rig)
    look(rig, LOOKS)
    assert not rig.failures
    await rig.complete(length, 1)


async def test_a_region_that_waits_for_credit_is_never_late(grouped):
    """The segments of the partition are with others: that is not its producer's fault."""
    rig = grouped
    pool = rig.pool
    taken = [pool.request_segment_nowait() for _ in range(8)]
    assert None not in taken
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    assert rig.output.available_credit == 0
    look(rig, LOOKS)
    assert not rig.failures
    pool.recycle_together([each for each in taken if each is not None])
    assert rig.output.available_credit > 0
    look(rig)
    assert not rig.failures  # its time begins with the credit
    look(rig)
    assert len(rig.failures) == 1


async def test_a_map_output_between_two_regions_is_never_late(rig):
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    await rig.send(DATA[: 2 * SEGMENT])
    look(rig, LOOKS)
    assert not rig.failures
    assert not rig.outputs.progress.is_watching
    await rig.complete(2 * SEGMENT, 1)


async def test_a_payload_under_way_has_the_deadline_of_its_frame(rig):
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    rig.begin_payload(0, DATA[:SEGMENT])
    look(rig, LOOKS)
    assert not rig.failures
    rig.output.data_received(RegionData(0, 0), SEGMENT)
    rig.payload(SEGMENT, DATA[SEGMENT : 2 * SEGMENT])
    await rig.complete(2 * SEGMENT, 1)


async def test_the_other_map_outputs_of_the_connection_go_on(rig):
    other = StoredOutput(rig.outputs, OpenPartition(7, 1, 7, 4))
    other.open()
    other.received(BeginRegion(7, 0, 0, [SEGMENT], 0))
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    look(rig)
    rig.payload(0, DATA[:SEGMENT])
    look(rig)
    failed = [each.channel for each in rig.connection.sent if isinstance(each, ErrorResponse)]
    assert failed == [7]
    rig.payload(SEGMENT, DATA[SEGMENT : 2 * SEGMENT])
    await rig.complete(2 * SEGMENT, 1)


@pytest.mark.parametrize("how", ["lost", "aborted"])
async def test_nothing_is_watched_when_the_connection_or_the_region_is_gone(rig, how):
    rig.begin(REGION, DATA[: 2 * SEGMENT])
    if how == "lost":
        rig.outputs.close()
    else:
        rig.output.abort()
        look(rig)
    assert not rig.outputs.progress.is_watching
    assert not rig.failures
