"""The table of cases that a run prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_COUNTED = 110
_HEAD = ("case", "result", "seconds", "counted")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case.

    Attributes:
        name: Name of the case.
        seconds: How long it took.
        counted: Its counts, or the first line of the failure.
        passed: Whether its claim holds.
    """

    name: str
    seconds: float
    counted: str
    passed: bool


def render(results: Sequence[CaseResult]) -> str:
    """Return a table with a line for each case."""
    rows = [_HEAD]
    rows += [
        (
            each.name,
            "passed" if each.passed else "FAILED",
            f"{each.seconds:.0f}",
            _short(each.counted),
        )
        for each in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = []
    for name, result, seconds, counted in rows:
        cells = (name.ljust(widths[0]), result.ljust(widths[1]), seconds.rjust(widths[2]), counted)
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_COUNTED else f"{text[: _MAX_COUNTED - 1]}…"
