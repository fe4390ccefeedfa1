"""A cgroup with a limit of memory, page cache included, for all processes of a measurement."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_ROOT = Path("/sys/fs/cgroup")


class CgroupUnavailable(RuntimeError):
    """This process may not make a cgroup with a limit of memory."""


class MemoryCgroup:
    """A new cgroup, of either version; leaving the block removes it.

    Args:
        limit_bytes: Most memory of its processes, including the page cache of their files.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        is_first_version = (_ROOT / "memory").is_dir()
        parent = _ROOT / "memory" if is_first_version else _ROOT
        self.path = parent / f"sluice-bench-{os.getpid()}"
        self._limit_file = "memory.limit_in_bytes" if is_first_version else "memory.max"

    def __enter__(self) -> Self:
        try:
            self.path.mkdir()
        except OSError as error:
            raise CgroupUnavailable(
                f"{self.path} cannot be made ({error.strerror}): run the benchmark as a user "
                "who may, such as root of a machine of its own"
            ) from error
        try:
            (self.path / self._limit_file).write_text(str(self._limit_bytes), encoding="ascii")
        except OSError as error:
            self.path.rmdir()
            raise CgroupUnavailable(
                f"{self.path} takes no limit of memory ({error.strerror}): enable the memory "
                "controller in the cgroup.subtree_control of its parent"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.path.rmdir()  # its processes have ended


def join(cgroup: Path) -> None:
    """Move this process, and those that it starts from now on, into a cgroup.

    Raises:
        OSError: The cgroup does not exist, or this process may not join it.
    """
    (cgroup / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
