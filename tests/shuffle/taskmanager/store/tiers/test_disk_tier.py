import errno
import os

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageReadFailed, StorageUnavailable
from sluice.shuffle.taskmanager.store.extent_reader import ExtentRange, will_need
from sluice.shuffle.taskmanager.store.files.directory_threads import StorageThreads
from sluice.shuffle.taskmanager.store.files.file_calls import ADVICE_BYTES
from sluice.shuffle.taskmanager.store.files.file_format import tier_id_of
from sluice.shuffle.taskmanager.store.files.io_threads import IoThreads
from sluice.shuffle.taskmanager.store.tiers import disk_tier as module
from sluice.shuffle.taskmanager.store.tiers.arena_files import arena_path
from sluice.shuffle.taskmanager.store.tiers.disk_tier import IOV_MAX, DiskTier
from sluice.shuffle.taskmanager.store.tiers.tiers import Tiers
from sluice.shuffle.taskmanager.store.tiers.upkeep import Upkeep
from sluice.transport.fair_queue import Flow

MIB = 1024 * 1024


@pytest.fixture
def make(tmp_path):
    tiers = []

    def open_tier(quota=None, floor=0, retained=0, on_excess=None):
        path = arena_path(tmp_path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        tier = DiskTier(path, fd, quota, floor, on_excess, retained)
        tiers.append(tier)
        return tier

    yield open_tier
    for tier in tiers:
        tier.close()


def allotted(tier):
    return os.fstat(tier.fd).st_blocks * 512


def free_space(monkeypatch, free_bytes, size_bytes=1 << 40):
    """Let the disk have this much free; returns a setter."""
    now = [free_bytes]
    real = os.fstatvfs

    def fake(fd):
        values = list(real(fd))
        values[1], values[2], values[4] = 1, size_bytes, now[0]
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "fstatvfs", fake)
    return lambda value: now.__setitem__(0, value)


def fill(tier, extent, byte=b"x"):
    tier.write(extent.offset, [memoryview(byte * extent.length)])
    tier.written(extent)


def test_written_bytes_are_read_back_however_they_are_cut(make):
    tier = make()
    extent = tier.allocate(300_000)
    data = os.urandom(300_000)
    view = memoryview(data)
    pieces = [view[i : i + 100] for i in range(0, len(view), 100)]  # more than one pwritev takes
    assert len(pieces) > 2 * IOV_MAX
    tier.write(extent.offset, [*pieces[:10], memoryview(b""), *pieces[10:]])
    back = bytearray(300_000)
    target = memoryview(back)
    tier.read(extent.offset, [target[i : i + 70] for i in range(0, 300_000, 70)])
    assert back == data


@pytest.mark.interpreted
async def test_the_kernel_is_advised_of_ranges_and_reads_nothing_else_ahead(tmp_path, monkeypatch):
    """Neighbours together, in the order of the disk, and no more at once than Linux takes."""
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *advice: told.append(advice))
    monkeypatch.setattr(module, "largest_advice_bytes", lambda fd: ADVICE_BYTES)
    tier = DiskTier.open(tmp_path, None, 0)
    assert told == [(0, 0, os.POSIX_FADV_RANDOM)]
    first, second = tier.allocate(2 * MIB), tier.allocate(2 * MIB)
    assert first is not None
    assert second is not None
    tier.threads = threads = IoThreads(1, "test-io")
    ranges = [
        ExtentRange(second, 100, 50),
        ExtentRange(first, MIB, ADVICE_BYTES + 1000),
        ExtentRange(second, 150, 20),
    ]
    await will_need(ranges, Flow("app", 1))
    threads.end()
    tier.close()
    assert told[1:] == [
        (first.offset + MIB, ADVICE_BYTES, os.POSIX_FADV_WILLNEED),
        (first.offset + MIB + ADVICE_BYTES, 1000, os.POSIX_FADV_WILLNEED),
        (second.offset + 100, 70, os.POSIX_FADV_WILLNEED),
    ]


@pytest.mark.parametrize("is_missing", [False, True])
def test_advice_that_is_not_taken_does_no_harm(tmp_path, monkeypatch, is_missing):
    def refused(*_):
        raise OSError(errno.EINVAL, "not this file system")

    if is_missing:
        monkeypatch.delattr(os, "posix_fadvise")
    else:
        monkeypatch.setattr(os, "posix_fadvise", refused)
    tier = DiskTier.open(tmp_path, None, 0)
    tier.will_need([(0, 100)])  # raises nothing
    tier.close()


def test_partial_writes_are_continued(make, monkeypatch):
    tier = make()
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [buffers[0][:7]], at))
    tier.write(3, [memoryview(b"0123456789"), memoryview(b"abcdefghijklmn")])
    back = bytearray(24)
    tier.read(3, [memoryview(back)])
    assert back == b"0123456789abcdefghijklmn"


