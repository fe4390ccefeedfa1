"""Disks of simulated hosts: real files in a private directory, whose system calls may fail.

A system call on a disk takes virtual time. It may hang, fail or find no room; a power cut undoes a
part of the writes that were not synced. After a failed sync the bytes count as synced for the
process and as not written for the disk, as on Linux. Names of files survive a power cut. The memory
tier is a directory that a power cut empties.
"""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.loop import PROCESS, Process
from tests.simulation.network import os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.strands import Strand

BLOCK_BYTES: Final = 4096
DISK_BLOCKS: Final = 16 * 1024
"""Size of a disk: 64 MiB."""

FASTEST_SECONDS: Final = 20e-6
SLOWEST_SECONDS: Final = 3e-3
"""Bounds of the usual time of a system call."""

SLOW_SECONDS: Final = 1.5
"""Longest time of a system call of a slow disk."""

WRITE_BACK_SECONDS: Final = 35.0
"""Time after which the kernel has written everything back, though nobody asked it to."""

WAIT_RATE: Final = 0.25
"""Part of the system calls that takes time; the others end at once."""

MISS_RATE: Final = 0.3
"""Part of the reads that the page cache cannot answer."""


class _Write(NamedTuple):
    """Bytes and length of a file before a write, and the time of the write.

    The file is known by its inode: it may have another name by now.
    """

    number: int
    inode: int
    offset: int
    before: bytes
    after: bytes
    size: int
    at: float


class Disk:
    """One directory that fails as a whole.

    Args:
        path: Its directory.
        disks: All disks of the simulation.
        is_memory: Whether it is on tmpfs: never slow, never failing, empty after a power cut.
    """

    def __init__(self, path: Path, disks: Disks, *, is_memory: bool) -> None:
        self.path = path
        self.is_memory = is_memory
        self.hangs = False
        self.changed_at = 0.0
        """Virtual time at which it began, or ceased, to hang."""
        self.is_slow = False
        self.fails = False
        self.is_full = False
        self._disks = disks
        self._waiting: list[Strand] = []
        self._written: deque[_Write] = deque()
        self._writes = 0
        self._dropped: set[int] = set()
        """Numbers of writes that a failed sync has dropped: no later one writes them."""

    def hang(self) -> None:
        """Let system calls hang until :meth:`go_on`."""
        if not self.hangs:
            self.hangs, self.changed_at = True, self._disks.loop.time()

    def go_on(self) -> None:
        """End a hang."""
        if self.hangs:
            self.hangs, self.changed_at = False, self._disks.loop.time()
        self._disks.loop.strands.wake(self._waiting)

    def heal(self) -> None:
        """End all faults."""
        self.is_slow = self.fails = self.is_full = False
        self.go_on()

    def wait(self) -> None:
        """Let the time of a system call pass, and fail if the disk does.

        Raises:
            OSError: The disk fails.
        """
        strands = self._disks.loop.strands
        if not self.is_memory and strands.current is not None:
            if self.is_slow or self._disks.random.random() < WAIT_RATE:
                slowest = SLOW_SECONDS if self.is_slow else SLOWEST_SECONDS
                strands.sleep(self._disks.random.uniform(FASTEST_SECONDS, slowest))
            while self.hangs:
                strands.wait(self._waiting)
        elif self.hangs and PROCESS.get() is not None:  # otherwise the simulation wipes it
            self._disks.blocked.append(f"{self.path}, called by {_caller()}")
        if self.fails and PROCESS.get() is not None:
            raise os_error(errno.EIO)

    def before_write(self) -> None:
        """Wait, and refuse to grow a file of a full disk.

        Raises:
            OSError: The disk fails or is full.
        """
        self.wait()
        if self.is_full:
            raise os_error(errno.ENOSPC)

    def note_write(self, fd: int, offset: int, data: bytes) -> None:
        """Remember what a write replaces."""
        status = os.fstat(fd)
        if not self.is_memory and status.st_nlink:
            now = self._disks.loop.time()
            before = self._disks.real_pread(fd, len(data), offset)
            self._writes += 1
            number, inode, size = self._writes, status.st_ino, status.st_size
            self._written.append(_Write(number, inode, offset, before, data, size, now))
            while self._written[0].at < now - WRITE_BACK_SECONDS:
                self._written.popleft()

    def sync(self, fd: int) -> None:
        """Write all earlier writes to a file to the disk.

        Raises:
            OSError: The disk fails, and drops them.
        """
        inode, last = os.fstat(fd).st_ino, self._writes
        try:
            self.wait()
        except OSError:
            mine = (each for each in self._written if each.inode == inode)
            self._dropped.update(each.number for each in mine if each.number <= last)
            raise
        self._written = deque(
            each
            for each in self._written
            if each.inode != inode or each.number > last or each.number in self._dropped
        )

    def forget(self, path: Any) -> None:
        """Forget the writes to a file that is removed: another one may get its inode."""
        try:
            inode = os.lstat(path).st_ino
        except OSError:
            return
        self._written = deque(each for each in self._written if each.inode != inode)

    def lose_power(self) -> None:
        """Undo a part of the writes, and tear the last one; the memory tier is empty."""
        if self.is_memory:
            self.wipe()
            return
        generator = self._disks.random
        paths = {path.stat().st_ino: path for path in self.path.rglob("*") if path.is_file()}
        kept_from = generator.randrange(len(self._written) + 1)
        for number in range(len(self._written) - 1, kept_from - 1, -1):
            write = self._written[number]
            path = paths.get(write.inode)
            if path is not None and generator.random() < 0.7:
                torn = generator.randrange(len(write.after) + 1) if number == kept_from else 0
                with open(path, "r+b") as file:
                    if torn:
                        file.seek(write.offset + torn)
                        file.write(write.before[torn:])
                    else:
                        file.seek(write.offset)
                        file.write(write.before)
                        if write.size < write.offset + len(write.after):
                            file.truncate(max(write.size, write.offset + len(write.before)))
        self._written.clear()
        self._dropped.clear()

    def wipe(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path, exist_ok=True)
        self._written.clear()

    def flip_bit(self) -> str:
        """Change one bit of the stored bytes; return where, or nothing if no file has any."""
        generator = self._disks.random
        arenas = sorted(str(each) for each in self.path.glob("arena-*") if each.stat().st_blocks)
        if not arenas:
            return ""
        path = generator.choice(arenas)
        with open(path, "r+b") as file:
            size = min(os.fstat(file.fileno()).st_blocks * 512, os.fstat(file.fileno()).st_size)
            if not size:
                return ""
            offset = generator.randrange(size)
            file.seek(offset)
            old = file.read(1)
            file.seek(offset)
            file.write(bytes((old[0] ^ 1 << generator.randrange(8),)))
        return f"byte {offset} of {os.path.basename(path)}"


