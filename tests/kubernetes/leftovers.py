"""Removes leftovers of killed runs, whose processes have ended."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import run
from tests.kubernetes.images import BUILD
from tests.kubernetes.node import CGROUPS, remove_cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "sluice-k8s-"
"""Prefix of all names that a run uses on the machine; the id of its process follows."""
_SECONDS = 20


def remove_leftovers() -> None:
    """Remove namespaces, packet filters, control groups and directories of killed runs."""
    for path in _left_in(Path("/run/netns")):
        run(["ip", "netns", "delete", path.name], timeout_seconds=_SECONDS)
    tables = run(["nft", "list", "tables"], timeout_seconds=_SECONDS)
    for name, pid in re.findall(rf"\b({PREFIX.replace('-', '_')}(\d+))\b", tables):
        if not Path("/proc", pid).exists():
            run(["nft", f"delete table ip {name}"], timeout_seconds=_SECONDS)
    for controller in CGROUPS.iterdir():
        for group in _left_in(controller):
            remove_cgroup(group)
    for parent in (Path(tempfile.gettempdir()), BUILD / "nodes"):
        for path in _left_in(parent):
            shutil.rmtree(path, ignore_errors=True)


def _left_in(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.glob(f"{PREFIX}*")):
        found = re.match(rf"{PREFIX}(\d+)", path.name)
        if found and not Path("/proc", found[1]).exists():
            yield path
