import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageInUse, StorageUnavailable
from sluice.shuffle.taskmanager.store.health.directories import (
    ID_NAME,
    LOCK_NAME,
    DirectoryLock,
    has_same_id,
    taskmanager_id,
)

HOLDER = """
import sys
from pathlib import Path
from sluice.shuffle.taskmanager.store.health.directories import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has the lock of a directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_directory_locked_by_another_process_names_it(holder, tmp_path):
    with pytest.raises(StorageInUse, match=f"process {holder.pid}") as caught:
        DirectoryLock(tmp_path)
    assert caught.value.holder == str(holder.pid)
    assert "data_directories" in str(caught.value)
    holder.kill()
    holder.wait(20)
    DirectoryLock(tmp_path).release()  # the kernel gave it back


def test_a_directory_is_locked_without_the_file_of_its_lock(holder, tmp_path):
    (tmp_path / LOCK_NAME).unlink()
    with pytest.raises(StorageInUse, match="process unknown"):
        DirectoryLock(tmp_path)
    assert not (tmp_path / LOCK_NAME).exists()  # the holder finds out
    (tmp_path / LOCK_NAME).touch()
    with pytest.raises(StorageInUse):
        DirectoryLock(tmp_path)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_the_file_is_locked_where_directories_cannot_be(holder, tmp_path, monkeypatch, number):
    """NFS refuses the lock of a directory; an older release locks the file alone."""
    flock = fcntl.flock

    def refuse_directories(fd, operation):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_directories)
    with pytest.raises(StorageInUse, match=f"process {holder.pid}"):
        DirectoryLock(tmp_path)
    lock = DirectoryLock(tmp_path / "other")
    with pytest.raises(StorageInUse):
        DirectoryLock(tmp_path / "other")
    lock.release()
    DirectoryLock(tmp_path / "other").release()


def test_a_lock_makes_its_directory_private(tmp_path):
    directory = tmp_path / "new" / "data"
    DirectoryLock(directory).release()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_file_in_place_of_a_directory_is_unavailable(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StorageUnavailable, match="Not a directory") as caught:
        DirectoryLock(path)
    assert caught.value.directory == path
    with pytest.raises(StorageUnavailable):
        DirectoryLock(path / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_strangers_directory_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs = shared / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    for directory in (theirs, theirs / "below"):
        with pytest.raises(StorageUnavailable, match="belongs to user 12345") as caught:
            DirectoryLock(directory)
        assert f"change the owner of {theirs}" in caught.value.remedy
    assert list(theirs.iterdir()) == []
    os.chown(theirs, 0, 0)
    DirectoryLock(theirs).release()


@pytest.mark.parametrize(
    ("name", "use"),
    [(LOCK_NAME, DirectoryLock), (ID_NAME, lambda directory: taskmanager_id([directory]))],
)
def test_a_link_in_place_of_a_file_is_not_followed(tmp_path, name, use):
    directory, victim = tmp_path / "data", tmp_path / "victim"
    directory.mkdir()
    victim.write_text("0123456789abcdef")
    (directory / name).symlink_to(victim)
    with pytest.raises(StorageUnavailable):
        use(directory)
    assert victim.read_text() == "0123456789abcdef"


def test_an_id_that_is_a_pipe_stops_no_start(tmp_path):
    os.mkfifo(tmp_path / ID_NAME)
    assert not has_same_id(tmp_path, [tmp_path])


def test_the_id_is_stable_and_kept_in_every_directory(tmp_path):
    directories = [tmp_path / name for name in "abc"]
    for directory in directories:
        directory.mkdir()
    identity = taskmanager_id(directories[:2])
    assert len(identity) == 16
    assert int(identity, 16) >= 0
    assert taskmanager_id(directories) == identity
    (directories[0] / ID_NAME).write_bytes(b"\xff damaged")
    assert taskmanager_id(directories) == identity
    assert (directories[0] / ID_NAME).read_text().strip() == identity
    assert taskmanager_id([directories[2]]) == identity
    assert taskmanager_id([tmp_path]) != identity


def test_an_id_that_cannot_be_kept_is_an_error(tmp_path):
    with pytest.raises(StorageUnavailable, match="cannot be kept"):
        taskmanager_id([tmp_path / "missing"])


def test_a_directory_of_a_full_file_system_is_locked(tmp_path, monkeypatch):
    """The process id in the file is for messages only."""

    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StorageInUse, match="process unknown"):
        DirectoryLock(tmp_path)
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_a_link_of_another_user_in_a_shared_directory_is_refused(tmp_path):
    private, shared = tmp_path / "private", tmp_path / "shared"
    private.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "sluice"
    link.symlink_to(private)
    os.lchown(link, 12345, 12345)
    with pytest.raises(StorageUnavailable, match="belongs to user 12345"):
        DirectoryLock(link)
    assert list(private.iterdir()) == []
    os.lchown(link, os.geteuid(), os.getegid())
    DirectoryLock(link).release()  # a link of one's own is no attack
