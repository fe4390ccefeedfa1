"""Rules of the house: sizes of files, numbers of parameters, names of tests, lines of prose."""

from __future__ import annotations

import ast
import re
import statistics
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.compiled_modules import compiled_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
LONGEST_FILE = 450
LEAST_MEDIAN = 150
MOST_PARAMETERS = 7
LONGEST_LINE = 100

MORE_PARAMETERS = {
    "shuffle/client/shuffle_environment.py: open_result_partition": "options of the user's API",
    "shuffle/client/sync.py: open_result_partition": "the same options, without asyncio",
}
"""Functions that may take more than MOST_PARAMETERS, and the reason."""

TEXTS = ("*.py", "*.md", "*.java", "*.toml", "*.yml", "*.yaml", "*.sh", "Makefile", "Dockerfile")
FOLDERS = (
    "protocol",
    "transport",
    "shuffle",
    "spark_integration",
    "tests",
    "benchmarks",
    "examples",
    "docker",
    "docs",
    "changes",
)
_NUMBERS = r"[ACDEFMPRSTX]\d{1,2}(?:(?:, | and | to |–)[ACDEFMPRSTX]\d{1,2})*"
FOREIGN_REFERENCES = re.compile(
    rf"\((?:[a-z ]+ )?{_NUMBERS}[),;]"  # a row of a table, as (X1) or (X3 to X5)
    rf"|^\W*{_NUMBERS}: "  # the same in front of a sentence
    rf"|{_NUMBERS} of the (?:acceptance )?table"
    r"|\b[Aa]cceptance (?:table|row|criteri)"
    r"|\b[Ii]ssue #?\d"
    r"|(?:^|[\s(])#\d{1,4}(?:[\s).,:;]|$)"
)
"""References to lists that are not in the repository."""

NO_PROSE = re.compile(
    r"\s*(?:\||<!--|\[[^\]]+\]: )"  # a row of a table, a comment, the target of a link
    r"|.*(?:\]\(|https?://)"  # a line with a link cannot always be broken
)


def files(*patterns: str) -> list[Path]:
    """Return the files of the repository's own folders, and those beside them."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    for folder in FOLDERS:
        for pattern in patterns:
            found.update((ROOT / folder).rglob(pattern))
    return sorted(path for path in found if not {"target", "node_modules"} & set(path.parts))


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def sources() -> list[Path]:
    layers = ("protocol", "transport", "shuffle")
    return [
        *(path for layer in layers for path in sorted((ROOT / layer).rglob("*.py"))),
        *sorted((ROOT / "spark_integration").glob("*.py")),
    ]


def test_no_file_is_too_long_to_be_read_at_once():
    lengths = {place(path): len(lines_of(path)) for path in sources()}
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


def test_files_are_not_cut_too_thin():
    lengths = [
        len(lines_of(path))
        for path in (ROOT / "shuffle").rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert statistics.median(lengths) > LEAST_MEDIAN


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_parameters_that_belong_together_are_grouped():
    found = {
        f"{place(path)}: {node.name}": len(parameters(node))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len(parameters(node)) > MOST_PARAMETERS
    }
    assert not {name: count for name, count in found.items() if name not in MORE_PARAMETERS}
    assert not MORE_PARAMETERS.keys() - found.keys(), "exceptions that are not needed any more"


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ('"""The picture of the network stack (P15, M11)."""', True),
        ('"""The flusher is in time (F3 to F5)."""', True),
        ('"""C1: without credit it stops everybody."""', True),
        ("Shared by all its users (T3, T4 of the acceptance table).", True),
        ("Found in issue 12.", True),
        ("- Connections are shared (#12)", True),
        ("Notifications and backlog (F6, case 27)", True),
        ("The element of a Cauchy matrix (row 3, column 4).", False),
        ("network-case 17 with real connections", False),
        ('color = "#0072b2"', False),
        ("def applyOrElse[A1 <: Any, B1](message: A1, otherwise: A1 => B1): B1", False),
    ],
)
def test_a_reference_is_told_from_other_text(line, is_foreign):
    assert bool(FOREIGN_REFERENCES.search(line)) == is_foreign


def test_nothing_refers_to_lists_that_are_not_in_the_repository():
    wrong = [
        f"{place(path)}:{number}: {line.strip()}"
        for path in files(*TEXTS)
        if path != Path(__file__).resolve()
        for number, line in enumerate(lines_of(path), 1)
        if FOREIGN_REFERENCES.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, with their numbers, that are neither code nor tables nor links."""
    fence = ""
    for number, line in enumerate(lines_of(path), 1):
        begins = re.match(r"\s*(`{3,}|~{3,})", line)
        if begins and not fence:
            fence = begins[1]
        elif begins and begins[1].startswith(fence):
            fence = ""
        elif not fence and not NO_PROSE.match(line):
            yield number, line


def test_lines_of_prose_are_short():
    wrong = [
        f"{place(path)}:{number}: {len(line)} columns"
        for path in files("*.md")
        for number, line in prose(path)
        if len(line) > LONGEST_LINE
    ]
    assert not wrong, "\n".join(wrong)


def test_code_tables_and_links_are_no_prose(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A sentence.\n```text\ncode\n```\n| a | b |\n[x](y)\nAnother sentence.\n")
    assert list(prose(page)) == [(1, "A sentence."), (7, "Another sentence.")]


def test_every_module_of_the_data_path_has_the_test_file_of_its_name():
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    compiled = sorted({module.resolve() for module in compiled_modules()})
    assert compiled
    missing = [place(module) for module in compiled if f"test_{module.stem}" not in tests]
    assert not missing, "\n".join(chain(["no test file of the name of:"], missing))
