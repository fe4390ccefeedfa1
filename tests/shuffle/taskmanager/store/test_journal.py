"""The journal file: every way in which its end or its middle can be broken."""

import errno
import os

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.errors import CorruptJournal, StorageUnavailable
from sluice.shuffle.taskmanager.store.journal import (
    Journal,
    find_journals,
    open_journal,
    record_bytes,
)
from sluice.shuffle.taskmanager.store.rows import pack_release_application, pack_release_shuffle

ROWS = [pack_release_shuffle(ShuffleKey("app", n)) for n in range(5)]


def written(directory, rows=ROWS):
    journal = Journal.create(directory, 1, [])
    for row in rows:
        journal.append([row])
    journal.close()
    return journal.path


def reread(path):
    journal, rows, damage = open_journal(path)
    journal.close()
    return rows, damage


def test_appended_rows_are_read_back_in_order(tmp_path):
    journal = Journal.create(tmp_path, 3, ROWS[:2])
    journal.append(ROWS[2:])
    journal.close()
    assert reread(journal.path) == (ROWS, None)
    assert journal.path.stat().st_size == journal.size_bytes
    assert journal.generation == 3


def test_a_journal_cut_anywhere_keeps_the_whole_records_before_the_cut(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    header = len(whole) - sum(map(record_bytes, ROWS))
    ends = [header + sum(map(record_bytes, ROWS[:n])) for n in range(len(ROWS) + 1)]
    for cut in range(header, len(whole)):
        path.write_bytes(whole[:cut])
        kept = max(n for n, end in enumerate(ends) if end <= cut)
        assert reread(path) == (ROWS[:kept], None), cut
        assert path.stat().st_size == ends[kept]  # the torn record is gone, appends follow on
        journal, _, _ = open_journal(path)
        journal.append([ROWS[-1]])
        journal.close()
        assert reread(path) == ([*ROWS[:kept], ROWS[-1]], None)


def test_a_flipped_byte_anywhere_is_reported_and_the_records_before_it_are_kept(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    header = len(whole) - sum(map(record_bytes, ROWS))
    size = record_bytes(ROWS[0])
    for position in range(header, len(whole) - size):  # not in the last record
        broken = bytearray(whole)
        broken[position] ^= 0x41
        path.write_bytes(broken)
        rows, damage = reread(path)
        kept = (position - header) // size
        assert rows == ROWS[:kept], position
        assert isinstance(damage, CorruptJournal)
        assert damage.offset == header + kept * size
        assert str(path) in str(damage)
        assert path.stat().st_size == len(whole)  # a damaged journal is not cut


def test_a_last_record_with_a_wrong_checksum_is_damage_not_a_torn_write(tmp_path):
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    rows, damage = reread(path)
    assert rows == ROWS[:-1]
    assert damage is not None
    assert "checksum" in str(damage)


@pytest.mark.parametrize("content", [b"", b"sluice journal 9 little\n", b"\0" * 100])
def test_a_foreign_header_is_damage_at_the_start(tmp_path, content):
    path = tmp_path / "journal-00000001"
    path.write_bytes(content)
    rows, damage = reread(path)
    assert rows == []
    assert damage is not None
    assert damage.offset == 0


def test_the_highest_generation_counts_across_directories(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for directory in (a, b):
        directory.mkdir()
    for directory, generation in ((a, 2), (b, 10), (a, 9)):
        Journal.create(directory, generation, []).close()
    (a / "journal.new").write_bytes(b"unfinished")
    (a / "journal-x").write_bytes(b"foreign")
    found = find_journals([a, b])
    assert [path.name for path in found] == [
        "journal-00000010",
        "journal-00000009",
        "journal-00000002",
    ]


def test_a_directory_that_cannot_be_listed_is_a_typed_error(tmp_path):
    with pytest.raises(StorageUnavailable):
        find_journals([tmp_path / "missing"])


def test_a_refused_append_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path, 1, ROWS[:1])
    real = os.pwrite

    def half_then_full(fd, data, offset):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, data[: len(data) - 5], offset)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(OSError, match="no space"):
        journal.append(ROWS[1:3])
    monkeypatch.undo()
    assert journal.path.stat().st_size == journal.size_bytes
    row = pack_release_application("other")
    journal.append([row])
    journal.close()
    assert reread(journal.path) == ([ROWS[0], row], None)


def test_a_journal_on_a_full_device_is_refused(tmp_path):
    # /dev/full takes the open and refuses the write, like a full disk does
    (tmp_path / "journal.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        Journal.create(tmp_path, 1, ROWS)
    assert find_journals([tmp_path]) == []
    assert not (tmp_path / "journal.new").is_symlink()
