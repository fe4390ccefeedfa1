"""Storage directories: private, locked against a second daemon, with the TaskManager's id."""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from .errors import StorageInUse, StorageUnavailable

LOCK_NAME = "lock"
ID_NAME = "taskmanager-id"

_ID_BYTES = 8
_ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")


class DirectoryLock:
    """An exclusive lock on a directory, held until :meth:`release` or the end of the process.

    The kernel drops the lock with the process, so a killed daemon leaves none behind.

    Args:
        directory: The directory; a missing one is created, for this user alone.

    Raises:
        StorageInUse: Another process holds the lock.
        StorageUnavailable: The directory cannot be made or written, or belongs to another user.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_other_owner(directory)
            self._fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageUnavailable(directory, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageInUse(directory, holder) from error
            raise StorageUnavailable(directory, error.strerror or str(error)) from error

    def release(self) -> None:
        """Let others have the directory."""
        os.close(self._fd)


def taskmanager_id(directories: Iterable[Path]) -> str:
    """Read the stable id of this TaskManager, or make a random one and keep it.

    Spark's map statuses name a TaskManager by this id, so it must survive restarts. Every directory
    keeps a copy, that of the memory tier too, so that it survives the loss of any disk.

    Args:
        directories: The locked directories, in the order in which they are asked.

    Raises:
        StorageUnavailable: No directory takes the file.
    """
    known = list(directories)
    identity = next((found for d in known if (found := _read_id(d))), None)
    if identity is None:
        identity = secrets.token_hex(_ID_BYTES)
    kept = 0
    failure = ""
    for directory in known:
        if _read_id(directory) == identity:
            kept += 1
            continue
        try:
            keep_id(identity, directory)
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
        StorageUnavailable: The directory does not take the file.
    """
    try:
        temporary = directory / f"{ID_NAME}.new"
        temporary.write_text(identity + "\n", encoding="ascii")
        temporary.replace(directory / ID_NAME)
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def _read_id(directory: Path) -> str | None:
    try:
        text = (directory / ID_NAME).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _ID.fullmatch(text) else None


def _refuse_other_owner(directory: Path) -> None:
    """Refuse a directory that another user may have made in a shared place like /tmp."""
    owner = directory.stat().st_uid
    parent = directory.resolve().parent.stat()
    if owner not in (os.geteuid(), 0) and parent.st_mode & stat.S_ISVTX:
        raise StorageUnavailable(
            directory,
            f"it belongs to user {owner}, not to user {os.geteuid()}",
            "Remove it, or configure another directory",
        )
