"""Write and check the SHA-256 of each file of a release, as ``sha256sum --check`` reads it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "SHA256SUMS"


def write_checksums(directory: Path) -> Path:
    """Write ``SHA256SUMS`` for all other files of a directory."""
    paths = sorted(path for path in directory.iterdir() if path.name != NAME)
    lines = [f"{digest_of(path)}  {path.name}\n" for path in paths]
    sums = directory / NAME
    sums.write_text("".join(lines), encoding="ascii")
    return sums


def wrong_files(directory: Path) -> list[str]:
    """Return the files that are missing, changed, or not listed in ``SHA256SUMS``."""
    lines = (directory / NAME).read_text(encoding="ascii").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {path.name: digest_of(path) for path in directory.iterdir() if path.name != NAME}
    names = listed.keys() | found.keys()
    return sorted(name for name in names if listed.get(name) != found.get(name))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
