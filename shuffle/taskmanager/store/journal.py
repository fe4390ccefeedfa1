"""An append-only journal of committed map outputs and released shuffles.

The file is a header line followed by records: u32 length, u32 crc32c (both little endian), and as
many bytes. A record counts once write() has returned. It then is in the kernel's page cache, which
survives a killed process; only a crash of the host could lose it, and Spark repeats the map tasks
then. So the file is never synced.

A killed daemon may leave a torn record at the end: it was never acknowledged and is cut off. Damage
before the end is reported as :class:`CorruptJournal`; the records before it are kept.

Each journal has a generation, at least the time at which a daemon first wrote it. Compaction, or a
move to another directory, writes the next one beside the old one, renames it into place and then
drops the old one, so that at every moment the highest generation found is complete.
"""

import contextlib
import logging
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from crc32c import crc32c

from .errors import CorruptJournal, StorageUnavailable

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES = 256 * 1024 * 1024
"""A longer record is damage. The record of a region with a million subpartitions has 4 MB."""

_HEADER = f"sluice journal 1 {sys.byteorder}\n".encode("ascii")
_RECORD = struct.Struct("<II")
_NAME = re.compile(r"journal-(\d{8,})")
_WRITE_BYTES = 1 << 20


class Journal:
    """One journal file, open for appending.

    Not thread-safe: the store has at most one call under way, in its journal thread.

    Args:
        path: The file, named by its generation.
        fd: Its descriptor; its position does not matter.
        size_bytes: Length of its valid part.
    """

    def __init__(self, path: Path, fd: int, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd

    @property
    def generation(self) -> int:
        """Number in the file's name."""
        return generation_of(self.path)

    @classmethod
    def create(cls, directory: Path, generation: int, rows: Iterable[bytes]) -> "Journal":
        """Write a new journal and put it into place.

        Args:
            directory: A locked data directory.
            generation: Higher than that of any other journal.
            rows: Its first records.

        Raises:
            OSError: The directory does not take the file; no part of it is left behind.
        """
        path = directory / f"journal-{generation:08d}"
        temporary = directory / "journal.new"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            size = 0
            chunk = bytearray(_HEADER)
            for row in rows:
                chunk += _RECORD.pack(len(row), crc32c(row))
                chunk += row
                if len(chunk) >= _WRITE_BYTES:
                    size += _write_all(fd, chunk, size)
                    chunk = bytearray()
            size += _write_all(fd, chunk, size)
            temporary.rename(path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return cls(path, fd, size)

    def append(self, rows: list[bytes]) -> None:
        """Append records with one write.

        Raises:
            OSError: The disk did not take them. The file is cut back if the disk allows it;
                :attr:`size_bytes` is unchanged, so the next append overwrites them.
        """
        chunk = b"".join(
            part for row in rows for part in (_RECORD.pack(len(row), crc32c(row)), row)
        )
        try:
            _write_all(self._fd, chunk, self.size_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(chunk)

    def remove(self) -> None:
        """Close and delete the file: its successor is in place."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def record_bytes(row: bytes) -> int:
    """Return the length of a row's record in the file."""
    return _RECORD.size + len(row)


def find_journals(directories: Iterable[Path]) -> list[Path]:
    """Find all journals, the one that counts first, the older ones after it.

    Raises:
        StorageUnavailable: A directory cannot be listed.
    """
    found: list[tuple[int, Path]] = []
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError as error:
            raise StorageUnavailable(directory, str(error)) from error
        paths = [directory / name for name in names]
        found += [(generation, path) for path in paths if (generation := generation_of(path))]
    return [path for _, path in sorted(found, reverse=True)]


def generation_of(path: Path) -> int:
    """Return the generation in a journal's name, from 1 on; 0 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def open_journal(path: Path) -> tuple[Journal, list[bytes], CorruptJournal | None]:
    """Read a journal and open it for appending, behind its last whole record.

    Returns:
        The journal, its rows, and the damage before its end, if any. Do not append to a damaged
        journal: put a new generation in its place.

    Raises:
        OSError: It cannot be read.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        rows: list[bytes] = []
        end = 0
        damage: CorruptJournal | None = None
        with open(fd, "rb", closefd=False) as file:
            if file.read(len(_HEADER)) != _HEADER:
                damage = CorruptJournal(path, 0, size, "it has no journal header")
            else:
                end = len(_HEADER)
                try:
                    for row in _records(path, file.read(), size):
                        rows.append(row)
                        end += record_bytes(row)
                except CorruptJournal as error:
                    damage = error
        if damage is None and end < size:
            logger.info("%s: cutting off %d bytes of an unfinished record", path, size - end)
            os.ftruncate(fd, end)
    except BaseException:
        os.close(fd)
        raise
    return Journal(path, fd, end), rows, damage


def _records(path: Path, data: bytes, size: int) -> Iterator[bytes]:
    """Yield the whole records; stop at a torn one, raise at a damaged one."""
    position = 0
    while position + _RECORD.size <= len(data):
        length, checksum = _RECORD.unpack_from(data, position)
        start = position + _RECORD.size
        at = len(_HEADER) + position
        if length == 0 or length > MAX_RECORD_BYTES:
            raise CorruptJournal(path, at, size, f"a record of {length} bytes")
        if start + length > len(data):
            # Either a write was cut short, or the length is damaged. A torn write is the last
            # thing in the file, so no whole record can follow it.
            if _record_follows(data, start):
                reason = f"a record of {length} bytes with others in it"
                raise CorruptJournal(path, at, size, reason)
            return
        row = data[start : start + length]
        if crc32c(row) != checksum:
            raise CorruptJournal(path, at, size, "checksum mismatch")
        yield row
        position = start + length


def _record_follows(data: bytes, start: int) -> bool:
    """Whether a whole record with a right checksum begins anywhere behind ``start``.

    Rows are msgpack arrays of 2 to 7 items, which narrows the search to a few candidates.
    """
    for first in (b"\x92\x02", b"\x93\x01", b"\x94\x04", b"\x96\x00", b"\x97\x03"):
        at = data.find(first, start + _RECORD.size)
        while at >= 0:
            length, checksum = _RECORD.unpack_from(data, at - _RECORD.size)
            if 0 < length <= len(data) - at and crc32c(data[at : at + length]) == checksum:
                return True
            at = data.find(first, at + 1)
    return False


def _write_all(fd: int, data: bytes | bytearray, offset: int) -> int:
    """Write everything at an offset; return the number of bytes."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
    return done
