"""The page about error codes cannot go stale, and the wire protocol's page says the same."""

from __future__ import annotations

import re

from sluice.protocol.errors import ErrorCode
from tools.docs.errors_page import ENTRIES, PAGE, page

COMMITTED = PAGE.read_text(encoding="utf-8")
WIRE = (PAGE.parent / "wire.md").read_text(encoding="utf-8")


def test_every_code_has_a_receiver_and_a_meaning():
    assert set(ENTRIES) == set(ErrorCode)
    assert all(entry.receiver and entry.meaning for entry in ENTRIES.values())


def test_the_committed_page_is_the_generated_one():
    assert page(COMMITTED) == COMMITTED, "run: make docs"


def test_the_wire_protocol_says_the_same_of_retries():
    here = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \| (\w+) \|", COMMITTED, re.MULTILINE)
    there = re.findall(r"^\| (\d+) \| ([A-Z_]+)(?: \(.*\))? \| (\w+) \|$", WIRE, re.MULTILINE)
    assert here == there
