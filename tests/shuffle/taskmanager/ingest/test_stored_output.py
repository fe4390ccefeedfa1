"""A map output on its way in: every message in every state, on both tiers, to its end."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c

from sluice.protocol.schema import (
    AddCredit,
    BeginRegion,
    FinishPartition,
    PartitionAborted,
    PartitionFinished,
    RegionData,
    SecureRegion,
)
from sluice.shuffle.errors import MapOutputMismatch, PartitionReleased
from sluice.shuffle.taskmanager.ingest.output_states import StoredState
from sluice.shuffle.taskmanager.store.stored_outputs import release_regions
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT, StoredRig
from tests.support.mini_cluster import eventually
from tests.support.store import Gate


async def test_a_map_output_of_several_regions(rig):
    rig.begin([5000, 0, len(DATA) - 5000, 0], DATA)
    await rig.send(DATA)
    rig.connection.sent.clear()
    assert rig.output.state is StoredState.OPEN
    rig.begin([0], b"", region=1)
    assert rig.granted == []
    rig.begin([3], b"abc", region=2, first=3)
    await rig.send(b"abc")
    output = await rig.complete(len(DATA) + 3, 3)
    assert rig.output.state.value == "finishing"
    assert [region.length for region in output.regions] == [len(DATA), 0, 3]
    assert output.regions[0].crc32c == crc32c(DATA)
    content = bytearray(len(DATA))
    assert output.regions[0].extent is not None
    await rig.store.read(output.regions[0].extent, 0, [memoryview(content)])
    assert content == DATA
    release_regions(output.regions)


async def test_credit_never_exceeds_what_the_region_needs(rig):
    rig.begin([len(DATA)], DATA)
    assert sum(rig.granted) == (2 if rig.on_disk else 11)
    await rig.send(DATA)
    assert sum(rig.granted) == 11
    release_regions((await rig.complete(len(DATA), 1)).regions)


# ---- the state table, exhaustively ------------------------------------------------------------


async def reach(rig: StoredRig, state: str) -> None:
    if state in ("in region", "in region, part received"):
        rig.begin([2 * SEGMENT], DATA[: 2 * SEGMENT])
        if state != "in region":
            rig.payload(0, DATA[:SEGMENT])
    elif state == "finishing":
        release_regions((await rig.complete(0, 0)).regions)
    elif state == "aborted":
        rig.output.abort()


async def say(rig: StoredRig, message: str) -> None:
    if message == "begin":
        rig.begin([1], b"x", region=len(rig.output._written))
    elif message == "data":
        rig.payload(0, DATA[:SEGMENT])
    else:
        release_regions((await rig.complete(0, 0)).regions)


STATES = ["open", "in region", "in region, part received", "finishing", "aborted"]
ALLOWED = {
    ("open", "begin"): StoredState.IN_REGION,
    ("open", "finish"): StoredState.FINISHING,
    ("in region", "data"): StoredState.IN_REGION,
    **{(state, "abort"): StoredState.ABORTED for state in STATES},
}


@pytest.mark.parametrize("message", ["begin", "data", "finish", "abort"])
@pytest.mark.parametrize("state", STATES)
async def test_every_message_in_every_state(rig, state, message):
    await reach(rig, state)
    before = rig.output.state
    after = ALLOWED.get((state, message))
    if (state, message) == ("in region, part received", "data"):
        rig.payload(SEGMENT, DATA[SEGMENT : 2 * SEGMENT])  # the last of it
        assert rig.output.state is StoredState.OPEN
    elif message == "abort":
        rig.output.abort()
        assert rig.output.state is StoredState.ABORTED
    elif after is None:
        with pytest.raises(MapOutputMismatch) as caught:
            await say(rig, message)
        assert caught.value.map_attempt_id == 1
        assert str(before.value) in str(caught.value.value)
        assert rig.output.state is before
    else:
        await say(rig, message)
        assert rig.output.state is after


async def test_an_abort_before_it_finishes(rig):
    rig.begin([len(DATA)], DATA)
    await rig.send(DATA)
    rig.output.abort()
    with pytest.raises(MapOutputMismatch, match="FinishPartition"):
        await rig.complete(len(DATA), 1)


async def test_an_abort_while_it_finishes(grouped, monkeypatch):
    (disk,) = grouped.store._storage.disks
    gate = Gate(monkeypatch, disk, "write")
    grouped.begin([SEGMENT], DATA[:SEGMENT])
    grouped.payload(0, DATA[:SEGMENT])
    finishing = asyncio.ensure_future(grouped.complete(SEGMENT, 1))
    await gate.wait_entered()
    assert grouped.output.state is StoredState.FINISHING
    grouped.output.abort()
    gate.proceed.set()
    with pytest.raises(MapOutputMismatch, match="aborted while it was finished"):
        await finishing


# ---- failures ---------------------------------------------------------------------------------


async def test_totals_that_differ(rig):
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    for total, regions in ((2, 1), (3, 0), (3, 2)):
        with pytest.raises(MapOutputMismatch, match="do not add up"):
            await rig.complete(total, regions)
    release_regions((await rig.complete(3, 1)).regions)


@pytest.mark.parametrize("message", [RegionData(0, 0), BeginRegion(0, 1, 0, [1], 0)])
async def test_a_message_during_the_commit_is_late(rig, message):
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    rig.output.received(FinishPartition(0, 3, 1))
    while not rig.output.is_committing:  # noqa: ASYNC110 - a moment that nobody announces
        await asyncio.sleep(0)
    if isinstance(message, RegionData):
        assert rig.output.payload_buffer(message, 1) is rig.outputs.discarded()
        rig.output.data_received(message, 1)
        assert rig.services.counters.late_messages == {"RegionData": 1}
    else:
        rig.output.received(message)
    rig.output.received(SecureRegion(0, 0))
    rig.output.received(FinishPartition(0, 3, 1))
    rig.output.abort()
    rig.output.abort()
    rig.connection.sent.clear()
    await eventually(lambda: len(rig.connection.sent) >= 3)
    kinds = [type(each) for each in rig.connection.sent]
    assert kinds == [PartitionFinished, PartitionAborted, PartitionAborted]
    assert not rig.failures
    rig.store.release_shuffle(rig.output.key)


async def test_memory_in_which_a_payload_arrives_outlives_its_map_output(rig):
    """Another output could get the memory while the transport still writes into it."""
    data = DATA[: 2 * SEGMENT]
    rig.begin([len(data)], data)
    assert rig.output.payload_buffer(RegionData(0, 0), SEGMENT) is not None
    free = rig.network_pool.available_segments
    rig.outputs.fail(0, PartitionReleased("Map output was resumed on another connection"))
    assert not rig.outputs.by_number
    assert rig.output.state is StoredState.ABORTED
    assert rig.used_bytes() >= len(data)
    assert rig.network_pool.available_segments <= free
    sent = list(rig.connection.sent)
    rig.output.drop_arriving()
    rig.output.drop_arriving()
    assert rig.used_bytes() == 0
    assert rig.network_pool.available_segments == 8
    assert rig.connection.sent == sent


async def test_a_failed_map_output_grants_no_credit(rig):
    """Segments may come back to it while a payload arrives in one of them."""
    data = DATA[: 4 * SEGMENT]
    rig.begin([len(data)], data)
    rig.payload(0, data[:SEGMENT])
    assert rig.output.payload_buffer(RegionData(0, SEGMENT), SEGMENT) is not None
    rig.outputs.fail(0, PartitionReleased("Map output was resumed on another connection"))
    rig.connection.sent.clear()
    await eventually(lambda: not rig.on_disk or rig.output._stranded._writing is None)
    assert not [each for each in rig.connection.sent if isinstance(each, AddCredit)]
    rig.output.drop_arriving()
    await eventually(lambda: rig.network_pool.available_segments == 8)
