"""`make bench-tpch`: the 22 TPC-H queries, wall time with Sluice over Spark's own shuffle.

Two one-core executors, broadcast joins off, adaptive execution on and off. A first round of each
runs every query on both sides, compares the rows and warms both up; then rounds are timed, in which
the sides begin in turn with each query. ``total`` is the median over the rounds of the ratio of the
sums of all queries, ``q01`` that of one query; ``_adaptive_off`` stands behind the same figures
without adaptive execution. ``queries_equal`` counts the queries whose rows are equal both ways.

SPARK_PYTHON=PYTHON takes the PySpark of another Python: another line of Spark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import baseline
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import Pair, Sides
from sluice.protocol.errors import SluiceError
from tests.support.jobs.tpch import QUERIES, SETTINGS, query_title
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar
from tests.support.tpch_data import ensure_tpch, warm_page_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

AIMS = {"total": "≤ 0.85", "total_adaptive_off": "≤ 1.0", "queries_equal": str(len(QUERIES))}
TCP_AIMS = AIMS | {"total": "≤ 0.9"}
TIME_LIMIT_SECONDS = 1800.0
MODES = {"on": "", "off": "_adaptive_off"}
"""Adaptive execution on and off, with the suffix of the names of figures."""


@dataclass(frozen=True, slots=True)
class Round:
    """Every query once on both sides."""

    pairs: dict[int, Pair]
    """By the number of the query."""

    @property
    def total(self) -> Pair:
        """Sum the times over all queries."""
        return Pair(*map(sum, zip(*map(astuple, self.pairs.values()), strict=True)))


@dataclass(slots=True)
class Findings:
    """The findings of the rounds, by mode."""

    equal: dict[str, set[int]] = field(default_factory=dict)
    """Queries with the same rows on both sides."""
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def report(self, name: str, versions: dict[str, str]) -> Report:
        """Figures by the contract of all benchmarks."""
        ratios: dict[str, list[float]] = {}
        for mode, rounds in self.rounds.items():
            for round_ in rounds:
                ratios.setdefault(f"total{MODES[mode]}", []).append(round_.total.ratio)
                for query, pair in round_.pairs.items():
                    ratios.setdefault(f"q{query:02}{MODES[mode]}", []).append(pair.ratio)
        # The totals come first: readers look for them.
        keys = sorted(ratios, key=lambda key: not key.startswith("total"))
        medians = {key: median_and_spread(ratios[key]) for key in keys}
        figures: dict[str, float] = {key: median for key, (median, _) in medians.items()}
        figures["queries_equal"] = len(set.intersection(*self.equal.values()))
        return Report(
            name=name,
            figures=figures,
            runs=[
                {
                    "adaptive": mode,
                    "round": number,
                    "query": query,
                    "own_seconds": pair.own_seconds,
                    "sluice_seconds": pair.sluice_seconds,
                    "ratio": pair.ratio,
                }
                for mode, rounds in self.rounds.items()
                for number, round_ in enumerate(rounds)
                for query, pair in round_.pairs.items()
            ],
            spread={key: spread for key, (_, spread) in medians.items()},
            versions=versions,
        )


def measure(
    sides: Sides,
    console: Console,
    queries: Sequence[int],
    data: Path,
    rounds: int,
    time_limit_seconds: float,
    modes: Sequence[str] = tuple(MODES),
) -> Findings:
    """Compare and time the queries; there are fewer rounds, at least one, when time runs out."""
    deadline = time.monotonic() + time_limit_seconds
    findings = Findings()
    for mode in modes:
        equal = findings.equal.setdefault(mode, set())
        for query in queries:
            name = f"q{query:02} check {mode}"
            differences = sides.check(name, "tpch", _parameters(query, data, mode))
            findings.problems += [
                f"q{query:02}, adaptive {mode}: {difference}" for difference in differences
            ]
            if not differences:
                equal.add(query)
        console.print(f"  {len(equal)} of {len(queries)} results are equal, adaptive {mode}")
    for number in with_bar(range(rounds), "rounds", console):
        if findings.rounds and time.monotonic() > deadline:
            findings.problems.append(
                f"{number} of {rounds} rounds, {time_limit_seconds:g} s are over"
            )
            break
        for mode in modes:
            timed = _time_round(sides, console, queries, data, number, mode)
            findings.rounds.setdefault(mode, []).append(timed)
    return findings


def _time_round(
    sides: Sides, console: Console, queries: Sequence[int], data: Path, number: int, mode: str
) -> Round:
    pairs = {}
    for place, query in enumerate(queries):
        pairs[query] = sides.pair(
            f"q{query:02} {number} {mode}",
            "tpch",
            _parameters(query, data, mode),
            own_first=(place + number) % 2 == 0,
        )
        _print_pair(console, f"q{query:02}", pairs[query], query_title(query))
    timed = Round(pairs)
    _print_pair(console, "total", timed.total, f"round {number + 1}, adaptive {mode}")
    return timed


def _parameters(query: int, data: Path, mode: str) -> dict[str, Any]:
    return {"query": query, "data": str(data), "adaptive": mode == "on"}


def _print_pair(console: Console, name: str, pair: Pair, note: str) -> None:
    console.print(
        f"  {name:<5} Spark {pair.own_seconds:7.2f} s   Sluice {pair.sluice_seconds:7.2f} s"
        f"   ratio {pair.ratio:5.3f}   [dim]{note}[/dim]",
        soft_wrap=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    with tempfile.TemporaryDirectory(prefix="sluice-tpch-", ignore_cleanup_errors=True) as scratch:
        sides = Sides(Path(scratch), SETTINGS, memory_tier=options.memory_tier, tcp=options.tcp)
        try:
            console.print(f"TPC-H data, scale factor {options.scale_factor:g}")
            data = ensure_tpch(options.scale_factor)
            warm_page_cache(data)
            with sides:
                if sides.baseline.file is not None:
                    console.print(f"Baseline: settings of {sides.baseline.file}")
                findings = measure(
                    sides,
                    console,
                    options.queries,
                    data,
                    options.rounds,
                    options.time_limit_seconds,
                    options.adaptive,
                )
                versions = {"spark": sides.own.spark_version}
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"bench-tpch failed: {error}", style="red", markup=False)
            return 1
    report = findings.report("tpch_tcp" if options.tcp else "tpch", versions)
    complete = options.scale_factor == 1 and set(options.queries) == set(QUERIES)
    report.show(console, (TCP_AIMS if options.tcp else AIMS) if complete else None)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    for problem in findings.problems:
        console.print(problem, style="red", markup=False)
    return 1 if findings.problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tpch",
        description=__doc__,
        epilog=f"{baseline.VARIABLE}=FILE: settings of another baseline (spark-defaults).",
    )
    parser.add_argument("--scale-factor", type=float, default=1.0, help="of TPC-H (default 1)")
    parser.add_argument("--rounds", type=_positive, default=3, help="timed rounds (default 3)")
    parser.add_argument(
        "--queries",
        type=_numbers,
        default=QUERIES,
        metavar="N,N",
        help="numbers of the queries (default all)",
    )
    parser.add_argument(
        "--memory-tier", default="512 MiB", help="of each TaskManager (default %(default)s)"
    )
    parser.add_argument(
        "--adaptive",
        type=lambda text: tuple(MODES) if text == "both" else (text,),
        default="both",
        choices=[tuple(MODES), *((mode,) for mode in MODES)],
        metavar="on|off|both",
        help="adaptive execution (default both)",
    )
    parser.add_argument("--tcp", action="store_true", help="without Unix sockets, as between pods")
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} rounds: there must be at least one")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    unknown = [str(number) for number in numbers if number not in QUERIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"TPC-H has queries 1 to 22, not {', '.join(unknown)}")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
