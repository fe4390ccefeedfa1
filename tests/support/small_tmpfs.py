"""A small tmpfs for a test, which another program fills."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MIN_STEP_BYTES = 4096
"""A page."""


class NoTmpfs(RuntimeError):
    """This process cannot mount a file system."""


class SmallTmpfs:
    """A tmpfs, mounted at a directory.

    Args:
        mounted_at: The mount point, which is created.
        size_bytes: Its size.

    Raises:
        NoTmpfs: Only root can mount, and not in every container.
    """

    def __init__(self, mounted_at: Path, size_bytes: int) -> None:
        self.mounted_at = mounted_at
        mounted_at.mkdir()
        options = f"size={size_bytes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "sluice-test", str(mounted_at)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoTmpfs(f"no tmpfs can be mounted here: {error}") from error

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""
        usage = os.statvfs(self.mounted_at)
        return usage.f_bavail * usage.f_frsize

    def fill(self, left_bytes: int = 0) -> None:
        """Take the free space, except ``left_bytes``."""
        with (self.mounted_at / "other").open("ab", buffering=0) as file:
            taken = os.fstat(file.fileno()).st_size
            while (step := self.free_bytes - left_bytes) >= MIN_STEP_BYTES:
                os.posix_fallocate(file.fileno(), taken, step)
                taken += step

    def make_room(self, size_bytes: int = 0) -> None:
        """Free the space that :meth:`fill` took, or some bytes of it."""
        other = self.mounted_at / "other"
        os.truncate(other, max(0, other.stat().st_size - size_bytes) if size_bytes else 0)

    def unmount(self) -> None:
        """Unmount it; it goes when nothing uses it."""
        command = ["umount", "--lazy", str(self.mounted_at)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
