"""Transport tests end soon: nothing in them waits longer than some seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

TEST_TIMEOUT_SECONDS = 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_SECONDS))
