"""A directory after a power cut: any part of the writes since the last sync is lost.

A recorder replaces the system calls of this process, and keeps what each file had at its last sync.
Of everything later, each page may or may not have reached the disk, and the end of a file may not.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

PAGE_BYTES: Final = 4096


class WrittenFile(NamedTuple):
    """A file at a moment.

    Attributes:
        synced: Its bytes at its last sync.
        current: Its bytes as processes see them.
    """

    synced: bytes
    current: bytes

    def prefix(self, size_bytes: int) -> bytes:
        """Return what is left if the file grew only up to a length."""
        return self.current[: max(size_bytes, len(self.synced))]

    def without(self, lost: set[int]) -> bytes:
        """Return what is left if some pages kept the bytes of the last sync."""
        result = bytearray(self.current)
        for page in lost:
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(result))
            before = self.synced[start:end]
            result[start:end] = before + bytes(end - start - len(before))
        return bytes(result)

    @property
    def unsynced_pages(self) -> list[int]:
        """Numbers of the pages that were changed after the last sync."""
        pages = range(-(-len(self.current) // PAGE_BYTES))
        parts = [slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES) for page in pages]
        return [page for page in pages if self.current[parts[page]] != self.synced[parts[page]]]


Files = dict[Path, WrittenFile]
"""The files of a moment, by path below the directory."""


class LostWrites:
    """Records what is synced below a directory.

    Args:
        root: The directory.
        keep: Where to keep what was synced, for another process; None: in memory.
    """

    def __init__(self, root: Path, keep: Path | None = None) -> None:
        self.root = root
        self._keep = keep
        self._synced: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._real: dict[str, Callable[..., Any]] = {}
        self.before_sync: Callable[[], None] = lambda: None
        """Called before each sync of a file."""

    def __enter__(self) -> LostWrites:
        for name, call in (
            ("fdatasync", self._sync),
            ("fsync", self._sync),
            ("unlink", self._unlink),
            ("replace", self._rename),
            ("rename", self._rename),
        ):
            self._real[name] = getattr(os, name)
            setattr(os, name, call)
        return self

    def __exit__(self, *error: object) -> None:
        for name, call in self._real.items():
            setattr(os, name, call)

    def _sync(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            self.before_sync()
            data = Path(f"/proc/self/fd/{fd}").read_bytes()  # it may be open for writing only
            self._real["fdatasync"](fd)
            with self._lock:
                self._note(status.st_ino, data)
        else:
            self._real["fsync"](fd)

    def _note(self, inode: int, data: bytes) -> None:
        self._synced[inode] = data
        if self._keep is not None:
            new = self._keep / f"{inode}.new"
            new.write_bytes(data)
            self._real["rename"](new, self._keep / str(inode))

    def _forget(self, path: Any) -> None:
        """Forget a file that goes: its inode may be used again."""
        try:
            inode = os.lstat(path).st_ino
        except OSError:
            return
        with self._lock:
            if self._synced.pop(inode, None) is not None and self._keep is not None:
                self._real["unlink"](self._keep / str(inode))

    def _unlink(self, path: Any, **named: Any) -> None:
        self._forget(path)
        self._real["unlink"](path, **named)

    def _rename(self, source: Any, target: Any, **named: Any) -> None:
        self._forget(target)
        self._real["rename"](source, target, **named)

    def files(self) -> Files:
        """Return all files as they are now."""
        return files_of(self.root, lambda inode: self._synced.get(inode, b""))


def files_of(root: Path, synced: Callable[[int], bytes]) -> Files:
    """Return the files of a directory, with what was synced of each by inode."""
    found: Files = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            kept = synced(path.stat().st_ino)
            found[path.relative_to(root)] = WrittenFile(kept, path.read_bytes())
    return found


def kept_by(directory: Path) -> Callable[[int], bytes]:
    """Return a function for :func:`files_of`, from the files of a recorder in another process."""

    def synced(inode: int) -> bytes:
        try:
            return (directory / str(inode)).read_bytes()
        except FileNotFoundError:
            return b""

    return synced


def lay_out(files: Files, target: Path, changed: dict[Path, bytes]) -> None:
    """Write the files to an empty directory, some of them with other bytes."""
    shutil.rmtree(target, ignore_errors=True)
    for path, file in files.items():
        top = (target / path).parent
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        (target / path).write_bytes(changed.get(path, file.current))


def random_loss(files: Files, generator: random.Random) -> dict[Path, bytes]:
    """Return what a power cut may have left of each file."""
    left: dict[Path, bytes] = {}
    for path, file in files.items():
        unsynced = file.unsynced_pages
        if not unsynced or path.name in ("lock", "health"):
            continue
        if generator.random() < 0.5:
            left[path] = file.prefix(generator.randint(len(file.synced), len(file.current)))
        else:
            rate = generator.random()
            left[path] = file.without({page for page in unsynced if generator.random() < rate})
    return left


def journals_of(files: Files) -> Iterator[Path]:
    """Return the files of rows."""
    return (path for path in files if path.name.startswith(("journal-", "releases-")))
