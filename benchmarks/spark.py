"""`make bench-spark`: four jobs, wall time with Sluice over wall time with Spark's own shuffle.

Two one-core executors. Each job runs once on both sides to compare what it computes and once more
to warm up; then pairs of runs are timed, the sides beginning in turn. The figure of a job is the
median of the ratios of its pairs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import stop_on_termination
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import BASELINE_CONF_VARIABLE, Pair, Sides
from protocol.errors import SluiceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

AIMS = {
    "repartition": "≤ 0.95",
    "aggregate": "≤ 1.0",
    "sort": "≤ 0.95",
    "small_blocks": "≤ 0.8",
}
TIME_LIMIT_SECONDS = 1800.0


def sizes(scale: float) -> dict[str, dict[str, int]]:
    """Parameters of each job; ``scale`` 1 is the benchmark, less is a quick look.

    Rows shrink in proportion. The tasks of ``small_blocks`` shrink with the square root, so that
    its blocks stay as small as they are.
    """
    side = max(round(1000 * math.sqrt(scale)), 2)
    return {
        "repartition": {"rows": round(2_000_000 * scale), "maps": 16, "reducers": 64},
        "aggregate": {
            "rows": round(20_000_000 * scale),
            "keys": round(10_000_000 * scale),
            "maps": 16,
            "reducers": 32,
        },
        "sort": {"rows": round(10_000_000 * scale), "maps": 16, "reducers": 32},
        "small_blocks": {"rows": round(4_000_000 * scale), "maps": side, "reducers": side},
    }


@dataclass(slots=True)
class Findings:
    """What the runs gave."""

    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def report(self, versions: dict[str, str]) -> Report:
        """Figures by the contract of all benchmarks."""
        figures, spread = {}, {}
        for job, pairs in self.pairs.items():
            figures[job], spread[job] = median_and_spread([pair.ratio for pair in pairs])
        return Report(
            name="spark",
            figures=figures,
            runs=[
                {
                    "job": job,
                    "own_seconds": pair.own_seconds,
                    "sluice_seconds": pair.sluice_seconds,
                    "ratio": pair.ratio,
                }
                for job, pairs in self.pairs.items()
                for pair in pairs
            ],
            spread=spread,
            versions=versions,
        )


def measure(
    sides: Sides,
    console: Console,
    jobs: dict[str, dict[str, int]],
    pairs: int,
    time_limit_seconds: float,
) -> Findings:
    """Compare and time the jobs; a job gets fewer pairs, at least one, when time runs out."""
    deadline = time.monotonic() + time_limit_seconds
    findings = Findings()
    for job, job_sizes in jobs.items():
        checking: dict[str, Any] = {"mode": "check", **job_sizes}
        timing: dict[str, Any] = {"mode": "time", **job_sizes}
        found = sides.check(f"{job} check", job, checking)
        findings.problems += [f"{job}: {difference}" for difference in found]
        sides.pair(f"{job} warm-up", job, timing, own_first=True)
        timed = findings.pairs.setdefault(job, [])
        for number in range(pairs):
            if timed and time.monotonic() > deadline:
                findings.problems.append(
                    f"{job}: {number} pairs instead of {pairs}, {time_limit_seconds:g} s are over"
                )
                break
            pair = sides.pair(f"{job} {number}", job, timing, own_first=number % 2 == 0)
            timed.append(pair)
            console.print(
                f"  {job:<13} Spark {pair.own_seconds:6.2f} s   Sluice {pair.sluice_seconds:6.2f} s"
                f"   ratio {pair.ratio:.3f}",
                soft_wrap=True,
            )
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    jobs = {job: value for job, value in sizes(options.scale).items() if job in options.jobs}
    with tempfile.TemporaryDirectory(prefix="sluice-spark-", ignore_cleanup_errors=True) as scratch:
        sides = Sides(Path(scratch), {}, memory_tier=options.memory_tier)
        if sides.baseline_conf is not None:
            console.print(f"Baseline: settings of {sides.baseline_conf}")
        try:
            with sides:
                findings = measure(sides, console, jobs, options.pairs, options.time_limit_seconds)
                versions = {"spark": sides.own.spark_version}
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"bench-spark failed: {error}", style="red", markup=False)
            return 1
    report = findings.report(versions)
    report.show(console, AIMS if options.scale == 1 else None)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    for problem in findings.problems:
        console.print(problem, style="red", markup=False)
    return 1 if findings.problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        epilog=f"{BASELINE_CONF_VARIABLE}=FILE: settings of another baseline (spark-defaults).",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default 1)")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per job (default 5)")
    parser.add_argument(
        "--jobs", type=_names, default=tuple(AIMS), help=f"of {','.join(AIMS)} (default all)"
    )
    parser.add_argument(
        "--memory-tier", default="512 MiB", help="of each TaskManager (default %(default)s)"
    )
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in AIMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such job: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
