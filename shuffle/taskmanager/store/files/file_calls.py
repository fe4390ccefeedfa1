"""System calls on files that a build of Python may lack, each with a fallback.

A Python built for an old C library lacks newer calls of its host: a build for glibc before 2.26
lacks ``RWF_NOWAIT``. So each name is looked up when it is needed.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

Memory: TypeAlias = memoryview | mmap.mmap

_libc = ctypes.CDLL(None, use_errno=True)

ADVICE_BYTES: Final = 128 * 1024
"""Maximum bytes of one piece of advice about a disk that does not tell: Linux's default."""

UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a call or flag that the file system, the kernel or this Python does not support."""


def open_file(path: Path, more_flags: int = 0) -> int:
    """Open a file of this user for reading and writing; make it if it is missing.

    Args:
        path: The file; a link is refused.
        more_flags: Further flags of ``os.open``.

    Raises:
        OSError: It cannot be opened or made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags | more_flags, 0o600)


def read_into(fd: int, buffers: Sequence[Memory], offset: int) -> int:
    """Fill buffers from a file, as ``preadv`` does.

    Args:
        fd: The file.
        buffers: Filled one behind the other.
        offset: Position in the file, in bytes.

    Returns:
        Bytes read; fewer than wanted at the end of the file.

    Raises:
        OSError: The read failed.
    """
    preadv = getattr(os, "preadv", None)
    if preadv is not None:
        received: int = preadv(fd, buffers, offset)
        return received
    done = 0
    for buffer in buffers:
        data = os.pread(fd, len(buffer), offset + done)
        buffer[: len(data)] = data
        done += len(data)
        if len(data) < len(buffer):
            break
    return done


def read_without_waiting(fd: int, buffers: Sequence[Memory], offset: int) -> int:
    """Fill buffers from the page cache.

    Args:
        fd: The file.
        buffers: Filled one behind the other.
        offset: Position in the file, in bytes.

    Returns:
        Bytes read; fewer than wanted if the page cache does not have the rest.

    Raises:
        BlockingIOError: The page cache has none of them.
        OSError: The read failed; an error of ``UNSUPPORTED`` is permanent.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    preadv = getattr(os, "preadv", None)
    if flag is None or preadv is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        received: int = preadv(fd, buffers, offset, flag)
    except NotImplementedError as error:  # Python has the flag, but not preadv2
        raise OSError(errno.ENOSYS, str(error)) from error
    return received


def advise_random(fd: int) -> None:
    """Advise the kernel to read nothing of a file but what it is asked for."""
    _advise(fd, 0, 0, "POSIX_FADV_RANDOM")


def largest_advice_bytes(fd: int) -> int:
    """Return how much Linux reads for one piece of advice: the ``read_ahead_kb`` of the disk."""
    major, minor = getattr(os, "major", None), getattr(os, "minor", None)
    if major is None or minor is None:
        return ADVICE_BYTES
    device = os.fstat(fd).st_dev
    entry = Path(f"/sys/dev/block/{major(device)}:{minor(device)}")
    for disk in (entry, entry / ".."):  # of a partition
        with contextlib.suppress(OSError, ValueError):  # a file system without a disk
            return max(ADVICE_BYTES, int((disk / "bdi/read_ahead_kb").read_bytes()) * 1024)
    return ADVICE_BYTES


def advise_needed(fd: int, offset: int, length: int, most_bytes: int) -> None:
    """Advise the kernel to read a range of a file into the page cache, without waiting for it.

    Args:
        fd: The file.
        offset: Start of the range.
        length: Its bytes.
        most_bytes: Maximum bytes of one piece of advice.
    """
    for start in range(offset, offset + length, most_bytes):
        size = min(most_bytes, offset + length - start)
        _advise(fd, start, size, "POSIX_FADV_WILLNEED")


def advise_unneeded(fd: int, offset: int, length: int) -> None:
    """Advise the kernel to drop a range of a file from the page cache, unless it is unwritten."""
    _advise(fd, offset, length, "POSIX_FADV_DONTNEED")


def _advise(fd: int, offset: int, length: int, name: str) -> None:
    advise, advice = getattr(os, "posix_fadvise", None), getattr(os, name, None)
    if advise is not None and advice is not None:
        with contextlib.suppress(OSError):  # a file system without a page cache
            advise(fd, offset, length, advice)


def write_from(fd: int, buffers: Sequence[Memory], offset: int) -> int:
    """Write buffers to a file, as ``pwritev`` does.

    Args:
        fd: The file.
        buffers: Written one behind the other.
        offset: Position in the file, in bytes.

    Returns:
        Bytes written; the caller writes the rest.

    Raises:
        OSError: The write failed.
    """
    pwritev = getattr(os, "pwritev", None)
    if pwritev is not None:
        written: int = pwritev(fd, buffers, offset)
        return written
    return os.pwrite(fd, buffers[0], offset) if buffers else 0


def allot(fd: int, offset: int, length: int) -> None:
    """Allocate the blocks or pages of a range of a file, without changing bytes.

    Raises:
        OSError: The file system has no room, or does not support this.
    """
    posix_fallocate = getattr(os, "posix_fallocate", None)
    if posix_fallocate is not None:
        posix_fallocate(fd, offset, length)
    else:
        fallocate(fd, 0, offset, length)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call Linux's ``fallocate``, which Python does not provide.

    Args:
        fd: The file.
        mode: Its flags.
        offset: Start of the range, in bytes.
        length: Length of the range.

    Raises:
        OSError: It failed, or the C library lacks it.
    """
    function = getattr(_libc, "fallocate", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
