"""Runs a Python program for which a directory hangs, as a disk does that answers no more.

    python tests/support/hanging_disk.py DIRECTORY PROGRAM ARGUMENTS...

From the moment at which the file ``DIRECTORY.hangs`` exists, calls that touch files below the
directory do not return. Their threads can be ended by nothing but the end of the process. A
TaskManager gives its storage less time to close than without this program.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = (
    *("open", "close", "stat", "lstat", "statvfs", "fstatvfs", "fsync", "fdatasync", "rename"),
    *("pread", "preadv", "pwrite", "pwritev", "read", "write", "ftruncate", "posix_fallocate"),
    *("replace", "unlink", "remove", "listdir", "scandir", "mkdir"),
)


STORAGE_SECONDS = 0.5


def make_hang(directory: str) -> None:
    """Replace the calls of this process."""
    exists = functools.partial(os.access, f"{directory}.hangs", os.F_OK)
    readlink = os.readlink

    def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def made(file: Any, *rest: Any, **named: Any) -> Any:
            if exists():
                try:
                    path = readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
                except OSError:
                    path = ""
                if os.fspath(path).startswith(directory):
                    if call.__name__ == "preadv" and len(rest) == 3:
                        raise BlockingIOError  # the page cache does not have it
                    threading.Event().wait()
            return call(file, *rest, **named)

        return made

    for name in CALLS:
        setattr(os, name, hanging(getattr(os, name)))


if __name__ == "__main__":
    make_hang(sys.argv[1])
    sys.argv = sys.argv[2:]
    sys.path.pop(0)
    service = importlib.import_module("sluice.shuffle.taskmanager.process.service")
    vars(service)["STORAGE_SECONDS"] = STORAGE_SECONDS
    runpy.run_path(sys.argv[0], run_name="__main__")
