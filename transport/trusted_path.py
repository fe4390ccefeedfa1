"""Refuses paths on which another user of the host could put files in place of this user's.

A path is trusted if only root and this user can change where it leads. Every component is checked,
from the root on: it belongs to root or this user, and no other user can replace what is in it. In a
directory with the sticky bit, such as /tmp, others cannot replace a component that is not theirs.
Links are followed, and checked like directories. Nobody else can change a component between its
check and its use, because the directories above it were checked first.

The groups of this process count as this user: its umask or an administrator lets them write.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

_MAX_LINKS: Final = 40
_ROOT_ID: Final = 0
_PASSABLE: Final = 0o711


class UntrustedPath(PermissionError):
    """Another user can change where a path leads.

    Args:
        path: The component that is not trusted.
        reason: Why not.
        remedy: Advice to the operator.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(errno.EACCES, reason, str(path))
        self.reason = reason
        self.remedy = remedy


def require_trusted(path: Path, make_mode: int | None = None, *, private: bool = False) -> None:
    """Check every component of a path. Blocks.

    Args:
        path: A directory or file.
        make_mode: Mode of the directory, to make it if it is missing; directories above it are
            made so that other users can pass through them. None: it must exist.
        private: Whether no other user may write to the last component, not even next to files of
            this user.

    Raises:
        UntrustedPath: Another user can change where the path leads.
        OSError: A component is missing, or cannot be examined or made.
    """
    ahead = list(reversed(path.absolute().parts))
    at, links, placed_by_us = Path(ahead.pop()), 0, True
    while True:
        found = _find(at, _PASSABLE if make_mode is not None and ahead else make_mode)
        _require_owner(at, found, placed_by_us=placed_by_us)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            ahead += reversed(Path(os.readlink(at)).parts)
            at = at.parent
            found = at.lstat()
        elif stat.S_ISDIR(found.st_mode):
            _require_unshared(at, found, private=private and not ahead)
        placed_by_us = not _others_write(found)
        if not ahead:
            return
        name = ahead.pop()
        at = at.parent if name == ".." else at / name


def _find(path: Path, make_mode: int | None) -> os.stat_result:
    try:
        return path.lstat()
    except FileNotFoundError:
        if make_mode is None:
            raise
    with contextlib.suppress(FileExistsError):
        path.mkdir(make_mode)
    return path.lstat()


def _require_owner(path: Path, found: os.stat_result, *, placed_by_us: bool) -> None:
    user = os.geteuid()
    if found.st_uid in (_ROOT_ID, user):
        return
    # A container under any user id of group 0 gets directories that are open to this group.
    by_group = found.st_gid == _ROOT_ID and found.st_mode & stat.S_IWGRP
    if placed_by_us and by_group and user != _ROOT_ID and _ROOT_ID in _own_groups():
        return
    raise UntrustedPath(
        path,
        f"{path} belongs to user {found.st_uid}, not to root or user {user}",
        f"Name another path, or make sure of its content and change the owner of {path}",
    )


def _require_unshared(path: Path, found: os.stat_result, *, private: bool) -> None:
    is_sticky = found.st_mode & stat.S_ISVTX
    if _others_write(found) and (private or not is_sticky):
        raise UntrustedPath(
            path,
            f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o})",
            f"Name a directory below {path}"
            if is_sticky
            else f"Name another path, or make sure of its content and: chmod go-w {path}",
        )


def _others_write(found: os.stat_result) -> bool:
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in {_ROOT_ID, *_own_groups()}
    return bool(by_group or found.st_mode & stat.S_IWOTH)


def _own_groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}
