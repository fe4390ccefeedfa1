"""The budget of the fuzzer notices memory that stays."""

from __future__ import annotations

import mmap

import pytest

from tests.support.memory_budget import MIB, MemoryBudget


def test_memory_above_the_budget_is_detected() -> None:
    budget = MemoryBudget(8 * MIB)
    budget.check()
    # Of the process's own and new: a bytearray could be memory that the C library has kept.
    with mmap.mmap(-1, 16 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        with pytest.raises(AssertionError, match=r"1\d\.\d MiB more .*, the budget is 8\.0 MiB"):
            budget.check()
        assert budget.grown_bytes >= len(kept) - MIB
