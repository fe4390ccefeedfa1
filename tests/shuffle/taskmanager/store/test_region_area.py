"""Region areas: bounded, counted to their application, and found by it alone."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Accounts, Resource
from sluice.shuffle.taskmanager.store.region_area import AreasDirectory, RegionAreas

LIMIT_BYTES = 64 * 1024


@pytest.fixture
def accounts():
    return Accounts()


@pytest.fixture
def areas(tmp_path, accounts):
    areas = RegionAreas(AreasDirectory(tmp_path / "areas"), LIMIT_BYTES, accounts)
    yield areas
    areas.close()


async def test_an_area_is_its_applications_until_its_last_release(areas, accounts, tmp_path):
    area = await areas.create("app", 4096)
    assert (tmp_path / "areas" / area.token).stat().st_size == 4096
    assert accounts.of("app").amount(Resource.REGION_AREAS_BYTES) == 4096
    assert areas.find("other", area.token) is None
    assert areas.find("app", area.token) is area
    area.release()
    area.release()
    assert areas.used_bytes == accounts.of("app").amount(Resource.REGION_AREAS_BYTES) == 0
    assert not (tmp_path / "areas" / area.token).exists()


async def test_all_areas_together_have_a_limit(areas):
    first, second = await asyncio.gather(
        areas.create("app", LIMIT_BYTES - 4096), areas.create("app", LIMIT_BYTES - 4096)
    )
    assert [first is None, second is None].count(True) == 1
    rest = await areas.create("app", 4096)
    assert areas.used_bytes == LIMIT_BYTES
    for each in (first or second, rest):
        each.release()


async def test_a_directory_that_was_removed_is_made_again(areas, tmp_path):
    (await areas.create("app", 4096)).release()
    for each in (tmp_path / "areas").iterdir():
        each.unlink()
    (tmp_path / "areas").rmdir()
    area = await areas.create("app", 4096)
    assert (tmp_path / "areas" / area.token).exists()
    area.release()


async def test_without_a_directory_there_are_no_areas():
    areas = RegionAreas(None, 0)
    assert await areas.create("app", 4096) is None
    areas.close()
