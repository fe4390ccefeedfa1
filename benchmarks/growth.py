"""`make bench-growth`: the cost of a shuffle as map tasks, reduce tasks and bytes double.

One Spark application with Sluice, two one-core executors, two TaskManagers. A job sends rows of
about 200 bytes from every map task to every reduce task: one row is one block. Starting from a
square of ``--base`` map and reduce tasks, map tasks, reduce tasks, and rows per block are doubled
twice, each alone; ``exponent_maps``, ``exponent_reducers`` and ``exponent_bytes`` are the slopes of
straight lines through the logarithms of CPU seconds (TaskManagers and tasks). 1 is linear.

Then come squares of ``--squares`` map and reduce tasks: messages, control bytes (without
payloads), gates and resident memory of the TaskManagers. ``exponent_messages`` is the slope over
the side of the square: 1 grows with maps + reducers, 2 with maps × reducers, as the blocks do.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.report import Report, open_console
from benchmarks.sides import EXECUTOR_SETTINGS
from sluice.protocol.errors import SluiceError
from sluice.spark_integration import spark_conf
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster, installed_spark
from tests.support.daemons import Daemons
from tests.support.eventlog import read_event_log
from tests.support.metrics import scrape_samples
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

AIMS = {f"exponent_{what}": "≤ 1.05" for what in ("bytes", "maps", "reducers")}
JOB_TIMEOUT_SECONDS = 400.0
TIME_LIMIT_SECONDS = 1200.0
DOUBLINGS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A job: every map task sends every reduce task this many rows."""

    maps: int
    reducers: int
    rows: int = 1

    @property
    def parameters(self) -> dict[str, int]:
        """Of the job."""
        return {"maps": self.maps, "reducers": self.reducers, "rows_per_block": self.rows}


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run of a job, for all TaskManagers together."""

    messages: float
    """Both directions, each leg once."""
    control_bytes: float
    """Of connections, without payloads."""
    payload_bytes: float
    gates: float
    resident_bytes: int
    """Of the larger TaskManager at the end of the job."""
    taskmanager_cpu_seconds: float
    task_cpu_seconds: float = 0.0
    """Of the threads of Spark's tasks; known once the event log is complete."""

    @property
    def cpu_seconds(self) -> float:
        """Of TaskManagers and tasks."""
        return self.taskmanager_cpu_seconds + self.task_cpu_seconds


