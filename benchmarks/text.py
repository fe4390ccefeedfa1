"""Real text for the word count: the source and documentation of Python's standard library.

Every machine that runs this has it, some 30 MB of prose and code by many authors, so no download is
needed.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = frozenset({".py", ".txt", ".rst", ".md"})


def standard_library_texts(limit_bytes: int) -> tuple[list[str], int]:
    """Return paths of text files in a fixed order, up to ``limit_bytes`` together, and their bytes.

    Raises:
        RuntimeError: This Python came without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths: list[str] = []
    size = 0
    for path in sorted(_texts_below(root)):
        file_bytes = path.stat().st_size
        if size + file_bytes > limit_bytes:
            continue
        paths.append(str(path))
        size += file_bytes
    if not paths:
        raise RuntimeError(f"no text files below {root}: this Python has no library sources")
    return paths, size


def _texts_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if "site-packages" in folders:  # as large as the library many times over
            folders.remove("site-packages")
        for name in names:
            path = Path(folder, name)
            if path.suffix in SUFFIXES and path.is_file():
                yield path
