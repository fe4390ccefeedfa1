"""The page about error codes cannot go stale."""

from __future__ import annotations

from sluice.protocol.errors import ErrorCode
from tools.docs.errors_page import ENTRIES, PAGE, page


def test_every_code_has_a_receiver_and_a_meaning():
    assert set(ENTRIES) == set(ErrorCode)
    assert all(entry.receiver and entry.meaning for entry in ENTRIES.values())


def test_the_committed_page_is_the_generated_one():
    committed = PAGE.read_text(encoding="utf-8")
    assert page(committed) == committed, "run: make docs"