def test_a_short_read_is_a_typed_error_with_the_numbers(make):
    tier = make()
    tier.write(0, [memoryview(b"only this")])
    with pytest.raises(StorageReadFailed, match="9 of 20 bytes: end of file") as caught:
        tier.read(0, [memoryview(bytearray(20))])
    assert (caught.value.value, caught.value.limit) == (9, 20)


def test_fresh_writes_are_in_the_page_cache(make):
    tier = make()
    tier.write(5, [memoryview(b"abcdef")])
    back = [memoryview(bytearray(2)), memoryview(bytearray(4))]
    assert tier.read_cached(5, back)
    assert b"".join(back) == b"abcdef"


def test_a_cached_read_at_the_end_of_the_file_leaves_the_error_to_read(make):
    tier = make()
    tier.write(0, [memoryview(b"ab")])
    assert not tier.read_cached(0, [memoryview(bytearray(3))])


@pytest.mark.parametrize(
    ("error", "again"),
    [(errno.EAGAIN, True), (errno.EIO, True), (errno.EOPNOTSUPP, False), (errno.ENOSYS, False)],
)
def test_a_failing_cached_read_is_not_a_disk_failure(make, monkeypatch, error, again):
    tier = make()
    tier.write(0, [memoryview(b"ab")])

    def fail(*_arguments):
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        assert not tier.read_cached(0, [memoryview(bytearray(2))])
    assert tier.read_cached(0, [memoryview(bytearray(2))]) is again
    assert tier.healthy


def test_the_quota_holds(make):
    tier = make(quota=MIB)
    assert tier.allocate(MIB + 1) is None
    extent = tier.allocate(MIB)
    assert tier.allocate(1) is None
    extent.release()
    assert tier.status().largest_free_bytes == MIB


def test_the_floor_counts_bytes_that_are_allotted_but_not_written(make, monkeypatch):
    tier = make(floor=10 * MIB)
    set_free = free_space(monkeypatch, 12 * MIB)
    first = tier.allocate(MIB)
    assert tier.status().largest_free_bytes == MIB
    assert tier.allocate(2 * MIB) is None
    second = tier.allocate(MIB)
    assert tier.allocate(4096) is None
    fill(tier, first)
    set_free(11 * MIB)  # as statvfs shows after the write
    assert tier.allocate(4096) is None
    tier.written(second)
    second.release()  # aborted: that space can be promised again
    assert tier.allocate(MIB) is not None


def test_recycled_space_needs_no_free_disk(make, monkeypatch):
    tier = make(floor=10 * MIB, retained=8 * MIB)
    set_free = free_space(monkeypatch, 100 * MIB)
    extent = tier.allocate(MIB)
    fill(tier, extent)
    extent.release()
    set_free(0)
    again = tier.allocate(MIB)
    assert again is not None
    assert again.offset == 0
    assert tier.allocate(1) is None


def test_a_full_disk_is_left_out_until_space_comes_back(make, monkeypatch):
    tier = make()
    set_free = free_space(monkeypatch, 100 * MIB)
    stored, failed = tier.allocate(MIB), tier.allocate(MIB)
    fill(tier, stored)
    tier.note_failure(OSError(errno.ENOSPC, "no space"))
    assert tier.allocate(1) is None
    assert tier.status().largest_free_bytes == 0
    tier.written(failed)
    failed.release()
    assert tier.allocate(1) is None  # the failed attempt gave nothing back that had been written
    stored.release()
    again = tier.allocate(MIB)
    assert again is not None
    tier.note_failure(OSError(errno.EDQUOT, "quota"))
    assert tier.allocate(1) is None
    set_free(100 * MIB + module.RECOVERY_BYTES)  # others have freed some
    assert tier.allocate(1) is not None
    assert tier.healthy


def test_a_small_disk_needs_less_to_come_back(make, monkeypatch):
    set_free = free_space(monkeypatch, 10 * MIB, size_bytes=80 * MIB)
    tier = make()
    tier.note_failure(OSError(errno.ENOSPC, "no space"))
    set_free(19 * MIB)
    assert tier.allocate(1) is None
    set_free(20 * MIB)
    assert tier.allocate(1) is not None


def test_a_broken_disk_takes_nothing_more_but_is_still_read(make):
    tier = make()
    extent = tier.allocate(10)
    fill(tier, extent)
    tier.note_failure(OSError(errno.EIO, "medium error"))
    assert tier.allocate(1) is None
    assert not tier.status().healthy
    assert "medium error" in tier.status().reason
    back = bytearray(10)
    tier.read(extent.offset, [memoryview(back)])
    assert back == b"x" * 10


def test_a_disk_that_cannot_tell_its_free_space_is_left_out(make, monkeypatch):
    tier = make()

    def broken(fd):
        raise OSError(errno.EIO, "medium error")

    monkeypatch.setattr(os, "fstatvfs", broken)
    assert tier.allocate(1) is None
    assert not tier.healthy


