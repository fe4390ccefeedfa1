"""Times jobs in pairs on the two sides of a benchmark, and reports the findings."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import Sides
from sluice.protocol.errors import SluiceError
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from benchmarks.sides import Pair


@dataclass(slots=True)
class Findings:
    """The findings of the runs, by the name of a figure."""

    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def report(self, name: str, versions: dict[str, str]) -> Report:
        """Figures by the contract of all benchmarks: medians of the ratios of the pairs."""
        figures, spread = {}, {}
        for figure, pairs in self.pairs.items():
            figures[figure], spread[figure] = median_and_spread([pair.ratio for pair in pairs])
        return Report(
            name=name,
            figures=figures,
            runs=[
                {
                    "job": figure,
                    "own_seconds": pair.own_seconds,
                    "sluice_seconds": pair.sluice_seconds,
                    "ratio": pair.ratio,
                    "own_cpu_seconds": pair.own_cpu_seconds,
                    "sluice_cpu_seconds": pair.sluice_cpu_seconds,
                    "taskmanagers_cpu_seconds": pair.taskmanagers_cpu_seconds,
                    "taskmanagers_messages": pair.taskmanagers_messages,
                    "taskmanagers_wake_ups": pair.taskmanagers_wake_ups,
                    "taskmanagers_read_gb": pair.taskmanagers_read_gb,
                }
                for figure, pairs in self.pairs.items()
                for pair in pairs
            ],
            spread=spread,
            versions=versions,
        )


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job with its parameters; ``mode`` is added to them."""

    job: str
    parameters: Mapping[str, Any]
    warm_ups: int = 1
    """Untimed pairs; a short job needs more of them before both JVMs have compiled it."""


def measure(
    sides: Sides,
    console: Console,
    jobs: Mapping[str, TimedJob],
    pairs: int,
    time_limit_seconds: float,
) -> Findings:
    """Compare and time the jobs, by the names of their figures.

    Each job runs once on both sides to compare its results, then to warm up, then in timed
    pairs in which the sides begin in turn. There are fewer pairs, at least one, when time runs out.
    """
    deadline = time.monotonic() + time_limit_seconds
    findings = Findings()
    for figure, timed_job in jobs.items():
        checking = {"mode": "check", **timed_job.parameters}
        timing = {"mode": "time", **timed_job.parameters}
        found = sides.check(f"{figure} check", timed_job.job, checking)
        findings.problems += [f"{figure}: {difference}" for difference in found]
        for number in range(timed_job.warm_ups):
            own_first = number % 2 == 0
            sides.pair(f"{figure} warm-up {number}", timed_job.job, timing, own_first=own_first)
        timed = findings.pairs.setdefault(figure, [])
        for number in with_bar(range(pairs), figure, console):
            if timed and time.monotonic() > deadline:
                missing = f"{number} pairs instead of {pairs}, {time_limit_seconds:g} s are over"
                findings.problems.append(f"{figure}: {missing}")
                break
            own_first = number % 2 == 0
            pair = sides.pair(f"{figure} {number}", timed_job.job, timing, own_first=own_first)
            timed.append(pair)
            console.print(
                f"  {figure:<13} Spark {pair.own_seconds:6.2f} s"
                f"   Sluice {pair.sluice_seconds:6.2f} s   ratio {pair.ratio:.3f}"
                f"   CPU {pair.own_cpu_seconds:.1f} s, {pair.sluice_cpu_seconds:.1f} s"
                f" ({pair.taskmanagers_cpu_seconds:.1f} s of TaskManagers)"
                f"   {pair.taskmanagers_messages:.0f} messages, {pair.taskmanagers_wake_ups:.0f}"
                f" wake-ups for {pair.taskmanagers_read_gb:.2f} GB",
                soft_wrap=True,
            )
    return findings


def run(
    name: str,
    jobs: Mapping[str, TimedJob],
    *,
    pairs: int,
    time_limit_seconds: float,
    aims: Mapping[str, str] | None = None,
    memory_tier: str = "512 MiB",
    tcp: bool = False,
) -> int:
    """Run a whole benchmark of that name: measure, print, write the results file.

    Returns:
        The exit code: 1 when results differ or a process failed.
    """
    stop_on_termination()
    console = open_console()
    prefix = f"sluice-{name.split('_')[0]}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        sides = Sides(Path(scratch), {}, memory_tier=memory_tier, tcp=tcp)
        try:
            with sides:
                if sides.baseline.file is not None:
                    console.print(f"Baseline: settings of {sides.baseline.file}")
                findings = measure(sides, console, jobs, pairs, time_limit_seconds)
                versions = {"spark": sides.own.spark_version}
        except (SluiceError, RuntimeError, OSError) as error:
            title = f"bench-{name.replace('_', '-')}"
            console.print(f"{title} failed: {error}", style="red", markup=False)
            return 1
    report = findings.report(name, versions)
    report.show(console, aims)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    for problem in findings.problems:
        console.print(problem, style="red", markup=False)
    return 1 if findings.problems else 0
