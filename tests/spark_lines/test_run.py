"""Which lines the matrix has, and when a line counts as passed."""

from __future__ import annotations

import pytest

from sluice.spark_integration.conf import NEWEST_SPARK, OLDEST_SPARK
from tests.spark_lines.run import LINES, has_passed


def test_every_supported_line_is_in_the_matrix_once():
    lines = [tuple(map(int, version.split(".")[:2])) for version in LINES]
    assert (lines[0], lines[-1]) == (OLDEST_SPARK, NEWEST_SPARK)
    assert lines == sorted(set(lines))


@pytest.mark.parametrize(
    ("code", "summary", "passed"),
    [
        (0, "34 passed in 129.67s (0:02:09)", True),
        (0, "34 passed, 1 skipped in 129.67s", True),
        (1, "1 failed, 33 passed in 129.67s", False),
        (0, "7 skipped in 0.06s", False),
        (0, "no summary", False),
    ],
)
def test_a_line_passes_when_tests_passed_and_none_failed(code: int, summary: str, passed: bool):
    assert has_passed(code, summary) is passed
