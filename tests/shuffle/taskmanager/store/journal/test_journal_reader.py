"""The journal file: every way in which its end or its middle can be broken."""

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.store.files.journal_places import generation_of
from sluice.shuffle.taskmanager.store.journal.journal import (
    Entry,
    Journal,
)
from sluice.shuffle.taskmanager.store.journal.journal_reader import open_journal
from tests.shuffle.taskmanager.store.journal.journal_rows import (
    ARENA,
    RECORDS,
    ROWS,
    reread,
    written,
)


def test_a_journal_cut_anywhere_keeps_the_whole_records_before_the_cut(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    header = len(whole) - sum(RECORDS)
    ends = [header + sum(RECORDS[:n]) for n in range(len(ROWS) + 1)]
    for cut in range(header, len(whole)):
        path.write_bytes(whole[:cut])
        kept = max(n for n, end in enumerate(ends) if end <= cut)
        found = open_journal(tmp_path, ARENA)
        assert found is not None
        assert found.entries == ROWS[:kept], cut
        assert not found.damage
        assert path.stat().st_size == ends[kept]  # the torn record is gone, appends follow on
        found.journal.append([ROWS[-1]], [])
        found.journal.close()
        assert reread(tmp_path).entries == [*ROWS[:kept], ROWS[-1]]


def test_a_flipped_byte_anywhere_costs_the_record_that_has_it(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    header = len(whole) - sum(RECORDS)
    for position in range(header, len(whole) - RECORDS[-1]):
        broken = bytearray(whole)
        broken[position] ^= 0x41
        path.write_bytes(broken)
        found = reread(tmp_path)
        number = (position - header) // RECORDS[0]
        assert found.entries == ROWS[:number] + ROWS[number + 1 :], position
        assert [damage.offset for damage in found.damage] == [header + number * RECORDS[0]]
        assert str(path) in str(found.damage[0])
        assert path.stat().st_size == len(whole)  # a damaged journal is not cut


def test_a_last_record_with_a_wrong_checksum_is_damage_not_a_torn_write(tmp_path):
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    found = reread(tmp_path)
    assert found.entries == ROWS[:-1]
    assert len(found.damage) == 1


def test_bytes_cut_out_of_the_middle_cost_the_records_that_had_them(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    header = len(whole) - sum(RECORDS)
    path.write_bytes(whole[: header + 10] + whole[header + RECORDS[0] + 10 :])
    found = reread(tmp_path)
    assert found.entries == ROWS[2:]
    assert found.damage


@pytest.mark.parametrize("header", [b"", b"sluice journal 9 little\n", b"\0" * 100])
def test_behind_a_foreign_header_records_of_the_arena_still_count(tmp_path, header):
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(header + whole[len(whole) - sum(RECORDS) :])
    found = reread(tmp_path)
    assert found.entries == ROWS
    assert found.damage
    path.write_bytes(header)
    assert reread(tmp_path).entries == []
    assert reread(tmp_path, bytes(8)).entries == []


def test_records_of_another_arena_do_not_count(tmp_path):
    """So that nothing that lies in a row can pass for a record."""
    (tmp_path / "other").mkdir()
    other = Journal.create(tmp_path / "other", bytes(8), 1, ROWS)
    other.close()
    record = other.path.read_bytes()[-RECORDS[-1] :]
    row = Entry(1, 9, b"outer" + record + b"outer")
    path = written(tmp_path, [row, ROWS[0]])
    broken = bytearray(path.read_bytes())
    broken[broken.index(b"outer")] ^= 1
    path.write_bytes(broken)
    assert reread(tmp_path).entries == [ROWS[0]]


def test_what_lies_before_damage_is_doubtful_if_releases_are_missing_too(tmp_path):
    path = written(tmp_path, ROWS[:3], ROWS[3:])
    broken = bytearray(path.read_bytes())
    broken[-RECORDS[-1] - 1] ^= 1  # the fourth row, a release
    path.write_bytes(broken)
    assert reread(tmp_path).doubtful == 0
    (second,) = tmp_path.glob("releases-*")
    second.unlink()
    found = reread(tmp_path)
    assert found.entries == [*ROWS[:3], ROWS[4]]
    assert found.doubtful == 3
    assert len(found.damage) == 2


def test_the_newest_generation_counts_and_the_others_go(tmp_path):
    Journal.create(tmp_path, ARENA, 7, ROWS[:1]).close()
    newer = Journal.create(tmp_path, ARENA, 7, ROWS[:2])
    newer.close()
    (tmp_path / "journal.new").write_bytes(b"unfinished")
    (tmp_path / "journal-x").write_bytes(b"foreign")
    assert generation_of(newer.path) == 2
    assert reread(tmp_path).entries == ROWS[:2]
    assert [path.name for path in tmp_path.glob("journal-0*")] == [newer.path.name]
    assert len(list(tmp_path.glob("releases-*"))) == 1


def test_a_directory_without_a_journal(tmp_path):
    assert open_journal(tmp_path, ARENA) is None


def test_a_journal_of_another_format_is_not_seen(tmp_path):
    older = tmp_path / "journal-00000001"
    older.write_bytes(b"sluice journal 1 little\n")
    assert open_journal(tmp_path, ARENA) is None
    Journal.create(tmp_path, ARENA, 7, ROWS).close()
    assert reread(tmp_path).entries == ROWS
    assert older.read_bytes() == b"sluice journal 1 little\n"


def test_a_directory_that_cannot_be_listed_is_a_typed_error(tmp_path):
    with pytest.raises(StorageUnavailable):
        open_journal(tmp_path / "missing", ARENA)
