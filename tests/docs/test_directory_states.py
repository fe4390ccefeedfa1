"""The table of the states of a directory names log lines and tests that exist."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.docs.examples import ROOT

PAGE = ROOT / "docs" / "operate" / "durability.md"
STATES = ("healthy", "slow", "full", "left out", "returned", "gone")


class Transition(NamedTuple):
    """A row of the table."""

    before: str
    after: str
    trigger: str
    log: str
    tests: str


def section() -> str:
    text = PAGE.read_text(encoding="utf-8").partition("### States of a directory")[2]
    return text.partition("\n## ")[0]


def transitions() -> list[Transition]:
    rows = re.findall(r"^\| (.*) \|$", section(), re.MULTILINE)
    return [Transition(*row.split(" | ")) for row in rows[1:]]


def code(*folders: str) -> str:
    """Return the sources below some folders, with adjacent literals joined."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return re.sub(r'"\s*f?"', "", text)


def test_each_state_is_entered_and_left():
    found = transitions()
    for state in STATES:
        assert any(state in each.after for each in found), state
        assert any(state in each.before or each.before == "any" for each in found), state


def test_the_code_says_what_the_table_has():
    said = code("shuffle/taskmanager")
    for each in transitions():
        for line in re.findall(r"`([a-z][^`]*)`", each.log):
            assert line in said, line


def test_the_reasons_of_readyz_are_those_of_the_code():
    reasons = re.findall(r"`(no storage [^`]*)`", section().replace("\n", " "))
    assert len(reasons) == 2
    for reason in reasons:
        assert reason in code("shuffle/taskmanager"), reason


def test_each_transition_names_a_test():
    assert all(each.tests.startswith("`test_") for each in transitions())


@pytest.mark.parametrize(
    "name", sorted({name for each in transitions() for name in re.findall(r"\w+", each.tests)})
)
def test_each_transition_has_its_test(name: str):
    assert re.search(rf"^(async )?def {name}\(", code("tests/shuffle/taskmanager"), re.MULTILINE)
