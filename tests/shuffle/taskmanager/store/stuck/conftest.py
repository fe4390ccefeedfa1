"""A store on two directories, of which b can hang."""

from collections.abc import AsyncIterator, Iterator

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.stuck_directory import StuckDirectory
from tests.support.watched_disks import watched_disks


@pytest.fixture
def stuck(tmp_path, monkeypatch) -> Iterator[StuckDirectory]:
    """Directory b, which can hang."""
    made = StuckDirectory(monkeypatch, tmp_path / "b")
    yield made
    made.answer()
    assert made.touched_in_loop == []


@pytest.fixture
async def store(tmp_path, stuck) -> AsyncIterator[ShuffleStore]:
    opened = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    opened.watch(lambda lost: None)
    yield opened
    stuck.answer()
    await opened.close()
