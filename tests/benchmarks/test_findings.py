"""Benchmarks take pairs of runs and make figures of them."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from benchmarks.pairs import Findings, TimedJob, measure
from benchmarks.sides import Pair


class ScriptedSides:
    """Stands in for two applications: answers from a script and keeps the requests."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        self.asked: list[tuple[str, str, bool | None]] = []

    def check(self, name: str, job: str, parameters: dict[str, Any]) -> list[str]:
        self.asked.append(("check", parameters["mode"], None))
        return self.differences

    def pair(self, name: str, job: str, parameters: dict[str, Any], *, own_first: bool) -> Pair:
        self.asked.append(("pair", parameters["mode"], own_first))
        return Pair(own_seconds=2.0, sluice_seconds=1.0)


def run(sides: ScriptedSides, pairs: int, time_limit_seconds: float = 60.0) -> Findings:
    console = Console(file=io.StringIO())
    jobs = {"sort": TimedJob("sort", {"rows": 10, "maps": 1, "reducers": 1}, 1)}
    return measure(sides, console, jobs, pairs, time_limit_seconds)  # type: ignore[arg-type]


def test_a_check_and_a_warm_up_come_before_pairs_that_alternate():
    sides = ScriptedSides([])
    findings = run(sides, 3)
    assert sides.asked == [
        ("check", "check", None),
        ("pair", "time", True),
        ("pair", "time", True),
        ("pair", "time", False),
        ("pair", "time", True),
    ]
    assert len(findings.pairs["sort"]) == 3
    assert findings.problems == []


def test_results_that_differ_are_a_problem():
    assert run(ScriptedSides(["row 1: ..."]), 1).problems == ["sort: row 1: ..."]


def test_one_pair_is_taken_even_when_time_is_over_and_the_shortage_is_reported():
    findings = run(ScriptedSides([]), 3, time_limit_seconds=-1)
    assert len(findings.pairs["sort"]) == 1
    assert findings.problems == ["sort: 1 pairs instead of 3, -1 s are over"]
