"""The rounds of a fuzzer go on until its time is over."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import rounds

if TYPE_CHECKING:
    import pytest


def test_rounds_go_on_with_other_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(rounds, "FUZZ_SECONDS", 3 / rounds.SHARE)
    monkeypatch.setattr(rounds, "EXAMPLES_A_ROUND", 5)
    found: list[int] = []

    @given(st.integers(0, 2**60))
    def test(number: int) -> None:
        found.append(number)

    rounds.run_rounds(test)
    assert len(found) == 3 * 5
    assert len(set(found)) > 10
