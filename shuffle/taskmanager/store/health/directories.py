"""Storage directories: private, locked against a second daemon, with the TaskManager's id."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from .....transport import private_file
from .....transport.trusted_path import UntrustedPath, require_trusted
from ..errors import DirectoryHangs, StorageInUse, StorageUnavailable
from ..files.blocking_calls import MakesCalls, at_once
from ..files.file_calls import open_file
from ..tiers.tier import FULL

LOCK_NAME = "lock"
ID_NAME = "taskmanager-id"

_ID_BYTES = 8
_ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")


class DirectoryLock:
    """An exclusive lock on a directory, until :meth:`release` or the process ends.

    There are two locks. The lock of the directory itself holds even if the lock file is removed.
    The lock of the file works on file systems that cannot lock directories, such as NFS, and with
    older releases. The kernel drops both when the process ends, so a killed daemon leaves no lock.

    Args:
        directory: The directory; it is created if missing, accessible only to this user.

    Raises:
        StorageInUse: Another process holds the lock.
        StorageUnavailable: The directory cannot be created or written, or other users can write to
            it or replace it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / LOCK_NAME
        """The lock file, which contains the id of the process."""
        with contextlib.ExitStack() as opened:
            try:
                require_private(directory, 0o700)
                # Lock the directory before creating the file: a failed start must not restore a
                # removed file.
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                _lock_directory(fd)
                self._fd = open_file(self.path)
                opened.callback(os.close, self._fd)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_holder(self._fd)
                status = os.fstat(self._fd)
                self._identity = status.st_dev, status.st_ino
            except OSError as error:
                if error.errno == errno.EWOULDBLOCK:
                    raise StorageInUse(directory, _holder(self.path)) from error
                raise StorageUnavailable(directory, error.strerror or str(error)) from error
            self._opened = opened.pop_all()

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the lock file."""
        return self._identity

    def release(self) -> None:
        """Unlock the directory. Idempotent."""
        self._opened.close()


def _lock_directory(fd: int) -> None:
    """Lock a directory itself, if its file system supports that.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _write_holder(fd: int) -> None:
    """Write the process id into a lock file, for messages only."""
    text = str(os.getpid()).encode()
    try:
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    except OSError as error:
        if error.errno not in FULL:
            raise


def _holder(path: Path) -> str:
    """Return the process id in a lock file; empty if there is none."""
    try:
        return path.read_bytes()[:32].decode("ascii", "replace").strip()
    except OSError:
        return ""


def taskmanager_id(directories: Iterable[Path], make: MakesCalls = at_once) -> str:
    """Read the stable id of this TaskManager, or make a random one and keep it.

    Spark's map statuses name a TaskManager by this id, so it must survive restarts. Every directory
    has a copy, including the memory tier's, so that it survives the loss of any disk.

    Args:
        directories: The locked directories, in the order in which they are read.
        make: Makes the calls. Directories that do not answer are skipped.

    Raises:
        StorageUnavailable: The file cannot be written to any directory.
    """
    known = list(directories)
    found: dict[Path, str | None] = {}
    failure = ""
    for directory in known:
        try:
            found[directory] = make(directory, partial(_read_id, directory))
        except DirectoryHangs as error:
            failure = error.reason
    identity = next(filter(None, found.values()), None) or secrets.token_hex(_ID_BYTES)
    kept = 0
    for directory, before in found.items():
        try:
            if before != identity:
                make(directory, partial(keep_id, identity, directory))
            kept += 1
        except StorageUnavailable as error:
            failure = error.reason
    if not kept:
        raise StorageUnavailable(
            ", ".join(map(str, known)), f"the TaskManager's id cannot be kept: {failure}"
        )
    return identity


def keep_id(identity: str, directory: Path) -> None:
    """Keep the id of this TaskManager in a directory.

    Raises:
        StorageUnavailable: The file cannot be written.
    """
    try:
        private_file.replace(directory / ID_NAME, identity + "\n")
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def has_same_id(directory: Path, others: Iterable[Path], make: MakesCalls = at_once) -> bool:
    """Return whether a directory has an id, and one of the others has the same id."""

    def read(place: Path) -> str | None:
        try:
            return make(place, partial(_read_id, place))
        except DirectoryHangs:
            return None

    identity = read(directory)
    return identity is not None and any(read(other) == identity for other in others)


def _read_id(directory: Path) -> str | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(directory / ID_NAME, flags), "rb") as file:
            text = file.read(4 * _ID_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _ID.fullmatch(text) else None


def require_private(directory: Path, make_mode: int | None = None) -> None:
    """Refuse a directory that other users can write to, or that they can replace. Blocks.

    Args:
        directory: The directory.
        make_mode: Mode of the directory, to make it and those above it if they are missing; None:
            it must exist.

    Raises:
        StorageUnavailable: Other users can write to it or replace it.
        OSError: It does not exist, or cannot be made.
    """
    try:
        require_trusted(directory, make_mode, private=True)
    except UntrustedPath as error:
        raise StorageUnavailable(directory, error.reason, error.remedy) from error
