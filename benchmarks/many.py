"""bench-many: small applications beside a large one, over Spark's own shuffle.

Each side runs alone, in turn: a cluster with a large application on two executors, and small ones
on one each, all of one core. At each step the large one repartitions ``--gigabytes`` while 1, 4 or
8 small ones aggregate a few hundred thousand rows, ``--queries`` times each, one after the other.
All jobs run once before, to warm up and to compare the rows of both sides.

* ``total_N``: time of a step, until the last application is done, with N small ones.
* ``small_p99_N``: the 99th percentile of the times of the small ones' queries, over all rounds.
* ``total``, ``small_p99``: the worst of all steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import side_in_child
from benchmarks.spill import percentile
from sluice.spark_integration import spark_conf
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster, installed_spark
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDES: Final = ("own", "sluice")
JOB_TIMEOUT_SECONDS: Final = 900.0
ROW_BYTES: Final = 1000
"""About what a row of a repartition takes in the shuffle."""
SMALL_QUERY: Final = {"rows": 300_000, "keys": 100_000, "maps": 4, "reducers": 4}
SMALL_SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": "1",
}
LARGE_SETTINGS: Final = SMALL_SETTINGS | {"spark.executor.memory": "1g", "spark.cores.max": "2"}
AIMS: Final = {"total": "≤ 0.9", "small_p99": "≤ 0.9"}


# ---- one side ------------------------------------------------------------------------------------


def run_side(options: argparse.Namespace) -> None:
    """Run all steps on one side; print the findings of each as a line."""
    steps = [int(number) for number in options.applications.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-many-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as running,
    ):
        directory = Path(scratch)
        # Each worker has an executor of the large application, and half of the small ones.
        cores = 1 + -(-max(steps) // 2)
        cluster = running.enter_context(
            StandaloneCluster(directory, cores=cores, memory=f"{cores}g")
        )
        with_sluice: dict[str, str] = {}
        if options.side == "sluice":
            taskmanagers = Daemons(
                directory / "tm",
                hosts=cluster.hosts,
                authenticated=True,
                memory_tier_bytes=options.memory_tier,
            )
            running.enter_context(taskmanagers)
            with_sluice = spark_conf(taskmanagers.endpoints, installed_spark().version)
            with_sluice |= taskmanagers.credentials

        def start(name: str, settings: dict[str, str]) -> SparkApplication:
            application = SparkApplication(
                name, cluster.master_url, settings | with_sluice, directory
            )
            return running.enter_context(application)

        large = start("large", LARGE_SETTINGS)
        small = [start(f"small{number}", SMALL_SETTINGS) for number in range(max(steps))]
        repartition = {"rows": round(options.gigabytes * 1e9 / ROW_BYTES), "maps": 16}
        repartition["reducers"] = 32
        checked = [query(large, "repartition", {**repartition, "mode": "check"})[1]]
        checked += [query(each, "aggregate", {**SMALL_QUERY, "mode": "check"})[1] for each in small]
        for number in steps:
            found = run_step(large, small[:number], repartition, options.queries)
            found |= {"side": options.side, "applications": number, "digests": checked}
            print(json.dumps(found))
            sys.stdout.flush()


def query(application: SparkApplication, job: str, parameters: dict[str, Any]) -> tuple[float, str]:
    """Run a job; return its seconds and the digest of its rows."""
    record = application.run(job, job, parameters, timeout_seconds=JOB_TIMEOUT_SECONDS)
    return record.seconds, record.digest


def run_step(
    large: SparkApplication,
    small: Sequence[SparkApplication],
    repartition: dict[str, Any],
    queries: int,
) -> dict[str, Any]:
    """Run all applications at once; return the seconds of each query and of the whole step."""

    def repeated(application: SparkApplication) -> list[float]:
        timed = {**SMALL_QUERY, "mode": "time"}
        return [query(application, "aggregate", timed)[0] for _ in range(queries)]

    began = time.monotonic()
    with ThreadPoolExecutor(1 + len(small)) as threads:
        moved = threads.submit(query, large, "repartition", {**repartition, "mode": "time"})
        times = list(threads.map(repeated, small))
        large_seconds, _ = moved.result()
    return {
        "seconds": time.monotonic() - began,
        "large_seconds": large_seconds,
        "small_seconds": [seconds for of_one in times for seconds in of_one],
    }


# ---- both sides ----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both sides in turn, as often as there are rounds; return their findings.

    Raises:
        RuntimeError: A side failed, or the sides have different rows.
    """
    chosen = {
        name: getattr(options, name)
        for name in ("applications", "gigabytes", "memory_tier", "queries")
    }
    runs: list[dict[str, Any]] = []
    for number in with_bar(range(options.rounds), "rounds"):
        found: dict[str, list[dict[str, Any]]] = {}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            found[side] = side_in_child("many", {**chosen, "side": side})
        for own, ours in zip(found["own"], found["sluice"], strict=True):
            if own["digests"] != ours["digests"]:
                raise RuntimeError("the rows of the two sides differ")
            runs += [{"round": number, **run} for run in (own, ours)]
    return runs


def report_of(runs: Sequence[dict[str, Any]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for number in dict.fromkeys(run["applications"] for run in runs):
        own, ours = (
            [run for run in runs if (run["side"], run["applications"]) == (side, number)]
            for side in SIDES
        )
        ratios = [b["seconds"] / a["seconds"] for a, b in zip(own, ours, strict=True)]
        figures[f"total_{number}"], spread[f"total_{number}"] = median_and_spread(ratios)
        slowest = [
            percentile([seconds for run in side for seconds in run["small_seconds"]])
            for side in (own, ours)
        ]
        figures[f"small_p99_{number}"] = slowest[1] / slowest[0]
    worst = {
        key: max(value for name, value in figures.items() if name.startswith(f"{key}_"))
        for key in AIMS
    }
    return Report("many", worst | figures, runs, spread)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when a side fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--applications", default="1,4,8", help="small ones of each step")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the large one (default 1)")
    parser.add_argument("--queries", type=int, default=10, help="of each small one (default 10)")
    parser.add_argument("--memory-tier", default="512 MiB", help="of each TaskManager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    stop_on_termination()
    if options.side is not None:
        run_side(options)
        return 0
    console = open_console()
    try:
        runs = measure(options)
    except (RuntimeError, OSError) as error:
        console.print(f"bench-many failed: {error}", style="red", markup=False)
        return 1
    for run in runs:
        console.print({key: run[key] for key in ("side", "applications", "seconds")})
    report = report_of(runs)
    report.show(console, AIMS)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
