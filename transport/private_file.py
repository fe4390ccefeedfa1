"""Writes files that only their owner can read: secrets, tokens and keys.

Other users cannot read such a file, not even while it is being written.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_FILE_MODE: Final = 0o600


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet; remove it if the disk is full.

    Raises:
        FileExistsError: The file exists.
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        with open(descriptor, "w", encoding="ascii") as output:
            output.write(text)
            output.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink()
        raise


def replace(path: Path, text: str) -> None:
    """Write a file atomically, replacing an existing file of any mode.

    Anything else of that name stays: all processes need a device such as /dev/null, and a link may
    belong to another user.

    Raises:
        OSError: It cannot be written; an earlier file is unchanged.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FileExistsError(None, "It is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_new(temporary, text)
    try:
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
