"""The memory budget of all tests of a fuzzer together."""

from __future__ import annotations

import pytest

from tests.fuzz.rounds import MAX_GROWTH_BYTES
from tests.support.memory_budget import MemoryBudget


@pytest.fixture(scope="package")
def budget() -> MemoryBudget:
    """The budget of the whole run: what is left behind by any example counts against all."""
    return MemoryBudget(MAX_GROWTH_BYTES)
