"""Probes of real directories."""

import errno
import fcntl
import os

import pytest

from sluice.shuffle.taskmanager.store.health import directory_probe
from sluice.shuffle.taskmanager.store.health.directory_health import Condition
from sluice.shuffle.taskmanager.store.health.directory_probe import (
    ProbedDirectory,
    identity_of,
    probe,
)


def probed_of(directory):
    arena, lock = directory / "arena", directory / "lock"
    arena.touch()
    lock.touch()
    return ProbedDirectory(
        directory,
        identity_of(directory.stat()),
        ((arena, identity_of(arena.stat())),),
        (lock, identity_of(lock.stat())),
    )


def condition(probed):
    return probe(probed).condition


def test_a_sound_directory_is_good_each_time(tmp_path):
    probed = probed_of(tmp_path)
    assert [condition(probed) for _ in range(3)] == [Condition.GOOD] * 3
    assert (tmp_path / "health").stat().st_size == 4096


def test_any_directory_will_do_where_none_is_known(tmp_path):
    assert condition(ProbedDirectory(tmp_path)) is Condition.GOOD


def test_a_directory_that_was_removed_is_gone(tmp_path):
    directory = tmp_path / "d"
    directory.mkdir()
    probed = probed_of(directory)
    (directory / "arena").unlink()
    found = probe(probed)
    assert found.condition is Condition.GONE
    assert "arena was removed" in found.reason
    (directory / "lock").unlink()
    assert condition(probed) is Condition.GONE
    directory.rmdir()
    assert condition(probed) is Condition.GONE
    assert condition(ProbedDirectory(directory)) is Condition.GONE


def test_another_directory_in_its_place_is_not_it(tmp_path):
    directory = tmp_path / "d"
    directory.mkdir()
    probed = probed_of(directory)
    directory.rename(tmp_path / "away")
    directory.mkdir()
    assert "another directory" in probe(probed).reason
    (directory / "arena").touch()
    assert condition(probed) is Condition.GONE


def test_another_file_in_its_place_is_not_it(tmp_path):
    probed = probed_of(tmp_path)
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "arena")
    assert "another file" in probe(probed).reason


def test_a_directory_without_the_file_of_its_lock_is_unlocked(tmp_path):
    probed = probed_of(tmp_path)
    (tmp_path / "lock").unlink()
    assert probe(probed) == (Condition.UNLOCKED, "lock was removed")
    (tmp_path / "lock").touch()  # by another TaskManager
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(tmp_path / "lock")
    assert condition(probed) is Condition.UNLOCKED


def test_a_file_in_the_place_of_the_directory_is_gone(tmp_path):
    path = tmp_path / "d"
    path.touch()
    assert condition(ProbedDirectory(path)) is Condition.GONE


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, Condition.BAD),
        (errno.EROFS, Condition.BAD),
        (errno.ENOSPC, Condition.GOOD),
        (errno.EDQUOT, Condition.GOOD),
        (errno.EMFILE, Condition.UNKNOWN),
        (errno.ENOMEM, Condition.UNKNOWN),
        (errno.ENODEV, Condition.GONE),
        (errno.ESTALE, Condition.GONE),
    ],
)
def test_what_an_error_means(tmp_path, monkeypatch, number, expected):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(directory_probe, "_write_and_read", fail)
    found = probe(probed_of(tmp_path))
    assert found.condition is expected
    assert bool(found.reason) == (expected in (Condition.BAD, Condition.GONE))


def test_bytes_that_come_back_changed_are_bad(tmp_path, monkeypatch):
    real = os.preadv

    def flipped(fd, buffers, offset):
        count = real(fd, buffers, offset)
        buffers[0][7] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", flipped)
    assert "other bytes" in probe(probed_of(tmp_path)).reason


def test_a_file_system_without_direct_access_is_probed_too(tmp_path, monkeypatch):
    real = os.open

    def without(path, flags, *args):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct access")
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", without)
    assert condition(probed_of(tmp_path)) is Condition.GOOD


def refusing(real, number, plain_too):
    """A call that fails on a file that was opened with O_DIRECT, or on any."""

    def call(fd, *args):
        if plain_too or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return real(fd, *args)

    return call


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_file_system_that_refuses_direct_access_late_is_probed_too(
    tmp_path, monkeypatch, call, number
):
    """It opens the file, and refuses to write or to read it."""
    monkeypatch.setattr(os, call, refusing(getattr(os, call), number, plain_too=False))
    assert condition(probed_of(tmp_path)) is Condition.GOOD


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_refuses_every_write_or_read_is_bad(tmp_path, monkeypatch, call, number):
    monkeypatch.setattr(os, call, refusing(getattr(os, call), number, plain_too=True))
    found = probe(probed_of(tmp_path))
    assert found.condition is Condition.BAD
    assert os.strerror(number) in found.reason
