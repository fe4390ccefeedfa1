"""Measures a directory: writes, reads in random order, and the latency of a sync."""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import TYPE_CHECKING, Final

from .latencies import latency
from .reports import DiskBenchReport

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SYNC_BYTES: Final = 4096
MAX_SYNCS: Final = 200
SPARE_BYTES: Final = 64 * 1024 * 1024
"""Free bytes that the file leaves on the disk."""

_sync = getattr(os, "fdatasync", os.fsync)


class NoSpace(Exception):
    """The disk has no room for the file."""


def measure(directory: Path, size_bytes: int, block_bytes: int, seconds: float) -> DiskBenchReport:
    """Write a file, read it and remove it. Blocks.

    Args:
        directory: An existing directory.
        size_bytes: Bytes of the file, rounded down to whole blocks.
        block_bytes: Bytes of each write and read.
        seconds: Longest time of each of the three parts.

    Raises:
        NoSpace: The disk has less free space than the file needs.
        OSError: The directory cannot be used.
    """
    usage = os.statvfs(directory)
    free = usage.f_bavail * usage.f_frsize
    if free < size_bytes + SPARE_BYTES:
        raise NoSpace(
            f"{directory} has {free} bytes free, {size_bytes + SPARE_BYTES} are needed: "
            "use a smaller --size"
        )
    path = directory / f".sluice-bench-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()  # so that it goes with the process, however that ends
        blocks, write_seconds = _write(fd, size_bytes // block_bytes, block_bytes, seconds)
        read_bytes, read_seconds = _read(fd, blocks, block_bytes, seconds)
        syncs = [*_syncs(fd, blocks * block_bytes, seconds)]
    finally:
        os.close(fd)
    return DiskBenchReport(
        str(directory),
        blocks * block_bytes,
        block_bytes,
        blocks * block_bytes / write_seconds,
        read_bytes / read_seconds,
        latency(syncs),
    )


def _write(fd: int, blocks: int, block_bytes: int, seconds: float) -> tuple[int, float]:
    """Write blocks in order and sync them; return how many, and the time."""
    # Random bytes, because a disk may compress; the next block begins elsewhere in them.
    data = memoryview(random.randbytes(2 * block_bytes))  # noqa: S311 - not a secret
    began = time.perf_counter()
    written = 0
    while written < blocks and (not written or time.perf_counter() - began < seconds):
        start = written * 4093 % block_bytes
        os.pwrite(fd, data[start : start + block_bytes], written * block_bytes)
        written += 1
    _sync(fd)
    return written, max(time.perf_counter() - began, 1e-9)


def _read(fd: int, blocks: int, block_bytes: int, seconds: float) -> tuple[int, float]:
    """Read blocks in random order; return the bytes and the time."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        advise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        advise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    order = list(range(blocks))
    random.shuffle(order)
    began = time.perf_counter()
    read = 0
    for number in order:
        read += len(os.pread(fd, block_bytes, number * block_bytes))
        if time.perf_counter() - began > seconds:
            break
    return read, max(time.perf_counter() - began, 1e-9)


def _syncs(fd: int, end: int, seconds: float) -> Iterable[float]:
    """Append small writes, each with its sync; yield the time of each."""
    data = b"\0" * SYNC_BYTES
    began = time.perf_counter()
    for number in range(MAX_SYNCS):
        before = time.perf_counter()
        os.pwrite(fd, data, end + number * SYNC_BYTES)
        _sync(fd)
        yield time.perf_counter() - before
        if time.perf_counter() - began > seconds:
            break
