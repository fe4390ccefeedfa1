import errno
import os

import pytest

from sluice.shuffle.taskmanager.store.files.journal_places import (
    is_on_a_disk,
    keep_damaged,
    place_on,
    remove_unused,
    require_room,
)
from sluice.shuffle.taskmanager.store.journal.journal import Entry, Journal
from sluice.shuffle.taskmanager.store.journal.journal_reader import open_journal

ARENA = bytes(range(8))


def make(directory, run, number, above=0):
    journal = Journal.create(
        directory, ARENA, run, [Entry(run, number, b"\x92\x02\xa1a")], (), above
    )
    journal.close()
    return journal


def rows(directory, places):
    found = open_journal(directory, ARENA, places)
    assert found is not None
    found.journal.close()
    return [entry[:2] for entry in found.entries], found.journal.path.parent


@pytest.fixture
def directories(tmp_path):
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    return home, place_on(disk, ARENA)


def test_the_newest_generation_counts_wherever_it_lies(directories):
    home, place = directories
    make(home, 1, 1)
    newer = make(place, 1, 2, above=1)
    assert newer.generation == 2
    assert rows(home, [place]) == ([(1, 2)], place)
    assert not list(home.iterdir())


def test_a_later_run_counts_more_than_a_higher_generation(directories):
    home, place = directories
    make(place, 1, 1, above=7)
    make(home, 2, 2)
    assert rows(home, [place]) == ([(2, 2)], home)
    assert not list(place.iterdir())


def test_only_places_on_disks_are_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "missing", 1, 1)
    with pytest.raises(FileNotFoundError):
        make(place_on(tmp_path / "missing", ARENA), 1, 1)
    assert is_on_a_disk(make(place_on(tmp_path, ARENA), 1, 1).path.parent)


def test_a_place_without_room_is_refused(tmp_path):
    require_room(place_on(tmp_path, ARENA), 1)
    usage = os.statvfs(tmp_path)
    with pytest.raises(OSError, match="a journal needs") as caught:
        require_room(place_on(tmp_path, ARENA), usage.f_blocks * usage.f_frsize + 1)
    assert caught.value.errno == errno.ENOSPC


def test_places_without_a_journal_in_use_are_removed(tmp_path):
    used, unused = place_on(tmp_path, ARENA), place_on(tmp_path, bytes(8))
    for place in (used, unused):
        make(place, 1, 1)
    (tmp_path / "journal-00000001-00000001").touch()
    remove_unused([tmp_path], [used, tmp_path])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "journal-00000001-00000001",
        used.name,
    ]


def test_a_damaged_journal_is_kept_and_hinders_no_other_removal(tmp_path):
    damaged, *_ = places = [place_on(tmp_path, bytes([number] * 8)) for number in range(9)]
    for place in places:
        make(place, 1, 1)
    (journal,) = damaged.glob("journal-*")
    keep_damaged(journal)
    remove_unused([tmp_path], [])
    assert list(tmp_path.iterdir()) == [damaged]
    assert [path.name for path in damaged.iterdir()] == ["journal.damaged"]
