"""The page about the command line cannot go stale."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from sluice.cli import reports
from sluice.transport.settings import descriptions
from tools.docs.command_line_page import PAGE, REPORTS, page

OWN = [
    each
    for _, each in inspect.getmembers(reports, inspect.isclass)
    if issubclass(each, msgspec.Struct) and each.__module__ == reports.__name__
]


def test_the_committed_page_is_the_generated_one():
    committed = PAGE.read_text(encoding="utf-8")
    assert page(committed) == committed, "run: make docs"


@pytest.mark.parametrize("report", OWN, ids=lambda report: report.__name__)
def test_every_field_of_a_report_has_a_meaning(report):
    assert set(report.__struct_fields__) == descriptions(report).keys()


def test_every_document_is_on_the_page():
    assert {each for each in OWN if each.__struct_config__.tag is not None} <= set(REPORTS)
