"""System calls that make writes survive a power cut."""

import contextlib
import errno
import os
from pathlib import Path

from .file_calls import UNSUPPORTED


def sync_file(fd: int, path: Path) -> None:
    """Write the bytes and the length of a file to its disk. Blocks.

    Raises:
        OSError: It failed (``EIO``, even if the disk is full). Never sync this file again as if it
            had succeeded.
    """
    try:
        getattr(os, "fdatasync", os.fsync)(fd)  # without it, times are written too
    except OSError as error:
        # Not ENOSPC, after which the caller would repeat the write to the same file.
        reason = f"fdatasync failed: {error.strerror or error}"
        raise OSError(errno.EIO, reason, str(path)) from error


def sync_names(directory: Path, *, with_parents: bool = False) -> None:
    """Write the names in a directory to its disk. Blocks.

    Args:
        directory: The directory.
        with_parents: Whether to do the same for the directories above it, of the same disk, as far
            as this user can open them.

    Raises:
        OSError: It failed.
    """
    device = directory.stat().st_dev
    _sync_directory(directory)
    for parent in directory.parents if with_parents else ():
        if parent.stat().st_dev != device:
            break
        with contextlib.suppress(PermissionError):
            _sync_directory(parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED:  # some network file systems
            raise
    finally:
        os.close(fd)
