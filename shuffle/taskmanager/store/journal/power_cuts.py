"""Notices at a start that the host was restarted, and syncs what the start has found.

After a power cut the journal may have a row whose bytes never reached the disk. The file has the
bytes of an earlier map output there, and the checksums of its blocks are right. So the first start
after each restart of the host verifies the checksum of every region that it adopts, unless rows
were only written after their bytes were synced.

The file ``boot`` of a data directory says which start of the host wrote to it, and how. It is
removed when a sync of the arena fails: the kernel may have dropped bytes that rows name, so the
next start of the TaskManager verifies, whether the host was restarted or not.
"""

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .....transport import private_file
from ..errors import DirectoryHangs
from ..files.blocking_calls import MakesCalls
from ..files.file_sync import sync_file, sync_names
from ..health.directories import ID_NAME
from .journal_sync import JournalSync

if TYPE_CHECKING:
    from ..tiers.arena_tier import ArenaTier

logger = logging.getLogger(__name__)

BOOT_NAME: Final = "boot"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_BYTES: Final = 256


def boot_id() -> str:
    """Return the random id of this start of the host; empty if the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read_boot(directory: Path) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(directory / BOOT_NAME, flags), "rb") as file:
            return file.read(_MAX_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def may_lack_bytes(directory: Path) -> bool:
    """Return whether a journal may name bytes that a power cut or a failed sync took. Blocks."""
    kept = _read_boot(directory).split()
    return kept != [boot_id(), "never"] and kept[1:] != ["commit"]


def is_doubtful(tier: "ArenaTier", make: MakesCalls) -> bool:
    """Return whether a power cut or a failed sync may have taken bytes of an arena."""
    if tier.in_memory:
        return False
    try:
        return make(tier.directory, partial(may_lack_bytes, tier.directory))
    except DirectoryHangs:
        return True


def record_boot(directory: Path, sync: JournalSync) -> None:
    """Record that this start of the host writes to a directory from now on. Blocks.

    Raises:
        OSError: It can be neither written nor removed.
    """
    # With an interval, rows may reach the disk before their bytes, as with never.
    mode = "commit" if sync.mode == "commit" else "never"
    text = f"{boot_id()} {mode}\n"
    path = directory / BOOT_NAME
    if _read_boot(directory) != text:
        try:
            private_file.replace(path, text)
        except OSError:  # a full disk, for example: the next start after a restart verifies
            path.unlink(missing_ok=True)
    # Before the first row that is not synced. The start that wrote the file may have been killed
    # before this call.
    sync_names(directory)


def sync_arena(tier: "ArenaTier") -> None:
    """Write the bytes of an arena to its disk. Blocks.

    Raises:
        OSError: It failed: the next start verifies the arena.
    """
    try:
        tier.sync()
    except OSError:
        try:
            (tier.directory / BOOT_NAME).unlink(missing_ok=True)
            sync_names(tier.directory)
        except OSError as error:
            logger.error("%s may not be verified at the next start: %s", tier.directory, error)
        raise


def begin_writing(tier: "ArenaTier", sync: JournalSync) -> None:
    """Sync a data directory if rows must be, and record which start of the host uses it. Blocks.

    Call it whenever a directory begins to be used, also during a run.

    Args:
        tier: The tier of the directory.
        sync: What must survive a power cut.

    Raises:
        OSError: It failed.
    """
    if tier.in_memory:
        return
    if sync.is_on:
        _sync_found(tier)
    record_boot(tier.directory, sync)


def _sync_found(tier: "ArenaTier") -> None:
    """Sync what a start found or made in a data directory, also by a killed process."""
    sync_arena(tier)
    path = tier.directory / ID_NAME
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        sync_file(fd, path)
    finally:
        os.close(fd)
    sync_names(tier.directory, with_parents=True)
