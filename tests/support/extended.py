"""Tests that ``make test`` leaves out and ``make test-all`` runs: more cases of what is tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

EVERY_LOOP = ("transport", "shuffle/client", "shuffle/gate", "shuffle/memory", "shuffle/partition")
"""Folders of ``tests`` whose asyncio tests always run on every event loop: what uses the loop, its
sockets and buffers itself."""


def first_of(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Return cases to parametrize with, of which ``make test`` runs the first ones only."""
    return [
        case if number < count else pytest.param(case, marks=pytest.mark.extended)
        for number, case in enumerate(cases)
    ]


def runs_on_every_loop(path: Path) -> bool:
    """Whether the asyncio tests of a file always run on every event loop."""
    tests = path.parents[len(path.parents) - 1 - path.parts.index("tests")]
    folder = path.relative_to(tests).as_posix()
    return folder.startswith(tuple(f"{each}/" for each in EVERY_LOOP))
