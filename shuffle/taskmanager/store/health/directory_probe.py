"""Probes a storage directory: is it still the same one, and can bytes be written and read?

The bytes go to a small separate file, and bypass the page cache if the file system allows it, so
that the result is about the disk.
"""

import errno
import mmap
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import StorageUnavailable
from ..files.file_calls import UNSUPPORTED, open_file, read_into, write_from
from ..tiers.tier import FULL
from .directories import require_private
from .directory_health import Condition, Finding

PROBE_NAME: Final = "health"

PROBE_BYTES: Final = 4096
_OWN_TROUBLE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
"""Errors of this process or host, not of the disk."""

_ABSENT: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN}
)


class ProbedDirectory(NamedTuple):
    """A directory, and its expected files.

    Attributes:
        directory: Its path.
        identity: Device and inode of the directory; None: any.
        files: Paths of its files, with device and inode of each.
        lock: Path of its lock file, with device and inode; None: not checked.
        make: Whether to create it if it is missing.
    """

    directory: Path
    identity: tuple[int, int] | None = None
    files: tuple[tuple[Path, tuple[int, int]], ...] = ()
    lock: tuple[Path, tuple[int, int]] | None = None
    make: bool = False


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode."""
    return status.st_dev, status.st_ino


def probe(probed: ProbedDirectory) -> Finding:
    """Check a directory's files, write to it and read back. Blocks."""
    try:
        if probed.make:
            probed.directory.mkdir(mode=0o700, exist_ok=True)
        missing = _missing(probed)
        if missing:
            return Finding(Condition.GONE, missing)
        unlocked = "" if probed.lock is None else _missing_file(*probed.lock)
        if unlocked:
            return Finding(Condition.UNLOCKED, unlocked)
        require_private(probed.directory)
        same = _write_and_read(probed.directory / PROBE_NAME)
    except StorageUnavailable as error:
        return Finding(Condition.BAD, error.reason)
    except OSError as error:
        if error.errno in _ABSENT:
            return Finding(Condition.GONE, f"it is gone: {error.strerror}")
        if error.errno in _OWN_TROUBLE:
            return Finding(Condition.UNKNOWN)
        if error.errno in FULL:
            return Finding(Condition.GOOD)  # the tier itself knows when it has room again
        return Finding(Condition.BAD, f"a probe failed: {error.strerror or error}")
    if not same:
        return Finding(Condition.BAD, "a probe read other bytes than it had written")
    return Finding(Condition.GOOD)


def free_bytes(directory: Path) -> int | None:
    """Return the free bytes of a directory's disk; None if it cannot tell. Blocks."""
    try:
        usage = os.statvfs(directory)
    except OSError:
        return None
    return usage.f_bavail * usage.f_frsize


def _missing(probed: ProbedDirectory) -> str:
    """Return what is missing; empty if everything is there."""
    if probed.identity not in (None, identity_of(probed.directory.stat())):
        return "another directory is at its path"
    return next(filter(None, (_missing_file(*each) for each in probed.files)), "")


def _missing_file(path: Path, identity: tuple[int, int]) -> str:
    """Return why a file is missing; empty if it is still there."""
    try:
        found = identity_of(path.stat())
    except FileNotFoundError:
        return f"{path.name} was removed"
    return "" if found == identity else f"another file is at the path of {path.name}"


def _write_and_read(path: Path) -> bool:
    """Write random bytes and read them back; return whether they are the same.

    Some file systems refuse ``O_DIRECT`` when a file is opened, others only when it is written or
    read. Then the page cache is used.
    """
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        try:
            return _write_and_read_with(path, direct)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    return _write_and_read_with(path, 0)


def _write_and_read_with(path: Path, direct: int) -> bool:
    fd = open_file(path, direct)
    try:
        with mmap.mmap(-1, PROBE_BYTES) as memory:  # aligned, as O_DIRECT requires
            written = secrets.token_bytes(16) * (PROBE_BYTES // 16)
            memory[:] = written
            write_from(fd, [memory], 0)
            memory[:] = bytes(PROBE_BYTES)
            read_into(fd, [memory], 0)
            return memory[:] == written
    finally:
        os.close(fd)
