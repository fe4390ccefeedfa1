"""References to extents: the last release frees the space, once."""

from __future__ import annotations

import os

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Accounts, Resource
from sluice.shuffle.taskmanager.store.tiers.arena_files import arena_path
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from sluice.shuffle.taskmanager.store.tiers.slot_allocator import occupied_bytes
from sluice.shuffle.taskmanager.store.tiers.tier import Extent, ExtentRead


@pytest.fixture
def tier(tmp_path):
    path = arena_path(tmp_path)
    tier = DiskTier(path, os.open(path, os.O_RDWR | os.O_CREAT), None, 0, None, 0)
    yield tier
    tier.close()


def test_the_last_release_frees_the_space_and_what_is_charged(tier):
    account = Accounts().of("app")
    extent = tier.allocate(5000)
    extent.charge_to(account)
    assert account.amount(Resource.DISK_TIER_BYTES) == occupied_bytes(5000)
    extent.retain()
    extent.release()
    assert tier.status().used_bytes == occupied_bytes(5000)
    extent.release()
    assert extent.references == 0
    assert tier.status().used_bytes == 0
    assert account.amount(Resource.DISK_TIER_BYTES) == 0


def test_many_extents_are_charged_as_each_would_be(tier):
    account = Accounts().of("app")
    extents = [tier.allocate(length) for length in (1, 4096, 5000)]
    Extent.charge_all(extents, account)
    assert account.amount(Resource.DISK_TIER_BYTES) == sum(map(occupied_bytes, (1, 4096, 5000)))
    for each in extents:
        each.release()
    assert account.amount(Resource.DISK_TIER_BYTES) == 0


def test_a_reference_that_is_gone_cannot_be_used(tier):
    extent = tier.allocate(1)
    extent.release()
    with pytest.raises(RuntimeError, match="released more often"):
        extent.release()
    with pytest.raises(RuntimeError, match="after its last release"):
        extent.retain()


@pytest.mark.parametrize(
    ("offset", "lengths", "is_within"),
    [(0, [10], True), (0, [4, 6], True), (9, [1], True), (9, [2], False), (-1, [1], False)],
)
def test_a_read_must_lie_within_its_extent(tier, offset, lengths, is_within):
    extent = tier.allocate(10)
    read = ExtentRead(extent, offset, [memoryview(bytearray(length)) for length in lengths])
    assert read.is_within == is_within
    extent.release()


def test_a_tier_is_left_out_until_it_recovers(tier):
    tier.fail("the disk is gone")
    tier.fail("later")
    assert (tier.healthy, tier.reason) == (False, "later")
    assert tier.allocate(1) is None
    tier.recover()
    assert (tier.healthy, tier.reason) == (True, "")
