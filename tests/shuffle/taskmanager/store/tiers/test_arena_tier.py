"""An arena and what was stored in it before: adoption, and the end of a replaced one."""

from __future__ import annotations

import os

import pytest

from sluice.shuffle.taskmanager.store.tiers.arena_files import arena_path
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier


@pytest.fixture
def arena(tmp_path):
    path = arena_path(tmp_path)
    path.write_bytes(bytes(20_000))
    tier = DiskTier(path, os.open(path, os.O_RDWR), None, 0, None, 0)
    yield tier
    if not tier.is_closed:
        tier.close()


def test_adopted_extents_are_not_allocated_again(arena):
    adopted = arena.adopt(4096, 5000)
    others = [arena.allocate(4096) for _ in range(4)]
    assert all(each.offset + each.length <= 4096 or each.offset >= 4096 + 5000 for each in others)
    for each in (adopted, *others):
        each.release()
    assert arena.status().used_bytes == 0


@pytest.mark.parametrize(("offset", "length"), [(16_384, 4000), (20_480, 1)])
def test_bytes_that_the_file_does_not_have_are_not_adopted(arena, offset, length):
    with pytest.raises(ValueError, match="beyond the file's 20000 bytes"):
        arena.adopt(offset, length)


def test_an_extent_is_adopted_once(arena):
    extent = arena.adopt(0, 4096)
    with pytest.raises(ValueError):  # noqa: PT011 - the allocator's words
        arena.adopt(0, 4096)
    extent.release()


def test_a_replaced_arena_closes_with_its_last_extent(arena):
    extent = arena.adopt(0, 4096)
    arena.retire()
    assert not arena.is_closed
    extent.release()
    assert arena.is_closed