class Disks:
    """All disks, and the system calls that reach them.

    Args:
        loop: Runs the simulation.
        root: Directory of the simulation; other files are not simulated.
        seed: Decides delays and what a power cut costs.
    """

    def __init__(self, loop: SimulatedLoop, root: Path, seed: int) -> None:
        self.loop = loop
        self.root = str(root)
        self.random = random.Random(f"disks {seed}")
        self.blocked: list[str] = []
        """Disks that hung when the event loop called them."""
        self._tops: list[tuple[str, Disk]] = []
        """The disks, with their directories as text."""
        self._files: dict[int, tuple[Disk, str]] = {}
        self.real_pread = os.pread
        self._real_open = builtins.open
        self._real: dict[str, Callable[..., Any]] = {}

    def add(self, path: Path, *, is_memory: bool = False) -> Disk:
        """Make a disk."""
        path.mkdir(parents=True)
        disk = Disk(path, self, is_memory=is_memory)
        self._tops.append((str(path), disk))
        return disk

    def install(self) -> None:
        """Replace the system calls of this process."""
        for name, call in (
            ("open", self._open),
            ("close", self._close),
            ("pwrite", self._pwrite),
            ("pwritev", self._pwritev),
            ("pread", self._pread),
            ("preadv", self._preadv),
            ("ftruncate", self._ftruncate),
            ("posix_fallocate", self._posix_fallocate),
            ("fdatasync", self._sync),
            ("fsync", self._sync),
            ("fstatvfs", self._fstatvfs),
            ("statvfs", self._statvfs),
        ):
            self._real[name] = getattr(os, name)
            setattr(os, name, call)
        builtins.open = self._open_file
        for name in ("rename", "replace", "unlink", "mkdir", "listdir"):
            self._wrap_path(name)

    def close_all(self, process: Process) -> None:
        """Close the files of a process that is dead."""
        for fd in list(process.descriptors):
            process.descriptors.pop(fd)
            self._files.pop(fd, None)
            self._real["close"](fd)

    # ---- system calls ----------------------------------------------------------------------

    def _disk_at(self, path: object) -> Disk | None:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if isinstance(text, str) and text.startswith(self.root):
            for top, disk in self._tops:
                if text == top or text.startswith(top + "/"):
                    return disk
        return None

    def _open(self, path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        disk = self._disk_at(path)
        if disk is not None:
            disk.wait()
        fd: int = self._real["open"](path, flags, mode, **named)
        process = PROCESS.get()
        if process is not None:
            process.descriptors[fd] = None
        if disk is not None:
            self._files[fd] = disk, os.fspath(path)
        return fd

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        """Open a file object; one that owns its descriptor closes it without a system call."""
        process = PROCESS.get()
        if isinstance(file, int) and named.get("closefd", True) and process is not None:
            process.descriptors.pop(file, None)
            self._files.pop(file, None)
        return self._real_open(file, mode, *args, **named)

    def _close(self, fd: int) -> None:
        self._files.pop(fd, None)
        process = PROCESS.get()
        if process is not None:
            process.descriptors.pop(fd, None)
        self._real["close"](fd)

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._pwritev(fd, (data,), offset)

    def _pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        del flags
        known = self._files.get(fd)
        if known is not None:
            known[0].before_write()
        data = b"".join(bytes(each) for each in buffers)  # as it is when the disk takes it
        if known is not None:
            known[0].note_write(fd, offset, data)
        written: int = self._real["pwrite"](fd, data, offset)
        return written

    def _pread(self, fd: int, length: int, offset: int) -> bytes:
        known = self._files.get(fd)
        if known is not None:
            known[0].wait()
        data: bytes = self._real["pread"](fd, length, offset)
        return data

    def _preadv(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        known = self._files.get(fd)
        if known is not None and not known[0].is_memory:
            disk = known[0]
            if flags & os.RWF_NOWAIT:
                if disk.hangs or self.random.random() < MISS_RATE:
                    raise BlockingIOError(errno.EAGAIN, "not in the page cache")
            else:
                disk.wait()
        count: int = self._real["preadv"](fd, buffers, offset)
        return count

    def _ftruncate(self, fd: int, length: int) -> None:
        known = self._files.get(fd)
        if known is not None:
            known[0].wait()
        self._real["ftruncate"](fd, length)

    def _posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        known = self._files.get(fd)
        if known is not None:
            known[0].before_write()
        self._real["posix_fallocate"](fd, offset, length)

    def _sync(self, fd: int) -> None:
        known = self._files.get(fd)
        if known is not None:
            known[0].sync(fd)

    def _fstatvfs(self, fd: int) -> os.statvfs_result:
        known = self._files.get(fd)
        return self._room(known[0] if known is not None else None)

    def _statvfs(self, path: Any) -> os.statvfs_result:
        return self._room(self._disk_at(path))

    def _room(self, disk: Disk | None) -> os.statvfs_result:
        free = 0 if disk is not None and disk.is_full else DISK_BLOCKS // 2
        size = BLOCK_BYTES
        return os.statvfs_result((size, size, DISK_BLOCKS, free, free, 9999, 9999, 9999, 0, 255))

    def _wrap_path(self, name: str) -> None:
        real = getattr(os, name)

        def call(path: Any = ".", *args: Any, **named: Any) -> Any:
            disk = self._disk_at(path)
            if disk is not None:
                disk.wait()
                if name == "unlink":
                    disk.forget(path)
                elif name in ("rename", "replace"):
                    disk.forget(args[0])
            return real(path, *args, **named)

        setattr(os, name, call)


def _caller() -> str:
    """Return the product's function that makes the current system call."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("sluice."):
            return f"{module}.{frame.f_code.co_name}"
    return "the simulation"
