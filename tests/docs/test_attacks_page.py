"""The page of attacks names a test for each attack, and only tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.examples import ROOT

PAGE = ROOT / "docs" / "internals" / "attacks.md"
ROW = re.compile(
    r"^\| (?!attack |-)(?P<attack>[^|]+) \| [^|]+ \| (?P<tests>[^|]+) \|$", re.MULTILINE
)
ROWS = {
    row["attack"]: re.findall(r"`([^`]+)`", row["tests"])
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))
}
ATTACKS = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests" / "attack").glob("test_*.py"))
)


def exists(named: str) -> bool:
    """Return whether a test of tests/attack, a FILE or a FILE::test exists."""
    file, _, name = named.rpartition("::")
    if name.endswith(".py"):
        return (ROOT / name).is_file()
    if file and not (ROOT / file).is_file():
        return False
    source = (ROOT / file).read_text(encoding="utf-8") if file else ATTACKS
    return re.search(rf"^(async )?def {re.escape(name)}\(", source, re.MULTILINE) is not None


def test_only_tests_exist_that_are_defined():
    """The control."""
    assert len(ROWS) > 30
    assert exists("tests/docs/test_attacks_page.py::test_only_tests_exist_that_are_defined")
    for wrong in (
        "test_a_stranger",
        "tests/attack/test_nothing.py",
        "tests/attack/test_gates.py::test_a_stranger_does_nothing_in_any_role",
    ):
        assert not exists(wrong)


@pytest.mark.parametrize("attack", ROWS)
def test_each_attack_names_tests_that_exist(attack):
    assert ROWS[attack], "no test"
    assert not [named for named in ROWS[attack] if not exists(named)]


def test_every_line_of_the_table_is_an_attack():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert len(lines) == 2 + len(ROWS)
