"""Finds, creates, opens and removes the arena file of a directory."""

import logging
import secrets
from pathlib import Path

from ..errors import StorageUnavailable
from ..files.file_calls import open_file
from ..files.file_format import (
    TIER_ID_BYTES,
    arena_name,
    arenas_in,
    refuse_other_format,
    tier_id_of,
)

logger = logging.getLogger(__name__)


def open_arena(directory: Path) -> tuple[Path, int]:
    """Open the arena file of a directory whose lock the caller holds, or create one.

    Returns:
        The file and its descriptor.

    Raises:
        StorageUnavailable: The journal beside it has another format; nothing was changed.
        StorageUnavailable: The file cannot be created or opened.
    """
    try:
        refuse_other_format(directory)
        path = arena_path(directory)
        return path, open_file(path)
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def remove_arenas(directory: Path) -> None:
    """Remove the arena files of a directory whose lock the caller holds.

    Raises:
        StorageUnavailable: The journal beside them has another format; nothing was changed.
        StorageUnavailable: A file cannot be removed.
    """
    try:
        refuse_other_format(directory)
        for path in arenas_in(directory):
            path.unlink()
    except OSError as error:
        raise StorageUnavailable(directory, str(error)) from error


def arena_path(directory: Path) -> Path:
    """Find the arena file of a directory, or choose the name of a new one.

    A daemon creates only one arena; if an operator added others, the first by name is used.

    Raises:
        OSError: The directory cannot be read, or its arena cannot be renamed.
    """
    found = arenas_in(directory)
    if len(found) > 1:
        logger.warning("%s holds %d arenas, using %s", directory, len(found), found[0].name)
    if not found:
        return directory / arena_name(secrets.token_bytes(TIER_ID_BYTES))
    path = directory / arena_name(tier_id_of(found[0]))
    return path if path == found[0] else found[0].rename(path)
