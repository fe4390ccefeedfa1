"""bench-tpch takes rounds of queries and makes figures of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import tpch
from benchmarks.sides import Pair

SECONDS = {3: Pair(own_seconds=1.0, sluice_seconds=0.5), 5: Pair(3.0, 3.5)}


class ScriptedSides:
    """Stands in for two applications: answers from a script and keeps the requests."""

    def __init__(self, different: tuple[int, bool] | None = None) -> None:
        self.different = different
        self.asked: list[tuple[str, bool | None]] = []

    def check(self, name: str, job: str, parameters: dict[str, Any]) -> list[str]:
        assert (job, parameters["data"]) == ("tpch", "tables")
        self.asked.append((name, None))
        different = (parameters["query"], parameters["adaptive"]) == self.different
        return ["row 1: ..."] if different else []

    def pair(self, name: str, job: str, parameters: dict[str, Any], *, own_first: bool) -> Pair:
        assert (job, parameters["data"]) == ("tpch", "tables")
        self.asked.append((name, own_first))
        return SECONDS[parameters["query"]]


def run(
    sides: ScriptedSides,
    rounds: int,
    time_limit_seconds: float = 60.0,
    modes: tuple[str, ...] = ("on", "off"),
) -> tpch.Findings:
    console = Console(file=io.StringIO())
    return tpch.measure(
        sides,  # type: ignore[arg-type]
        console,
        (3, 5),
        Path("tables"),
        rounds,
        time_limit_seconds,
        modes,
    )


def test_a_warm_up_comes_before_rounds_in_which_the_sides_begin_in_turn():
    sides = ScriptedSides()
    findings = run(sides, 2, modes=("on",))
    assert sides.asked == [
        ("q03 check on", None),
        ("q05 check on", None),
        ("q03 0 on", True),
        ("q05 0 on", False),
        ("q03 1 on", False),
        ("q05 1 on", True),
    ]
    assert findings.problems == []


def test_both_modes_take_turns():
    sides = ScriptedSides()
    run(sides, 2)
    assert [name for name, _ in sides.asked if name.startswith("q03")] == [
        "q03 check on",
        "q03 check off",
        "q03 0 on",
        "q03 0 off",
        "q03 1 on",
        "q03 1 off",
    ]


def test_results_that_differ_in_one_mode_are_a_problem_and_not_counted():
    findings = run(ScriptedSides(different=(5, False)), 1)
    assert findings.problems == ["q05, adaptive off: row 1: ..."]
    assert findings.report("tpch", {}).figures["queries_equal"] == 1


def test_one_round_is_taken_even_when_time_is_over_and_the_shortage_is_reported():
    findings = run(ScriptedSides(), 3, time_limit_seconds=-1)
    assert [len(rounds) for rounds in findings.rounds.values()] == [1, 1]
    assert findings.problems == ["1 of 3 rounds, -1 s are over"]


@pytest.mark.parametrize(
    "wrong", [["--queries", "0"], ["--queries", "1,23"], ["--rounds", "0"], ["--adaptive", "maybe"]]
)
def test_wrong_options_are_reported(wrong: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        tpch.main(wrong)
    told = capsys.readouterr().err
    reasons = ("TPC-H has queries 1 to 22", "at least one", "invalid choice")
    assert any(reason in told for reason in reasons)
