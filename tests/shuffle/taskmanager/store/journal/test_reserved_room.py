import errno
import os

import pytest

from sluice.shuffle.taskmanager.store.journal import reserved_room
from sluice.shuffle.taskmanager.store.journal.reserved_room import ReservedRoom

AHEAD_BYTES = 64 * 1024


class FileSystem:
    """The file system below ``fallocate``: room for a file up to an end."""

    def __init__(self, end: int, error: int = errno.ENOSPC) -> None:
        self.end = end
        self.error = error
        self.calls: list[tuple[int, int]] = []

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        self.calls.append((offset, length))
        if offset + length > self.end:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def system(monkeypatch) -> FileSystem:
    system = FileSystem(1 << 30)
    monkeypatch.setattr(reserved_room, "fallocate", system.fallocate)
    return system


def test_one_call_allots_room_for_many_writes(system):
    room = ReservedRoom(0, 0, AHEAD_BYTES)
    for start in range(0, AHEAD_BYTES, 100):
        room.require(start, 100)
    assert system.calls == [(0, 100 + AHEAD_BYTES)]


def test_what_fits_is_allotted_if_there_is_no_room_ahead(system):
    system.end = 300
    room = ReservedRoom(0, 0, AHEAD_BYTES)
    room.require(0, 200, kept_bytes=100)
    with pytest.raises(OSError, match="No space"):
        room.require(200, 50, kept_bytes=100)
    room.require(200, 50)  # what is kept, for those who may have it
    assert system.calls[-1] == (200, 150)


def test_a_file_system_that_cannot_allot_is_written_without(system):
    system.end, system.error = 0, errno.EOPNOTSUPP
    room = ReservedRoom(0, 0, AHEAD_BYTES)
    room.require(0, 100)
    room.require(100, 100)
    assert len(system.calls) == 1


def test_room_is_allotted_again_after_a_cut(system):
    room = ReservedRoom(0, 0, AHEAD_BYTES)
    room.require(0, 100)
    room.forget(0)
    room.require(0, 100)
    assert len(system.calls) == 2


def test_the_length_of_the_file_stays_what_was_written(tmp_path):
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, b"x" * 10, 0)
        ReservedRoom(fd, 10, AHEAD_BYTES).require(10, 10)
        assert path.stat().st_size == 10
        assert path.stat().st_blocks * 512 >= AHEAD_BYTES
    finally:
        os.close(fd)
