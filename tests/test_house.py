"""Rules of the house: files that can be read at once, and a test file for each module."""

from __future__ import annotations

import ast
import tokenize
from collections import defaultdict
from itertools import chain
from pathlib import Path

from tests.support.compiled_modules import compiled_modules

ROOT = Path(__file__).parents[1]
LAYERS = ("protocol", "transport", "shuffle")
LONGEST_FILE = 450
REASON = f"# Longer than {LONGEST_FILE} lines, because "
"""How the first comment of a longer file begins."""


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> list[Path]:
    return [
        *(path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))),
        *sorted((ROOT / "spark_integration").glob("*.py")),
        *sorted((ROOT / "sluice" / "cli").glob("*.py")),
    ]


def is_too_long(path: Path) -> bool:
    if len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE:
        return False
    with path.open("rb") as file:
        comments = (
            token.string
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        )
        return not next(comments, "").startswith(REASON)


def test_no_file_is_too_long_to_be_read_at_once_without_a_reason():
    assert sources()
    found = [place(path) for path in sources() if is_too_long(path)]
    assert not found, f"split them, or let their first comment begin with {REASON!r}"


def test_only_the_first_comment_is_a_reason(tmp_path):
    path = tmp_path / "module.py"
    for begin, expected in (
        (f'"""A module."""\n\n{REASON}it is a table.\n', False),
        (f'"""A module."""\n# A comment.\n{REASON}it is a table.\n', True),
        (f'"""{REASON}it is a table."""\n', True),
    ):
        path.write_text(begin, encoding="utf-8")
        assert not is_too_long(path)
        path.write_text(begin + "x = 1\n" * LONGEST_FILE, encoding="utf-8")
        assert is_too_long(path) == expected


def test_no_class_name_occurs_twice_in_the_layers():
    places = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(place(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_every_module_of_the_data_path_has_the_test_file_of_its_name():
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    compiled = sorted({module.resolve() for module in compiled_modules()})
    assert compiled
    missing = [place(module) for module in compiled if f"test_{module.stem}" not in tests]
    assert not missing, "\n".join(chain(["no test file of the name of:"], missing))
