"""`make bench-realtime`: latency of records through the shuffle of a real-time query (Spark 4.3).

Two executors of two cores, a source of two tasks, a stateful aggregation of two. Records are sent
one by one at a steady pace; each one's latency is taken where its key has been counted, behind the
shuffle. Both sides run the query in turn, in one batch that is longer than the sending: starts of
batches, which cost the same on both sides, are not in the figures. The first query of each side
warms up, and its counts are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report, open_console
from benchmarks.sides import Sides
from sluice.protocol.errors import SluiceError
from tests.support.jobs.realtime import SETTINGS
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.application import SparkApplication

TICK_MILLIS = 20
WARM_UP_SECONDS = 10
"""The first records find a query that is still starting, and code that is not compiled."""
JOB_TIMEOUT_SECONDS = 300.0


def query(seconds: float, per_tick: int, mode: str) -> dict[str, Any]:
    """Parameters of the job: ``seconds`` of records behind the warm-up."""
    ticks = 1000 // TICK_MILLIS
    sending = WARM_UP_SECONDS + seconds
    return {
        "mode": mode,
        "records": round(sending * ticks * per_tick),
        "warm_up": WARM_UP_SECONDS * ticks * per_tick,
        "per_tick": per_tick,
        "tick_millis": TICK_MILLIS,
        "keys": 7,
        "record_bytes": 0,
        "row_millis": 0,
        "maps": 2,
        "batch_seconds": round(sending) + 10,
    }


def latencies(side: SparkApplication, parameters: dict[str, Any]) -> list[float]:
    """Return the milliseconds of each record, in order of size."""
    with tempfile.NamedTemporaryFile(dir=side.directory) as file:
        path = Path(file.name)
        side.run(
            "latency", "realtime", parameters, rows_file=path, timeout_seconds=JOB_TIMEOUT_SECONDS
        )
        lines = path.read_text(encoding="utf-8").splitlines()
    return sorted(json.loads(line)[0] / 1000 for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    settings = SETTINGS | {"spark.sluice.pipelined.enabled": "true"}
    if options.flush_millis is not None:
        settings |= {
            "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": str(options.flush_millis),
            "spark.sluice.pipelined.flushInterval": f"{options.flush_millis}ms",
        }
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sluice-", ignore_cleanup_errors=True) as scratch:
        sides = Sides(Path(scratch), settings, memory_tier="64 MiB", executor_cores=2)
        try:
            with sides:
                before = sides.taskmanagers.moved()
                problems = sides.check("check", "realtime", query(5, options.per_tick, "state"))
                moved = sides.taskmanagers.moved() - before
                if not moved.read_bytes:
                    problems.append("nothing went through the TaskManagers")
                for number in with_bar(range(options.pairs), "pairs", console):
                    order = (sides.own, sides.sluice)
                    for side in order if number % 2 == 0 else order[::-1]:
                        found = latencies(side, query(options.seconds, options.per_tick, "latency"))
                        run = {"side": side.name, "records": len(found)} | {
                            f"p{percent}_ms": found[len(found) * percent // 100]
                            for percent in (50, 90, 99)
                        }
                        runs.append(run)
                        console.print(run)
                versions = {"spark": sides.own.spark_version}
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"bench-realtime failed: {error}", style="red", markup=False)
            return 1
    report = _report(runs, versions)
    report.show(console, {"p50_ratio": "≤ 1.0", "p99_ratio": "reported"})
    console.print(f"Written: {report.write()}", soft_wrap=True)
    for problem in problems:
        console.print(problem, style="red", markup=False)
    return 1 if problems else 0


def _report(runs: list[dict[str, Any]], versions: dict[str, str]) -> Report:
    """Medians over the runs of each side, and of the ratios of its pairs."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for key in ("p50", "p90", "p99"):
        of = {
            side: [run[f"{key}_ms"] for run in runs if run["side"] == side]
            for side in ("own", "sluice")
        }
        for side, values in of.items():
            figures[f"{side}_{key}_ms"] = statistics.median(values)
        ratios = [ours / own for ours, own in zip(of["sluice"], of["own"], strict=True)]
        figures[f"{key}_ratio"] = statistics.median(ratios)
        spread[f"{key}_ratio"] = (min(ratios), max(ratios))
    return Report(name="realtime", figures=figures, runs=runs, spread=spread, versions=versions)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.realtime", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of records in a run (default 20)"
    )
    parser.add_argument(
        "--flush-millis",
        type=int,
        help="longest time in an open buffer, of both sides (default: 50 for Spark's own, 5)",
    )
    parser.add_argument(
        "--per-tick",
        type=int,
        default=1,
        help=f"records sent together, every {TICK_MILLIS} ms (default 1)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
