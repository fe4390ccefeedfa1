"""The behaviour cases of the network stack, and which test covers which.

A test says so itself, with ``@pytest.mark.network_case(3, 11)``; a module whose tests all belong to
a case says ``pytestmark = pytest.mark.network_case(25)``. The markers are read from the sources
without importing them. ``python -m tools.docs.network_cases`` writes the page, and so does
``make docs``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "network-cases.md"
MARKER = "network_case"


class Case(NamedTuple):
    """One behaviour that must hold."""

    number: int
    text: str


AREAS: dict[str, tuple[Case, ...]] = {
    "Credit": (
        Case(1, "Data of no bytes is legal: it counts in sequence and backlog, its credit returns"),
        Case(2, "After data with a backlog of 2, a channel requires 2 beyond its initial credit"),
        Case(3, "Floating buffers meet the backlog while there are some; one listener awaits more"),
        Case(4, "Data that finds no free buffer fails its channel; connection and others live on"),
        Case(5, "One AddCredit a channel and turn; what an unwritable socket holds back is summed"),
        Case(6, "A released channel announces nothing; without reuse the last one says goodbye"),
        Case(7, "Data of a removed channel is dropped, its sender is told, no segment is lost"),
        Case(8, "As many data buffers go out as there is credit, and none without"),
        Case(9, "An event needs no credit"),
        Case(10, "Behind a blocking event everything waits until consumption is resumed"),
        Case(11, "A channel never holds more than it requires; its surplus floats on to others"),
        Case(12, "A gap in the sequence numbers comes out of the channel's next read"),
    ),
    "Requests and connections": (
        Case(13, "A partition nobody registers is an error that names the channel, by deadline"),
        Case(14, "A reader with nothing to send does not hold up the one behind it"),
        Case(15, "A cancelled reader is gone, its view released once, the partition still there"),
        Case(16, "A failed request costs its channel, a lost connection each of its channels"),
        Case(17, "Users that connect at once share one connection; failures are not remembered"),
        Case(18, "However the byte stream is cut, the same messages come out"),
        Case(19, "Each message survives encoding and decoding, with the extremes of every field"),
        Case(20, "TLS admits who is trusted and nobody else; bad settings fail at start"),
        Case(21, "A request that comes before its partition is served when that is registered"),
    ),
    "Pools": (
        Case(22, "Segments are shared out evenly among pools and exclusive requests, as they come"),
        Case(
            23, "A demand beyond the total is an error with numbers; a late request takes nothing"
        ),
        Case(24, "Pools shrink as buffers return, serve each listener once and bound what is lent"),
        Case(25, "Whatever coincides, all segments are in the network pool at the end"),
    ),
    "Subpartitions, builders, records": (
        Case(26, "A consumer sees what its builder committed; its copies read independently"),
        Case(27, "One notification for what is new; backlog counts what can be consumed; one view"),
        Case(28, "Records of any size cross segments of any size unchanged, spilled or not"),
        Case(29, "Broadcast and single-channel output keep the order of each channel"),
        Case(30, "A finished partition serves many readers alike; trouble is an error, not a hang"),
        Case(31, "A priority event overtakes the data that waits; the rest stays in order"),
        Case(32, "A gate reads its channels in turn, each until its end and never after it"),
    ),
}

PENDING: frozenset[int] = frozenset()
"""Cases that no test covers yet; empty when the network stack is whole."""


def covering() -> dict[int, list[tuple[str, str]]]:
    """Return, for each number in a marker, the file and the name of every test that has it."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if MARKER in source:
            for name, number in _marked(ast.parse(source)):
                tests = found.setdefault(number, [])
                if (test := (path.relative_to(ROOT).as_posix(), name)) not in tests:
                    tests.append(test)
    return found


def page() -> str:
    """Return docs/internals/network-cases.md."""
    tests = covering()
    lines = [
        "# Behaviour of the network stack, case by case",
        "",
        "What must hold whatever the implementation, and the tests that show it. A test names its",
        "cases with the marker `network_case`; this page is generated by `make docs`.",
    ]
    for area, cases in AREAS.items():
        lines += ["", f"## {area}", "", "| case | behaviour | tests |", "|---|---|---|"]
        lines += [
            f"| {case.number} | {case.text} | {_cell(tests.get(case.number, []))} |"
            for case in cases
        ]
    return "\n".join(lines) + "\n"


def _cell(tests: list[tuple[str, str]]) -> str:
    files: dict[str, list[str]] = {}
    for file, name in tests:
        files.setdefault(file, []).append(name)
    return "<br>".join(
        f"`{file}`: {', '.join(f'`{n}`' for n in names)}" for file, names in files.items()
    )


def _marked(node: ast.AST, owner: str = "") -> Iterator[tuple[str, int]]:
    """Yield the name of each marked thing with each number of its markers, in source order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{owner}{child.name}"
            for decorator in child.decorator_list:
                yield from ((name, number) for number in _numbers(decorator))
            if isinstance(child, ast.ClassDef):
                yield from _marked(child, f"{name}::")
        elif isinstance(child, ast.Assign) and _names(child) == ["pytestmark"]:
            yield from ((f"{owner}all", number) for number in _numbers(child.value))


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _numbers(node: ast.expr) -> list[int]:
    """Return the numbers of a marker, or of the markers in a list of them."""
    if isinstance(node, ast.List | ast.Tuple):
        return [number for element in node.elts for number in _numbers(element)]
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == MARKER
    ):
        return []
    numbers: list[int] = []
    for argument in node.args:
        if not (isinstance(argument, ast.Constant) and type(argument.value) is int):
            raise ValueError(f"Line {node.lineno}: {MARKER} takes numbers written out")
        numbers.append(argument.value)
    return numbers


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
