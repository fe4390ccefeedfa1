"""Canonical rows and their comparison."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.support.comparison import differences
from tests.support.jobs.rows import canonical_lines, digest

if TYPE_CHECKING:
    from pathlib import Path


def test_order_of_rows_does_not_matter_but_repetition_does():
    assert canonical_lines([(2, "b"), (1, "a")]) == canonical_lines([(1, "a"), (2, "b")])
    assert canonical_lines([(1,), (1,)]) != canonical_lines([(1,)])


def test_values_that_look_alike_but_differ_stay_apart():
    alike = [1, "1", True, Decimal(1), Decimal("1.00"), None, "null", [1], b"1"]
    assert len(set(canonical_lines([(value,) for value in alike]))) == len(alike)


def test_dates_and_nested_values_are_written_in_full():
    row = (datetime.date(1995, 3, 15), [Decimal("0.10"), None])
    assert canonical_lines([row]) == ['[{"date": "1995-03-15"}, [{"decimal": "0.10"}, null]]\n']


def test_a_line_break_in_a_value_does_not_break_a_row():
    (line,) = canonical_lines([("a\nb",)])
    assert line.count("\n") == 1


@pytest.mark.parametrize("value", [1.5, float("nan"), {"a": 1}, [0.5]])
def test_a_value_that_cannot_be_compared_exactly_is_refused(value):
    with pytest.raises(TypeError, match="cast it to decimal"):
        canonical_lines([(value,)])


def test_digest_depends_on_every_line():
    assert digest(["a\n", "b\n"]) != digest(["a\n"])
    assert digest(["a\n"]) == digest(["a\n"])


def test_differences_name_the_count_and_the_rows(tmp_path: Path):
    expected, found = tmp_path / "expected", tmp_path / "found"
    expected.write_text("".join(canonical_lines([(1,), (2,), (3,)])))
    found.write_text("".join(canonical_lines([(1,), (4,)])))
    told = differences(expected, found)
    assert told[0] == "3 rows expected, 2 found"
    assert told[1] == "row 2: expected [2], found [4]"
    assert differences(expected, expected) == []


def test_rows_missing_at_the_end_are_a_difference(tmp_path: Path):
    expected, found = tmp_path / "expected", tmp_path / "found"
    expected.write_text("[1]\n[2]\n")
    found.write_text("[1]\n")
    assert differences(expected, found) == ["2 rows expected, 1 found"]
