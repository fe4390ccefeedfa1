"""A region on the disk tier: payloads of several segments, credit, and a disk that fails."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import CreditExceeded, ErrorCode
from sluice.protocol.schema import RegionData
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT, StoredRig
from tests.support.mini_cluster import DISK_ONLY, taskmanager_config


@pytest.mark.parametrize("length", [1, SEGMENT + 1, 3 * SEGMENT, 21 * SEGMENT + 5])
async def test_a_payload_fills_several_segments(grouped, length):
    data = (DATA * 3)[:length]
    grouped.begin([length], data)
    segments = -(-length // SEGMENT)
    assert grouped.payload_bytes == min(4, segments) * SEGMENT
    assert sum(grouped.granted) == min(2, -(-segments // 4))
    await grouped.send(data)
    assert sum(grouped.granted) == -(-segments // 4)
    output = await grouped.complete(length, 1)
    content = bytearray(length)
    assert output.regions[0].extent is not None
    await grouped.store.read_all([ExtentRead(output.regions[0].extent, 0, [memoryview(content)])])
    assert content == data
    assert grouped.pool.lent_segments == 0


async def test_a_payload_fills_segments_that_are_no_neighbours(grouped):
    taken = [grouped.pool.request_segment_nowait() for _ in range(8)]
    for segment in taken[::2]:
        grouped.pool.recycle(segment)
    data = DATA[: 10 * SEGMENT]
    grouped.begin([len(data)], data)
    assert isinstance(grouped.output.payload_buffer(RegionData(0, 0), 4 * SEGMENT), list)
    await grouped.send(data)
    await grouped.complete(len(data), 1)  # with the right checksum
    grouped.pool.recycle_together(taken[1::2])


async def test_a_region_goes_on_with_the_segments_it_began_with(grouped):
    """Segments for a payload stay with the region, even if others take the rest of the pool."""
    data = (DATA * 2)[: 20 * SEGMENT]
    grouped.begin([len(data)], data)
    grouped.pool.set_limit(1)
    await grouped.send(data)
    await grouped.complete(len(data), 1)


async def test_payloads_are_as_small_as_the_pool_at_the_beginning(grouped):
    taken = [grouped.pool.request_segment_nowait() for _ in range(7)]
    data = DATA[: 5 * SEGMENT]
    grouped.begin([len(data)], data)
    assert (grouped.payload_bytes, grouped.granted) == (SEGMENT, [1])
    await grouped.send(data)
    await grouped.complete(len(data), 1)
    grouped.pool.recycle_together(taken)


@pytest.mark.interpreted
async def test_a_failed_write_is_told_at_once(failing):
    """The region would never be complete, for want of credit."""
    failing.begin([len(DATA)], DATA)
    failing.payload(0, DATA[:SEGMENT])
    await failing.until(lambda: failing.failures)
    (failure,) = failing.failures
    assert failure.code is ErrorCode.STORAGE_UNAVAILABLE
    assert "No space left" in failure.message


@pytest.mark.interpreted
async def test_a_failure_keeps_the_memory_of_an_arriving_payload(failing):
    """The segment must not be lent to anybody else while the transport fills it."""
    failing.begin([len(DATA)], DATA)
    failing.payload(0, DATA[:SEGMENT])
    failing.begin_payload(SEGMENT, DATA[SEGMENT : 2 * SEGMENT])
    await failing.until(lambda: failing.failures)
    assert failing.network_pool.available_segments < 8
    failing.output.drop_arriving()
    assert failing.network_pool.available_segments == 8


async def test_data_without_credit_on_the_disk_tier(tmp_path):
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)
    rig = StoredRig(store, 2, 2)
    rig.begin([len(DATA)], DATA)
    assert rig.granted == [2]
    rig.payload(0, DATA[:10])
    rig.payload(10, DATA[10:20])
    with pytest.raises(CreditExceeded):
        rig.output.payload_buffer(RegionData(0, 20), 10)
    rig.close()
    await store.close()
    await asyncio.sleep(0)
    assert rig.network_pool.available_segments == 2
