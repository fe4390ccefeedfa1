"""docs/internals/network-cases.md is current, and every case of it is covered by a test."""

from __future__ import annotations

import ast

import pytest

from tests import network_cases
from tests.network_cases import AREAS, PAGE, PENDING, covering

NUMBERS = [case.number for cases in AREAS.values() for case in cases]


def test_the_committed_page_is_the_generated_one():
    assert PAGE.read_text(encoding="utf-8") == network_cases.page(), "run: make docs"


def test_cases_are_numbered_from_one_without_gaps():
    assert list(range(1, len(NUMBERS) + 1)) == NUMBERS


def test_every_case_has_a_test_or_is_pending():
    covered = covering().keys()
    assert set(NUMBERS) - covered == PENDING, "cases without a test; or take out of PENDING"
    assert covered <= set(NUMBERS), "markers with numbers that are no case"


SOURCE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.network_case(1)]
@pytest.mark.network_case(2, 3)
@pytest.mark.parametrize("x", [])
async def test_a(): ...
@pytest.mark.network_case(4)
class TestB:
    @pytest.mark.network_case(5)
    def test_c(self): ...
"""


def test_markers_are_found_wherever_pytest_takes_them():
    assert list(network_cases._marked(ast.parse(SOURCE))) == [
        ("all", 1),
        ("test_a", 2),
        ("test_a", 3),
        ("TestB", 4),
        ("TestB::test_c", 5),
    ]


def test_a_number_that_is_computed_is_refused():
    source = "@pytest.mark.network_case(*ALL)\ndef test_a(): ..."
    with pytest.raises(ValueError, match="written out"):
        list(network_cases._marked(ast.parse(source)))
