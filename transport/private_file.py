"""Writes and reads files that only their owner can change: secrets, tokens and keys.

Other users cannot read a written file, not even while it is being written. A file that another user
could have written is not read.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from .trusted_path import UntrustedPath, require_trusted

_FILE_MODE: Final = 0o600
_OTHERS_WRITE: Final = 0o022
_OTHERS_READ: Final = 0o007


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


def read(path: Path, max_bytes: int, *, secret: bool = True) -> bytes:
    """Read the start of a file that no other user can change or replace.

    A pipe has no mode that counts: ``<(command)`` of a shell may name it.

    Args:
        path: The file.
        max_bytes: Bytes to read at most.
        secret: Whether other users must not read it either. A group may: a pod mounts secrets so.

    Raises:
        UntrustedPath: Another user can change it, replace it, or read the secret.
        OSError: It cannot be read.
    """
    require_trusted(path.parent)
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            require_trusted(path)
            if found.st_mode & (_OTHERS_WRITE | (_OTHERS_READ if secret else 0)):
                raise UntrustedPath(
                    path,
                    f"{path} is open to other users: mode {stat.S_IMODE(found.st_mode):04o}, at "
                    f"most {'0640' if secret else '0644'}",
                    f"chmod go-w,o-rwx {path}" if secret else f"chmod go-w {path}",
                )
        return file.read(max_bytes)
