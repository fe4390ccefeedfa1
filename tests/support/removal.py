"""Removes a directory that a TaskManager uses."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def remove_used(directory: Path) -> None:
    """Remove a directory and what is in it.

    It goes at once, by its name: one that is emptied file by file gets new files meanwhile, such as
    those of probes.
    """
    shutil.rmtree(directory.rename(directory.with_name(f"{directory.name}-gone")))
