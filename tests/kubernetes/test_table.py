"""The table of cases."""

from __future__ import annotations

from tests.kubernetes.table import CaseResult, render


def test_columns_are_as_wide_as_their_longest_cell():
    text = render(
        [CaseResult("scaled", 9.6, "0 of 8", passed=True), CaseResult("a", 100.0, "", passed=False)]
    )
    assert text.splitlines() == [
        "case    result  seconds  counted",
        "------  ------  -------  -------",
        "scaled  passed       10  0 of 8",
        "a       FAILED      100",
    ]
