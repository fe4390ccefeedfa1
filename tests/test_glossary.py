"""The glossary names files and classes that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "internals" / "glossary.md"
CODE = re.compile(r"`([^`]+)`")


def rows(columns: int) -> list[list[str]]:
    """Return the cells of all rows of tables with that number of columns."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| Flink |")
    ]
    return [row for row in cells if len(row) == columns]


@functools.cache
def defined_in(path: Path) -> frozenset[str]:
    """Return names that a Python file defines: of the module, and of its classes as Class.name."""
    names: set[str] = set()

    def add(node: ast.stmt, prefix: str) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(prefix + node.name)
        elif isinstance(node, ast.Assign):
            names.update(prefix + t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(prefix + node.target.id)
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                add(child, f"{node.name}.")

    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        add(node, "")
    return frozenset(names)


def test_every_row_has_its_cells():
    counted = len(rows(4)) + len(rows(2))
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert counted == sum(
        line.startswith("| ") and not line.startswith("| Flink |") for line in lines
    )
    assert all(term and here and file for term, here, file, _ in rows(4))
    assert all(term and reason for term, reason in rows(2))


def test_every_file_exists_and_every_name_is_defined_in_its_files():
    wrong = []
    for _, here, files, _ in rows(4):
        paths = [REPOSITORY / name for name in CODE.findall(files)]
        wrong += [str(path) for path in paths if not path.is_file()]
        known: set[str] = {path.name for path in paths}
        for path in paths:
            if path.suffix == ".py" and path.is_file():
                known |= defined_in(path)
        wrong += [name for name in CODE.findall(here) if name not in known]
    assert not wrong
    assert len(rows(4)) > 90
