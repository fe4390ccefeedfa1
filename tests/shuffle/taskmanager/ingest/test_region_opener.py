"""Announcements of regions that are wrong, or for which there is no memory."""

from __future__ import annotations

import pytest

from sluice.protocol.schema import BeginRegion
from sluice.shuffle.errors import MapOutputMismatch
from sluice.shuffle.memory import InsufficientNetworkBuffers, LocalBufferPool
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT, StoredRig
from tests.support.mini_cluster import DISK_ONLY, taskmanager_config


@pytest.mark.parametrize(
    ("region", "first", "lengths", "value", "limit"),
    [
        (1, 0, [1], 1, 0),
        (0, 4, [1], 5, 4),
        (0, 0, [1] * 5, 5, 4),
        (0, 2**32 - 1, [], 0, 1),
        (0, 2**32 - 1, [1, 1], 2, 1),
        (0, 0, [2**64 - 1] * 2, None, "18446744073709551615 bytes"),
    ],
)
async def test_an_impossible_region_is_refused(rig, region, first, lengths, value, limit):
    with pytest.raises(MapOutputMismatch) as caught:
        rig.output.received(BeginRegion(0, region, first, lengths, 0))
    assert value in (None, caught.value.value)
    assert caught.value.limit == limit
    assert rig.used_bytes() == 0


async def test_memory_for_the_disk_tier_that_is_not_there_costs_no_extent(tmp_path):
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)
    rig = StoredRig(store, 2, 1)
    other = rig.network_pool.create_local_pool("another map output", 1, 1)
    with pytest.raises(InsufficientNetworkBuffers):
        rig.begin([100], DATA[:100])
    assert rig.used_bytes() == 0
    other.destroy()
    rig.close()
    await store.close()
    assert rig.network_pool.available_segments == 1


@pytest.mark.interpreted
async def test_a_region_that_cannot_be_made_keeps_no_extent_and_no_segment(tmp_path, monkeypatch):
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)
    rig = StoredRig(store, 8, 8, 4 * SEGMENT)
    real = LocalBufferPool.request_segment_nowait
    calls = []

    def breaking(pool, *args):
        calls.append(pool)
        if len(calls) == 3:
            raise AttributeError("a bug")
        return real(pool, *args)

    monkeypatch.setattr(LocalBufferPool, "request_segment_nowait", breaking)
    with pytest.raises(AttributeError):
        rig.begin([8 * SEGMENT], DATA[: 8 * SEGMENT])
    assert rig.used_bytes() == 0
    assert rig.pool.lent_segments == 0
    rig.close()
    await store.close()
