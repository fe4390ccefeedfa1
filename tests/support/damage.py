"""Flips bits of map outputs at rest, behind the back of their TaskManager."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.copies import KEY

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment


async def damage(
    environment: NetworkEnvironment, map_attempt_id: int, *, region: int = 0, at: int = 5
) -> None:
    """Flip a bit of a region, in the file of its tier."""
    output = environment.store.lookup(KEY, map_attempt_id)
    if output is None:
        raise AssertionError(f"map output {map_attempt_id} is not here")
    extent = output.regions[region].extent
    if extent is None:
        raise AssertionError(f"region {region} is empty")
    path: Path = extent.tier.path  # type: ignore[attr-defined]
    await asyncio.to_thread(flip, path, extent.offset + at)


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file; the memory tier maps its file, so it sees it too."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
