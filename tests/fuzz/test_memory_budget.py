"""The budget of the fuzzer notices memory that stays."""

from __future__ import annotations

import pytest

from tests.support.memory_budget import MIB, MemoryBudget


def test_memory_beyond_the_budget_is_noticed() -> None:
    budget = MemoryBudget(8 * MIB)
    budget.check()
    kept = bytearray(b"x") * (16 * MIB)  # touched, and so resident
    with pytest.raises(AssertionError, match=r"1\d\.\d MiB more .*, the budget is 8\.0 MiB"):
        budget.check()
    assert budget.grown_bytes >= len(kept) - MIB
