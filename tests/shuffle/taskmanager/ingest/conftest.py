"""A map output on either tier, and the same with eight segments, or with a disk that fails."""

from __future__ import annotations

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.shuffle.taskmanager.ingest.rig import SEGMENT, StoredRig
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, eventually, taskmanager_config


async def close(rig: StoredRig, segments: int) -> None:
    rig.close()
    # threads that write have yet to let go
    await eventually(
        lambda: not rig.used_bytes() and rig.network_pool.available_segments == segments,
        "all segments and extents back",
    )
    await rig.store.close()


@pytest.fixture(params=[MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
async def rig(request, tmp_path):
    """Two segments at a time, so that the disk tier has to wait for its threads."""
    rig = StoredRig(
        ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=request.param).storage),
        2,
        8,
    )
    rig.on_disk = request.param == DISK_ONLY  # type: ignore[attr-defined]
    yield rig
    await close(rig, 8)


@pytest.fixture
async def grouped(tmp_path):
    """Eight segments for a map output on disk, of which a payload may take four."""
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)
    rig = StoredRig(store, 8, 16, large_payload_bytes=16 * SEGMENT)
    yield rig
    await close(rig, 16)


@pytest.fixture
async def failing(tmp_path):
    """A map output whose disk takes nothing."""
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)

    def fail(offset, buffers):
        raise OSError(28, "No space left on device")

    (disk,) = store._storage.disks
    disk.write = fail  # type: ignore[method-assign]
    rig = StoredRig(store, 2, 8)
    yield rig
    await close(rig, 8)
