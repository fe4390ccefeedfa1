"""Daemons that a test starts as often as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def daemons() -> Iterator[Callable[..., Daemon]]:
    """Start daemons, each in the directory given; those that are left at the end are killed."""
    started: list[Daemon] = []

    def start(directory: Path, **keys: Any) -> Daemon:
        started.append(Daemon(directory, **keys).start())
        return started[-1]

    yield start
    for daemon in started:
        daemon.kill()
