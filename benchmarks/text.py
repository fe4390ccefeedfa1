"""Real text for the word count: the source and documentation of Python's standard library.

It is on every machine that runs this, some 30 MB of prose and code written by many hands, so
nothing has to be downloaded.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

SUFFIXES = frozenset({".py", ".txt", ".rst", ".md"})


def standard_library_texts(limit_bytes: int) -> tuple[list[str], int]:
    """Paths of text files in a fixed order, up to ``limit_bytes`` together, and their bytes.

    Raises:
        RuntimeError: This Python came without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths: list[str] = []
    size = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in SUFFIXES or "site-packages" in path.parts or not path.is_file():
            continue
        file_bytes = path.stat().st_size
        if size + file_bytes > limit_bytes:
            continue
        paths.append(str(path))
        size += file_bytes
    if not paths:
        raise RuntimeError(f"no text files below {root}: this Python has no library sources")
    return paths, size
