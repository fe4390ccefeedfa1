import errno
import logging
import os
from typing import Any

import pytest

from sluice.shuffle.taskmanager.store.tiers.memory_tier import (
    BACKING_AHEAD_BYTES,
    BACKING_STEP_BYTES,
    MemoryTier,
)

MIB = 1024 * 1024


def taken(tier: MemoryTier, length: int) -> Any:
    """Allocate an extent that must fit; Any, because its view exists."""
    extent = tier.allocate(length)
    assert extent is not None
    return extent


@pytest.fixture
def tier(tmp_path):
    tier = MemoryTier.open(tmp_path, 16 * MIB)
    tier.finish_adoption()
    yield tier
    tier.close()


def allotted(tier):
    return os.fstat(tier.fd).st_blocks * 512


def test_pages_are_allotted_as_they_are_given_out_and_recycled_warm(tier):
    assert allotted(tier) == 0
    extent = taken(tier, 5 * MIB)
    assert 5 * MIB <= allotted(tier) <= 8 * MIB + 65536
    assert extent.in_memory
    assert len(extent.view) == 5 * MIB
    extent.view[:4] = b"warm"
    extent.release()
    assert extent.view is None
    before = allotted(tier)
    again = taken(tier, 5 * MIB)
    assert again.offset == 0
    assert bytes(again.view[:4]) == b"warm"  # the same page, untouched: no fresh one was needed
    assert allotted(tier) == before
    again.release()
    assert tier.status().used_bytes == 0


def test_the_reference_count_decides_when_space_is_free(tier):
    extent = taken(tier, 10)
    extent.retain()
    extent.release()
    assert extent.references == 1
    assert tier.status().extents == 1
    extent.release()
    assert tier.status().extents == 0
    for misuse in (extent.release, extent.retain):
        with pytest.raises(RuntimeError, match="release"):
            misuse()
    assert tier.status().used_bytes == 0


def test_an_allocation_without_room_returns_none(tier):
    assert tier.allocate(17 * MIB) is None
    extent = taken(tier, 16 * MIB)
    assert extent is not None
    assert tier.allocate(1) is None
    extent.release()


def test_a_full_file_system_is_noticed_before_a_page_is_touched(tier, monkeypatch, caplog):
    first = tier.allocate(1000)
    room = BACKING_STEP_BYTES + 2 * MIB
    real = os.posix_fallocate

    def limited(fd, offset, length):
        if offset + length > room:
            raise OSError(errno.ENOSPC, "no space")
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    with caplog.at_level(logging.WARNING):
        assert tier.allocate(8 * MIB) is None  # instead of a SIGBUS while receiving
        assert tier.allocate(9 * MIB) is None
    assert len([r for r in caplog.records if "--shm-size" in r.message]) == 1
    assert tier.healthy
    second = tier.allocate(5 * MIB)  # less than a step fits, so less is asked for
    assert second is not None
    second.view[-1] = 1
    for extent in (first, second):
        extent.release()
    assert tier.status().used_bytes == 0
    start, end = tier.backing_range()
    tier.prepared(end, tier.prepare(start, end))  # finds where the file system ends
    assert not tier.wants_backing


def test_another_failure_takes_the_tier_out_of_service(tier, monkeypatch):
    def broken(fd, offset, length):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    assert tier.allocate(10) is None
    assert not tier.status().healthy
    assert "broken" in tier.status().reason


def of_size(monkeypatch, blocks, free):
    """Let file systems have so many blocks of 4096 bytes, some of them free."""
    real = os.fstatvfs

    def small(fd):
        values = list(real(fd))
        values[1], values[2], values[4] = 4096, blocks, free  # f_frsize, f_blocks, f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "fstatvfs", small)


