"""Formats of the files in a storage directory, and how to find files of another release.

A directory has an arena, with the bytes of regions, and its journal. Each format has its own file
names, so a release only sees files that it can read, and neither reads nor changes files of another
format. A directory can have files of both: an operator who returns to an earlier release finds its
files.

========  =====================  ============================  ======================
format    arena                  journal                       second file of releases
========  =====================  ============================  ======================
1         ``arena-ID.dat``       ``journal-GENERATION``        none
2         ``arena-2-ID.dat``     ``journal-GENERATION-RUN``    ``releases-GENERATION``
========  =====================  ============================  ======================

A new format must use names that no earlier format has. The first builds with format 2 named
arenas as in format 1; such an arena is renamed when it is opened.
"""

import logging
import re
import sys
from pathlib import Path
from typing import Final

from ..errors import StorageUnavailable

logger = logging.getLogger(__name__)

FORMAT: Final = 2
TIER_ID_BYTES: Final = 8

HEADER: Final = f"sluice journal {FORMAT} {sys.byteorder} ".encode("ascii")
"""First bytes of a journal; the id of its arena and the end of the line follow."""

JOURNAL_NAME: Final = re.compile(r"journal-(\d{8,})-(\d{8,})")

_ID: Final = rf"([0-9a-f]{{{2 * TIER_ID_BYTES}}})"
_ARENA_NAME: Final = re.compile(rf"arena-{FORMAT}-{_ID}\.dat")
_FIRST_ARENA_NAME: Final = re.compile(rf"arena-{_ID}\.dat")
_FIRST_JOURNAL_NAME: Final = re.compile(r"journal-\d{8,}")
_RELEASES_NAME: Final = re.compile(r"releases-\d{8,}")
_ANY_NAME: Final = re.compile(r"arena-[0-9a-f-]+\.dat|(?:journal|releases)-[0-9-]+")
_HEADER_BYTES: Final = 64
_ANY_HEADER: Final = re.compile(rb"sluice journal (\d+) (little|big) ")


def arena_name(tier_id: bytes) -> str:
    """Return the file name of an arena."""
    return f"arena-{FORMAT}-{tier_id.hex()}.dat"


def tier_id_of(path: Path) -> bytes:
    """Return the id in an arena's file name.

    Raises:
        ValueError: The file is not named like an arena.
    """
    match = _ARENA_NAME.fullmatch(path.name) or _FIRST_ARENA_NAME.fullmatch(path.name)
    if match is None:
        msg = f"{path} is not named like an arena"
        raise ValueError(msg)
    return bytes.fromhex(match[1])


def arenas_in(directory: Path) -> list[Path]:
    """Return the arenas of this format in a directory, by name.

    Raises:
        OSError: The directory is missing or cannot be read.
    """
    return _arenas_of(sorted(directory.iterdir()))


def files_of_other_formats(directory: Path) -> list[Path]:
    """Return arenas and journals of other formats in a directory, by name.

    Raises:
        OSError: The directory is missing or cannot be read.
    """
    paths = sorted(directory.iterdir())
    own = set(_arenas_of(paths))
    return [
        path
        for path in paths
        if _ANY_NAME.fullmatch(path.name) and path not in own and not _is_journal(path)
    ]


def report_other_formats(directory: Path) -> None:
    """Log the files of other formats in a directory, and how to remove them."""
    try:
        paths = files_of_other_formats(directory)
        size_bytes = sum(path.stat().st_blocks * 512 for path in paths)
    except OSError as error:
        logger.warning("%s cannot be listed: %s", directory, error)
        return
    if paths:
        logger.warning(
            "%s has data of another release of Sluice, which this one neither reads nor "
            "changes: %s, %d bytes. That release finds them when it is started again; "
            "docs/operate/upgrading.md says how to free their space",
            directory,
            ", ".join(path.name for path in paths),
            size_bytes,
        )


def is_file_of_releases(path: Path) -> bool:
    """Return whether a path is a file of releases of this format."""
    return _RELEASES_NAME.fullmatch(path.name) is not None


def refuse_other_format(directory: Path) -> None:
    """Refuse a directory if its journal's header has another format.

    Raises:
        StorageUnavailable: It has such a journal.
        OSError: The directory is missing, or it or a journal cannot be read.
    """
    for path in directory.iterdir():
        if not JOURNAL_NAME.fullmatch(path.name) or not path.is_file():
            continue
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        match = _ANY_HEADER.match(header)
        if match is not None and not header.startswith(HEADER):
            found = f"{match[1].decode()} ({match[2].decode()} endian)"
            raise StorageUnavailable(
                directory,
                f"its journal has format {found}, this release reads format {FORMAT}; "
                "nothing in it was changed",
                "Start the release of Sluice that wrote it, or give this one other "
                "data_directories",
            )


def _arenas_of(paths: list[Path]) -> list[Path]:
    named = [path for path in paths if _ARENA_NAME.fullmatch(path.name)]
    if named or any(_FIRST_JOURNAL_NAME.fullmatch(path.name) for path in paths):
        return named
    if not any(JOURNAL_NAME.fullmatch(path.name) for path in paths):
        return []
    return [path for path in paths if _FIRST_ARENA_NAME.fullmatch(path.name)]


def _is_journal(path: Path) -> bool:
    return JOURNAL_NAME.fullmatch(path.name) is not None or is_file_of_releases(path)
