"""Regions that are copied out of a region area, in calls of a bounded size."""

import asyncio
import os

import pytest
from crc32c import crc32c

from sluice.shuffle.taskmanager.store import region_writer
from sluice.shuffle.taskmanager.store.region_area import AreasDirectory, RegionAreas
from sluice.shuffle.taskmanager.store.region_writer import DIRECT_COPY_BYTES
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.store import KEY, Gate, content, fetch, used

OFFSET = 1000
CALL_BYTES = 100_000
LENGTH = 2 * DIRECT_COPY_BYTES + 17
CALLS = -(-LENGTH // CALL_BYTES)

tiers = pytest.mark.parametrize("memory_tier_bytes", [0, 1024 * 1024], ids=["disk", "memory"])


@pytest.fixture
async def area(tmp_path, monkeypatch):
    monkeypatch.setattr(region_writer, "COPY_CALL_BYTES", CALL_BYTES)
    areas = RegionAreas(AreasDirectory(tmp_path / "areas"), 1 << 20)
    made = await areas.create(KEY.application_id, OFFSET + LENGTH)
    assert made is not None
    os.pwrite(made.fd, content(1, LENGTH), OFFSET)
    yield made
    made.release()
    areas.close()


@tiers
@pytest.mark.parametrize("checksum", [True, False])
async def test_a_region_is_copied_in_several_calls(opened, area, memory_tier_bytes, checksum):
    store = opened(memory_tier_bytes=memory_tier_bytes)
    writer = store.begin_region(KEY, 0, [LENGTH])
    value = crc32c(content(1, LENGTH))
    assert await writer.copy_from(area, OFFSET, checksum=checksum) == (value if checksum else 0)
    output = MapOutput(KEY, 1, 1, (writer.finish(value),))
    await store.commit(output)
    assert await fetch(store, output) == content(1, LENGTH)
    store.release_shuffle(KEY)


@pytest.mark.interpreted
@tiers
async def test_a_region_that_is_aborted_is_copied_no_further(
    opened, area, memory_tier_bytes, monkeypatch
):
    store = opened(memory_tier_bytes=memory_tier_bytes)
    writer = store.begin_region(KEY, 0, [LENGTH])
    gate = Gate(monkeypatch, region_writer, "_read_piece")
    copying = asyncio.create_task(writer.copy_from(area, OFFSET, checksum=True))
    await gate.wait_entered()
    writer.abort()
    assert sum(used(store)) > 0  # the thread still uses it
    gate.proceed.set()
    await copying
    assert gate.calls == 1 < CALLS
    assert sum(used(store)) == 0
