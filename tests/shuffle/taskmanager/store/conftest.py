"""Stores that are closed at the end of a test."""

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import config


@pytest.fixture
async def opened(tmp_path):
    """Open stores below tmp_path; whatever a test opened is closed at its end."""
    stores = []

    def open_store(**changes):
        store = ShuffleStore.open(config(tmp_path, **changes))
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        await store.close()
