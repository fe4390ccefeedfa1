"""A map output from its first region to its commit or its end, on both tiers."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from sluice.protocol.schema import (
    AddCredit,
    FinishPartition,
    PartitionAborted,
    PartitionFinished,
    RegionData,
)
from sluice.shuffle.errors import MapOutputMismatch, PartitionReleased
from sluice.shuffle.taskmanager.ingest.output_states import StoredState
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT
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
    assert [region.length for region in output.regions] == [len(DATA), 0, 3]
    assert output.regions[0].crc32c == crc32c(DATA)
    content = bytearray(len(DATA))
    assert output.regions[0].extent is not None
    await rig.store.read_all([ExtentRead(output.regions[0].extent, 0, [memoryview(content)])])
    assert content == DATA


async def test_credit_never_exceeds_what_the_region_needs(rig):
    rig.begin([len(DATA)], DATA)
    assert sum(rig.granted) == (2 if rig.on_disk else 11)
    await rig.send(DATA)
    assert sum(rig.granted) == 11
    await rig.complete(len(DATA), 1)


@pytest.mark.interpreted
async def test_an_abort_while_it_finishes(grouped, monkeypatch):
    (disk,) = grouped.store._storage.disks
    gate = Gate(monkeypatch, disk, "write")
    grouped.begin([SEGMENT], DATA[:SEGMENT])
    grouped.payload(0, DATA[:SEGMENT])
    grouped.output.received(FinishPartition(0, SEGMENT, 1))
    await gate.wait_entered()
    grouped.output.abort()
    gate.proceed.set()
    assert isinstance(grouped.connection.sent[-1], PartitionAborted)
    await eventually(lambda: not grouped.used_bytes())
    assert grouped.store.lookup(*grouped.output.attempt) is None


@pytest.mark.parametrize(("total", "regions"), [(2, 1), (3, 0), (3, 2)])
async def test_wrong_totals_fail_the_map_output(rig, total, regions):
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    with pytest.raises(MapOutputMismatch, match="do not add up") as caught:
        rig.output.received(FinishPartition(0, total, regions))
    assert caught.value.value == f"{total} bytes in {regions} regions"
    assert caught.value.limit == "3 bytes in 1 regions"


async def test_an_abort_during_the_commit_is_answered_after_it(rig):
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    rig.output.received(FinishPartition(0, 3, 1))
    await rig.until_committing()
    late = RegionData(0, 0)
    assert rig.output.payload_buffer(late, 1) is rig.outputs.discarded(1)
    rig.output.data_received(late, 1)
    assert rig.services.counters.late_messages == {"RegionData": 1}
    rig.output.abort()
    rig.output.abort()
    rig.connection.sent.clear()
    await eventually(lambda: len(rig.connection.sent) >= 3)
    kinds = [type(each) for each in rig.connection.sent]
    assert kinds == [PartitionFinished, PartitionAborted, PartitionAborted]


async def test_memory_in_which_a_payload_arrives_outlives_its_map_output(rig):
    """Another output could get the memory while the transport still writes into it."""
    data = DATA[: 2 * SEGMENT]
    rig.begin([len(data)], data)
    assert rig.output.payload_buffer(RegionData(0, 0), SEGMENT) is not None
    free = rig.network_pool.available_segments
    rig.outputs.fail(0, PartitionReleased("Map output was resumed on another connection"))
    assert not rig.outputs.by_number
    assert rig.used_bytes() >= len(data)
    assert rig.network_pool.available_segments <= free
    sent = list(rig.connection.sent)
    rig.output.drop_arriving()
    rig.output.drop_arriving()
    assert rig.output.state is StoredState.ABORTED
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
    await eventually(lambda: not rig.on_disk or rig.output._region._writing is None)
    assert not [each for each in rig.connection.sent if isinstance(each, AddCredit)]
    rig.output.drop_arriving()
    await eventually(lambda: rig.network_pool.available_segments == 8)