def series(base: int) -> dict[str, list[Shape]]:
    """Return the jobs of each series, by the name of the size that doubles."""
    factors = [2**power for power in range(DOUBLINGS + 1)]
    return {
        "maps": [Shape(base * factor, base) for factor in factors],
        "reducers": [Shape(base, base * factor) for factor in factors],
        "bytes": [Shape(base, base, factor) for factor in factors],
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms.

    Raises:
        statistics.StatisticsError: There are fewer than two sizes.
    """
    logarithms = [[math.log(value) for value in values] for values in (sizes, costs)]
    return statistics.linear_regression(*logarithms).slope


class Bench:
    """The application and its TaskManagers, and the costs of their jobs."""

    def __init__(self, application: SparkApplication, taskmanagers: Daemons) -> None:
        self._application = application
        self._taskmanagers = taskmanagers
        self._names = itertools.count()
        self.costs: dict[str, tuple[Shape, Cost]] = {}
        """By the name of the run."""

    def run(self, shape: Shape) -> str:
        """Run a job; return its name."""
        name = f"{next(self._names)}: {shape.maps} x {shape.reducers} x {shape.rows}"
        before, cpu_before = self._samples(), self._taskmanagers.cpu_seconds()
        self._application.run(name, "blocks", shape.parameters, timeout_seconds=JOB_TIMEOUT_SECONDS)
        after, cpu_after = self._samples(), self._taskmanagers.cpu_seconds()
        moved = {key: after[key] - before.get(key, 0.0) for key in after}
        payload = moved["sluice_received_bytes_total producer"] + moved["sluice_sent_bytes_total"]
        cost = Cost(
            messages=moved["sluice_connection_messages_total"],
            # What comes through region areas is on no connection.
            control_bytes=moved["sluice_connection_bytes_total"]
            + moved["sluice_region_area_received_bytes_total"]
            - payload,
            payload_bytes=payload,
            gates=moved["sluice_gates_opened_total"],
            resident_bytes=max(_resident(each.pid) for each in self._taskmanagers),
            taskmanager_cpu_seconds=cpu_after - cpu_before,
        )
        self.costs[name] = shape, cost
        return name

    def _samples(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for name, labels, value in scrape_samples(self._taskmanagers.metrics_urls):
            sums[name] = sums.get(name, 0.0) + value
            if labels.get("leg") == "producer":
                sums[f"{name} producer"] = sums.get(f"{name} producer", 0.0) + value
        return sums


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    (line,) = [field for field in fields if field.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def measure(
    directory: Path,
    console: Console,
    base: int,
    repeats: int,
    squares: Sequence[int],
    time_limit_seconds: float,
) -> tuple[list[tuple[Shape, Cost]], list[str], str]:
    """Run everything.

    Returns:
        The runs with the CPU of their tasks, the runs left out, and Spark's version.

    Raises:
        RuntimeError: A job lost rows.
    """
    deadline = time.monotonic() + time_limit_seconds
    problems: list[str] = []
    shapes = list(dict.fromkeys(itertools.chain(*series(base).values())))
    with StandaloneCluster(directory, cores=1, memory="3g") as cluster:
        taskmanagers = Daemons(
            directory / "tm", hosts=cluster.hosts, authenticated=False, memory_tier_bytes="1 GiB"
        )
        with taskmanagers:
            conf = spark_conf(taskmanagers.endpoints, installed_spark().version)
            with SparkApplication(
                "growth", cluster.master_url, EXECUTOR_SETTINGS | conf, directory
            ) as application:
                bench = Bench(application, taskmanagers)
                if repeats:
                    for _ in range(2):
                        bench.run(shapes[0])  # the first ones warm up
                    bench.costs.clear()
                planned = [*shapes * repeats, *(Shape(side, side) for side in squares)]
                for shape in with_bar(planned, "shapes", console):
                    if time.monotonic() > deadline:
                        problems.append(f"left out, {time_limit_seconds:g} s are over: {shape}")
                        continue
                    name = bench.run(shape)
                    console.print(f"  {name}: {bench.costs[name][1].messages:,.0f} messages")
    uses = read_event_log(application.event_log)
    runs = []
    for name, (shape, cost) in bench.costs.items():
        use, rows = uses[name], shape.maps * shape.reducers * shape.rows
        if use.records_read != rows:
            raise RuntimeError(f"job {name} read {use.records_read} of {rows} rows")
        values = {key: getattr(cost, key) for key in Cost.__slots__}
        runs.append((shape, Cost(**values | {"task_cpu_seconds": use.cpu_seconds})))
    return runs, problems, application.spark_version


def report(
    runs: Sequence[tuple[Shape, Cost]], base: int, squares: Sequence[int], spark_version: str
) -> Report:
    """Make the figures; those whose runs were left out are missing."""
    by_shape: dict[Shape, list[Cost]] = {}
    for shape, cost in runs:
        by_shape.setdefault(shape, []).append(cost)

    def median(shape: Shape, value: str) -> float:
        return float(statistics.median(getattr(cost, value) for cost in by_shape[shape]))

    figures: dict[str, float] = {}
    factors = [2.0**power for power in range(DOUBLINGS + 1)]
    for what, shapes in series(base).items():
        if all(shape in by_shape for shape in shapes):
            for prefix, value in (("", "cpu_seconds"), ("taskmanager_", "taskmanager_cpu_seconds")):
                costs = [median(shape, value) for shape in shapes]
                figures[f"{prefix}exponent_{what}"] = exponent(factors, costs)
    sides = [side for side in squares if Shape(side, side) in by_shape]
    if len(sides) > 1:
        for value in ("messages", "control_bytes"):
            costs = [median(Shape(side, side), value) for side in sides]
            figures[f"exponent_{value}"] = exponent(sides, costs)
    for side in sides:
        figures[f"messages_{side}"] = median(Shape(side, side), "messages")
    return Report("growth", figures, list(_rows(runs)), {}, {"spark": spark_version})


def _rows(runs: Iterable[tuple[Shape, Cost]]) -> Iterable[Mapping[str, float]]:
    for shape, cost in runs:
        row = {**shape.parameters, **{key: getattr(cost, key) for key in Cost.__slots__}}
        yield row | {"cpu_seconds": cost.cpu_seconds}


def _show_squares(console: Console, runs: Iterable[tuple[Shape, Cost]]) -> None:
    table = Table(title="TaskManagers, by map and reduce tasks")
    for column in ("tasks", "blocks", "payload", "messages", "control", "per task"):
        table.add_column(column, justify="right")
    for column in ("gates", "resident", "CPU", "CPU of tasks"):
        table.add_column(column, justify="right")
    for shape, cost in runs:
        table.add_row(
            f"{shape.maps} + {shape.reducers}",
            f"{shape.maps * shape.reducers:,}",
            f"{cost.payload_bytes / 1e6:,.0f} MB",
            f"{cost.messages:,.0f}",
            f"{cost.control_bytes / 1e6:,.1f} MB",
            f"{cost.messages / (shape.maps + shape.reducers):.1f}",
            f"{cost.gates:,.0f}",
            f"{cost.resident_bytes / 2**20:,.0f} MiB",
            f"{cost.taskmanager_cpu_seconds:.1f} s",
            f"{cost.task_cpu_seconds:.1f} s",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when a run was left out."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    with tempfile.TemporaryDirectory(prefix="sluice-gr-", ignore_cleanup_errors=True) as scratch:
        try:
            runs, problems, version = measure(
                Path(scratch),
                console,
                options.base,
                options.repeats,
                options.squares,
                options.time_limit_seconds,
            )
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"bench-growth failed: {error}", style="red", markup=False)
            return 1
    _show_squares(console, runs)
    found = report(runs, options.base, options.squares, version)
    found.show(console, AIMS)
    console.print(f"Written: {found.write()}", soft_wrap=True)
    for problem in problems:
        console.print(problem, style="red", markup=False)
    return 1 if problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", type=int, default=300, help="tasks to start from (default 300)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of the doublings (default 3; 0: only the squares)"
    )
    parser.add_argument(
        "--squares",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=(500, 1000, 2000),
        metavar="N,N",
        help="map tasks and as many reduce tasks (default 500,1000,2000)",
    )
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
