"""Adoption: all regions of a map output or none, and of two claims the newer one."""

from array import array

import pytest
from crc32c import crc32c

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.journal.adoption import Adoption
from sluice.shuffle.taskmanager.store.journal.journal import Entry
from sluice.shuffle.taskmanager.store.journal.replay import Committed, Secured
from sluice.shuffle.taskmanager.store.journal.rows import CommitRow, RegionRow, SecureRow
from sluice.shuffle.taskmanager.store.output_index import OutputIndex
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier

KEY = ShuffleKey("app", 0)
DATA = bytes(range(256)) * 64
"""16 KiB."""


@pytest.fixture
def tier(tmp_path):
    tier = DiskTier.open(tmp_path, None, 0)
    tier.write(0, [memoryview(DATA)])
    tier.close()
    tier = DiskTier.open(tmp_path, None, 0)
    yield tier
    tier.close()


class Adopted:
    def __init__(self, tier):
        self.tier = tier
        self.here = frozenset({tier.tier_id})
        self.accounts = Accounts()
        self.index = OutputIndex(self.accounts)
        self.adoption = Adoption({tier.tier_id: tier}, self.accounts, self.index)

    def region(self, offset, length, crc=None, arena=None):
        value = crc32c(DATA[offset : offset + length]) if crc is None else crc
        return RegionRow(arena or self.tier.tier_id, offset, 0, array("I", [0, length]), value)

    def commit(self, attempt, *regions):
        entry = Entry(1, attempt, b"%d" % attempt)
        return Committed(entry, self.here, CommitRow(KEY, attempt, 1, regions))

    def secure(self, attempt, first, *regions):
        entry = Entry(1, 100 * attempt + first, b"")
        return Secured(entry, self.here, SecureRow(KEY, attempt, 1, first, regions))

    def adopt(self, commits, secured=(), doubted=()):
        self.adoption.adopt(commits, secured, {arena: self.tier for arena in doubted})
        return sorted(self.index.outputs_of(KEY))


def test_committed_outputs_have_their_extents_and_their_account(tier):
    rig = Adopted(tier)
    commits = [rig.commit(1, rig.region(8192, 5000)), rig.commit(2, rig.region(0, 10))]
    assert rig.adopt(commits) == [1, 2]
    extent = rig.index.outputs_of(KEY)[1].regions[0].extent
    assert extent is not None
    assert (extent.offset, extent.length) == (8192, 5000)
    assert tier.status().used_bytes == 8192 + 4096
    assert len(rig.adoption.rows_in(tier.tier_id)) == 2


@pytest.mark.parametrize("lost", ["arena", "file", "misplaced"])
def test_an_output_with_a_lost_region_is_forgotten_whole(tier, lost):
    rig = Adopted(tier)
    bad = {
        "arena": rig.region(0, 5000, arena=b"elsewher"),
        "file": rig.region(1 << 20, 5000),
        "misplaced": rig.region(100, 5000),
    }[lost]
    assert rig.adopt([rig.commit(1, rig.region(8192, 5000), bad)]) == []
    assert rig.adoption.forgotten == 1
    assert tier.status().used_bytes == 0


def test_of_two_claims_the_newer_one_counts(tier):
    rig = Adopted(tier)
    commits = [rig.commit(2, rig.region(0, 5000)), rig.commit(1, rig.region(4096, 100))]
    assert rig.adopt(commits) == [2]


def test_regions_of_a_doubted_arena_are_compared_with_their_checksums(tier):
    rig = Adopted(tier)
    commits = [rig.commit(1, rig.region(0, 5000)), rig.commit(2, rig.region(8192, 5000, crc=1))]
    assert rig.adopt(commits, doubted=[tier.tier_id]) == [1]


def test_regions_of_a_sound_arena_are_not_read(tier):
    rig = Adopted(tier)
    assert rig.adopt([rig.commit(2, rig.region(8192, 5000, crc=1))]) == [2]


def test_secured_regions_are_adopted_in_their_rows(tier):
    rig = Adopted(tier)
    rows = [rig.secure(1, 0, rig.region(0, 100)), rig.secure(1, 1, rig.region(8192, 5000))]
    assert rig.adopt([], [rows]) == []
    (output,) = rig.index.open_outputs()
    assert [first for first, _ in output.rows()] == [0, 1]
    assert output.total_bytes == 5100
