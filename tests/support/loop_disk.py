"""A disk of its own for a test: a file system in a file, on a loop device."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MIN_STEP_BYTES = 1024
"""Less than a block of any file system."""

TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class NoLoopDisk(RuntimeError):
    """This process cannot mount a file system."""


def _command(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=30)


class LoopDisk:
    """An ext4 file system in a file, mounted.

    Args:
        root: Receives the file and the mount point.
        size_bytes: Its size.

    Raises:
        NoLoopDisk: Only root can mount, and only where there are loop devices.
    """

    def __init__(self, root: Path, size_bytes: int) -> None:
        if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
            raise NoLoopDisk("only root can mount")
        self.file = root / "disk"
        self.mounted_at = root / "mounted"
        self.mounted_at.mkdir()
        with self.file.open("wb") as file:
            file.truncate(size_bytes)
        try:
            _command("mkfs.ext4", "-q", "-m", "0", self.file)
            _command("mount", "-o", "loop,errors=remount-ro", self.file, self.mounted_at)
        except subprocess.CalledProcessError as error:
            raise NoLoopDisk(f"no loop devices here: {error.stderr.decode().strip()}") from error
        self.data = self.mounted_at / "data"

    @property
    def _filler(self) -> Path:
        return self.mounted_at / "filler"

    def fill(self) -> int:
        """Take all its free space; return how many bytes that was."""
        taken, step = 0, self._free_bytes()
        with self._filler.open("wb", buffering=0) as file:
            # The file system needs some of its blocks for itself, and others write meanwhile.
            while step >= MIN_STEP_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), taken, step)
                except OSError:
                    step //= 2
                else:
                    taken += step
        return taken

    def make_room(self) -> None:
        """Give back what :meth:`fill` took."""
        self._filler.unlink()

    def abort(self) -> None:
        """Let the file system find an error, whereupon it is read-only."""
        _command("mount", "-o", "remount,abort", self.mounted_at)

    def freeze(self) -> None:
        """Let everything wait that writes."""
        _command("fsfreeze", "--freeze", self.mounted_at)

    def thaw(self) -> None:
        """Let it go on."""
        _command("fsfreeze", "--unfreeze", self.mounted_at)

    def unmount(self) -> None:
        """Take it away, when nobody uses it any more."""
        _command("umount", "--lazy", self.mounted_at)

    def _free_bytes(self) -> int:
        free = os.statvfs(self.mounted_at)
        return free.f_bavail * free.f_frsize


@contextlib.contextmanager
def loop_disks(root: Path, names: Iterable[str], size_bytes: int) -> Iterator[dict[str, LoopDisk]]:
    """Mount one for each name, in a directory of that name; none if this process cannot mount."""
    with contextlib.ExitStack() as mounted:
        disks: dict[str, LoopDisk] = {}
        for name in names:
            directory = root / name
            directory.mkdir(parents=True)
            try:
                disks[name] = LoopDisk(directory, size_bytes)
            except NoLoopDisk:
                break
            mounted.callback(disks[name].unmount)
        yield disks