def test_the_free_end_goes_back_to_the_disk_except_what_is_kept_warm(make):
    told: list[DiskTier] = []
    tier = make(retained=MIB, on_excess=told.append)
    low, high = tier.allocate(2 * MIB), tier.allocate(6 * MIB)
    fill(tier, low)
    fill(tier, high)
    before = allotted(tier)
    high.release()
    assert told == [tier]
    trim = tier.begin_trim()
    assert trim == (3 * MIB, 5 * MIB)
    assert tier.status().used_bytes == 2 * MIB
    assert tier.begin_trim() is None
    tier.end_trim(*trim, tier.punch(*trim))
    assert before - allotted(tier) == 5 * MIB
    assert tier._allocator.frontier_bytes == 3 * MIB
    low.release()
    assert tier.status().used_bytes == 0


def test_a_region_written_behind_a_trim_under_way_is_not_harmed(make):
    tier = make()
    first = tier.allocate(4 * MIB)
    fill(tier, first)
    first.release()
    trim = tier.begin_trim()
    behind = tier.allocate(MIB)
    assert behind.offset == 4 * MIB
    fill(tier, behind, b"k")
    tier.end_trim(*trim, tier.punch(*trim))
    back = bytearray(MIB)
    tier.read(behind.offset, [memoryview(back)])
    assert back == b"k" * MIB
    assert tier._allocator.frontier_bytes == 5 * MIB
    inside = tier.allocate(MIB)
    assert inside.offset == 0
    for extent in (inside, behind):
        extent.release()
    assert tier.status().used_bytes == 0


def test_a_file_system_without_holes_is_tried_once(make):
    tier = make()
    extent = tier.allocate(MIB)
    fill(tier, extent)
    extent.release()
    trim = tier.begin_trim()
    tier.end_trim(*trim, "Operation not supported")
    assert tier.begin_trim() is None
    assert tier._allocator.frontier_bytes == MIB
    assert tier.allocate(MIB).offset == 0


def test_less_than_a_page_is_not_worth_a_trim(make):
    tier = make(retained=10)
    tier.allocate(1).release()
    assert tier.begin_trim() is None


def test_an_arena_that_cannot_be_cut_is_left_out(make, monkeypatch):
    tier = make()

    def broken(fd, length):
        raise OSError(errno.EIO, "medium error")

    monkeypatch.setattr(os, "ftruncate", broken)
    tier.finish_adoption()
    assert not tier.healthy


def test_a_failed_punch_returns_the_message_of_the_system(make):
    tier = make()
    assert tier.punch(-1, 10) == os.strerror(errno.EINVAL)


def test_uncommitted_data_at_the_end_is_cut_off_at_adoption(make):
    tier = make()
    kept, lost = tier.allocate(100), tier.allocate(MIB)
    fill(tier, kept)
    fill(tier, lost)
    after = make()
    assert after.tier_id == tier.tier_id == tier_id_of(tier.path)
    after.adopt(kept.offset, kept.length)
    after.finish_adoption()
    assert os.fstat(after.fd).st_size == 4096


def test_a_directory_that_is_a_file_is_a_typed_error(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StorageUnavailable):
        DiskTier.open(path, None, 0)


def test_names_that_are_not_an_arenas_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not named"):
        tier_id_of(tmp_path / "arena-1.dat")


def test_a_second_arena_in_a_directory_is_reported(tmp_path, caplog):
    for digit in "21":
        (tmp_path / f"arena-2-{digit * 16}.dat").touch()
    assert arena_path(tmp_path).name == f"arena-2-{'1' * 16}.dat"
    assert "2 arenas" in caplog.text


def test_a_retired_tier_closes_its_file_with_the_last_extent(make):
    tier = make()
    extents = [tier.allocate(100), tier.allocate(100)]
    tier.retire()
    extents[0].release()
    assert not tier.is_closed
    buffer = bytearray(100)
    tier.write(extents[1].offset, [memoryview(b"x" * 100)])
    tier.read(extents[1].offset, [memoryview(buffer)])
    assert buffer == b"x" * 100
    extents[1].release()
    assert tier.is_closed
    tier.close()


def test_a_retired_tier_stays_open_while_a_thread_punches_a_hole(make):
    tier = make(retained=0)
    extent = tier.allocate(MIB)
    extent.release()
    trim = tier.begin_trim()
    tier.retire()
    assert not tier.is_closed
    tier.end_trim(*trim, tier.punch(*trim))
    assert tier.is_closed


def test_a_replaced_tier_is_closed_with_its_last_extent(make):
    threads = StorageThreads(1, 1)
    before = [make(), make(), make()]
    tiers = Tiers(None, before[:1], {}, Upkeep(), 0)
    extent = before[0].allocate(100)
    for tier in before[1:]:
        tiers.use_anew(tier)
    tiers.use_anew(make())
    assert [tier.is_closed for tier in before] == [False, True, True]
    extent.release()
    assert before[0].is_closed
    tiers.close(threads)
    threads.end()
