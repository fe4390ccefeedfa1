"""The journal file: what it writes, and how it refuses to."""

import errno
import os

import pytest

from sluice.shuffle.taskmanager.store.journal.journal import (
    Entry,
    Journal,
)
from sluice.shuffle.taskmanager.store.journal.journal_reader import open_journal
from sluice.shuffle.taskmanager.store.journal.rows import pack_release_application
from tests.shuffle.taskmanager.store.journal.journal_rows import (
    ARENA,
    ROWS,
    reread,
    written,
)


def test_appended_rows_are_read_back_in_order(tmp_path):
    journal = Journal.create(tmp_path, ARENA, 3, ROWS[:2])
    journal.append(ROWS[2:], [])
    journal.close()
    found = reread(tmp_path)
    assert found.entries == ROWS
    assert not found.damage
    assert journal.path.stat().st_size == journal.size_bytes
    assert journal.run == 3


def test_releases_are_in_both_files(tmp_path):
    written(tmp_path, ROWS[:2], ROWS[2:])
    found = reread(tmp_path)
    assert found.entries == ROWS
    assert found.releases == ROWS[2:]


def test_a_new_run_has_its_number_in_the_name(tmp_path):
    journal = Journal.create(tmp_path, ARENA, 7, ROWS[:1])
    journal.begin_run(8)
    journal.append(ROWS[1:2], [])
    journal.close()
    found = reread(tmp_path)
    assert found.entries == ROWS[:2]
    assert found.journal.run == 8


def test_a_refused_append_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path, ARENA, 1, ROWS[:1])
    real = os.pwrite

    def half_then_full(fd, data, offset):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, data[: len(data) - 5], offset)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(OSError, match="no space"):
        journal.append(ROWS[1:3], ROWS[3:])
    monkeypatch.undo()
    assert journal.path.stat().st_size == journal.size_bytes
    row = Entry(1, 9, pack_release_application("other"))
    journal.append([row], [])
    journal.close()
    assert reread(tmp_path).entries == [ROWS[0], row]
    assert reread(tmp_path).releases == []


def test_a_journal_on_a_full_device_is_refused(tmp_path, monkeypatch):
    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        Journal.create(tmp_path, ARENA, 1, ROWS)
    assert open_journal(tmp_path, ARENA) is None
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_a_journal_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "journal.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Journal.create(tmp_path, ARENA, 1, ROWS)
    assert victim.read_bytes() == b"kept"
    Journal.create(tmp_path, ARENA, 1, ROWS).close()  # the link is gone
    assert reread(tmp_path).entries == ROWS