def test_a_file_system_with_less_room_is_reported_in_one_line(tmp_path, monkeypatch, caplog):
    of_size(monkeypatch, 1600, 1000)  # a sixteenth, 100 blocks, is left to others
    tier = MemoryTier.open(tmp_path, 16 * MIB)
    assert tier.status().largest_free_bytes == 900 * 4096
    assert tier.status().free_bytes == 900 * 4096
    assert tier.room_bytes == 900 * 4096
    assert tier.whole_bytes() == 1500 * 4096
    assert tier.allocate(901 * 4096) is None
    extent = taken(tier, 900 * 4096)
    extent.release()
    (line,) = caplog.messages
    assert "memory_tier_bytes is 16777216" in line
    assert "of 6553600 bytes with 4096000 free, has room for 3686400" in line
    assert "--shm-size" in line
    tier.close()


def test_a_file_system_without_room_is_used_when_it_has_some(tmp_path, monkeypatch):
    of_size(monkeypatch, 1600, 0)
    tier = MemoryTier.open(tmp_path, 16 * MIB)
    assert tier.allocate(1) is None
    assert tier.healthy
    assert tier.status().largest_free_bytes == 0
    of_size(monkeypatch, 1 << 20, 1 << 19)
    taken(tier, 8 * MIB).release()
    assert tier.room_bytes == 16 * MIB
    tier.close()


def test_pages_that_were_allotted_before_a_restart_are_used(tmp_path, monkeypatch):
    before = MemoryTier.open(tmp_path, 8 * MIB)
    taken(before, 8 * MIB)
    before.close()
    of_size(monkeypatch, 1600, 100)  # not more than what is left to others
    tier = MemoryTier.open(tmp_path, 8 * MIB)
    tier.finish_adoption()
    assert taken(tier, 8 * MIB).length == 8 * MIB
    tier.close()


def test_pages_are_prepared_ahead_without_changing_content(tmp_path):
    tier = MemoryTier.open(tmp_path, 3 * BACKING_AHEAD_BYTES)
    extent = taken(tier, BACKING_STEP_BYTES + 1)
    extent.view[-1] = 7
    assert tier.wants_backing
    start, end = tier.backing_range()
    assert 0 < start < end <= 3 * BACKING_AHEAD_BYTES
    assert tier.prepare(start, end) == end
    tier.prepared(end, end)
    assert not tier.wants_backing
    assert allotted(tier) >= end
    assert extent.view[-1] == 7
    extent.release()
    tier.close()


def test_a_failed_preparation_is_not_repeated(tier, monkeypatch):
    tier.allocate(10)
    start, end = tier.backing_range()

    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tier.prepared(end, tier.prepare(start, end))
    assert not tier.wants_backing
    assert tier.room_bytes == start


def test_a_preparation_keeps_the_steps_before_the_one_that_failed(tier, monkeypatch):
    tier.allocate(10)
    start, end = tier.backing_range()
    room = start + BACKING_STEP_BYTES + MIB
    real = os.posix_fallocate

    def limited(fd, offset, length):
        if offset + length > room:
            raise OSError(errno.ENOSPC, "no space")
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    secured = tier.prepare(start, end)
    tier.prepared(end, secured)
    assert secured == room
    assert not tier.wants_backing
    assert tier.allocate(secured - 4096) is not None


def test_a_smaller_configuration_still_adopts_what_lies_above_it(tmp_path):
    big = MemoryTier.open(tmp_path, 16 * MIB)
    low, high = taken(big, 4 * MIB), taken(big, 4 * MIB)
    high.view[:] = b"h" * (4 * MIB)
    big.close()
    small = MemoryTier.open(tmp_path, 2 * MIB)
    assert small.tier_id == big.tier_id
    adopted: Any = small.adopt(high.offset, high.length)
    small.finish_adoption()
    assert bytes(adopted.view) == b"h" * (4 * MIB)
    with pytest.raises(ValueError, match="beyond the file"):
        small.adopt(20 * MIB, 10)
    with pytest.raises(ValueError, match="overlaps"):
        small.adopt(high.offset, 10)
    assert low.length == 4 * MIB
    adopted.release()
    small.close()


def test_a_slice_in_flight_keeps_the_mapping_after_close(tmp_path, caplog):
    tier = MemoryTier.open(tmp_path, MIB)
    extent = taken(tier, 100)
    extent.view[:5] = b"still"
    piece = extent.view[:5]
    extent.release()
    tier.close()
    assert bytes(piece) == b"still"
    assert "stays until its last slice is released" in caplog.text
