"""`make demo`: the same jobs with Spark's own shuffle and with Sluice, compared.

Each side is one spark-submit application on the same two-worker standalone cluster and runs the
same TPC-H queries and the same RDD job, in the same order, over the same files. Both sides start
cold: a fresh driver and fresh executors, and every file in the page cache.

The exit code is 0 only if all results are equal row by row and every byte of shuffle went through
the TaskManagers: for each job the bytes that Spark says its tasks wrote and read must be exactly
the bytes that the TaskManagers say they received and sent.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import outcome
from benchmarks.report import open_console
from benchmarks.text import standard_library_texts
from sluice.protocol.errors import SluiceError
from sluice.spark_integration import spark_conf
from tests.support.application import JobRecord, SparkApplication
from tests.support.cluster import StandaloneCluster, executor_errors, installed_spark
from tests.support.comparison import differences
from tests.support.daemons import Daemons
from tests.support.eventlog import ShuffleUse, read_event_log, total
from tests.support.jobs import tpch
from tests.support.metrics import Moved
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar
from tests.support.tpch_data import ensure_tpch, warm_page_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

DEFAULT_QUERIES = (3, 5, 9, 10, 13, 18)
TEXT_BYTES = 8 << 20
RDD_PARTITIONS = 8
JOB_TIMEOUT_SECONDS = 240.0

BASE_SETTINGS: dict[str, str] = {
    "spark.driver.memory": "1g",
    # A driver plans eight jobs and ends: with two cores for all, the optimizing compiler of its
    # JVM would take more time from the executors than it gives back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.memory": "2g",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    **tpch.SETTINGS,
}


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo: its name in the table and its request to the application."""

    name: str
    title: str
    job: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job on one side: its outcome, its rows, and the bytes that TaskManagers moved meanwhile."""

    record: JobRecord
    rows_file: Path
    moved: Moved


@dataclass(slots=True)
class SideResult:
    """The results of one side."""

    jobs: dict[str, JobResult] = field(default_factory=dict)
    spark: dict[str, ShuffleUse] = field(default_factory=dict)
    """From the event log, by job group, which is the job's name."""


class Demo:
    """One run of the demo.

    Args:
        console: Receives the progress.
        jobs: The jobs, run in this order on both sides.
        directory: Scratch directory; the caller removes it.
    """

    def __init__(self, console: Console, jobs: Sequence[DemoJob], directory: Path) -> None:
        self._console = console
        self._jobs = jobs
        self._directory = directory
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line of progress with the seconds since the start."""
        line = f"[dim]{time.monotonic() - self._started:6.1f} s[/dim]  {text}"
        self._console.print(line, soft_wrap=True)

    def run(self) -> tuple[SideResult, SideResult]:
        """Run both sides: Spark's own shuffle, then Sluice.

        Raises:
            ProcessFailed: Spark or a TaskManager failed.
        """
        with StandaloneCluster(self._directory) as cluster:
            self.say(f"Spark cluster at {cluster.master_url}, workers: {', '.join(cluster.hosts)}")
            own = self._run_side(cluster, "own", "Spark's own shuffle", {}, Moved)
            with Daemons(
                self._directory / "tm",
                hosts=cluster.hosts,
                authenticated=True,
                memory_tier_bytes="512 MiB",
            ) as taskmanagers:
                self.say("TaskManagers: " + ", ".join(taskmanagers.metrics_urls))
                settings = spark_conf(taskmanagers.endpoints, installed_spark().version)
                settings |= taskmanagers.credentials
                sluice = self._run_side(cluster, "sluice", "Sluice", settings, taskmanagers.moved)
        return own, sluice

    def _run_side(
        self,
        cluster: StandaloneCluster,
        name: str,
        title: str,
        settings: Mapping[str, str],
        moved: Callable[[], Moved],
    ) -> SideResult:
        result = SideResult()
        started = time.monotonic()
        application = SparkApplication(
            name, cluster.master_url, BASE_SETTINGS | dict(settings), self._directory
        )
        with application:
            self.say(f"[bold]{title}[/bold]: Spark {application.spark_version} is up")
            before = moved()
            for number, job in enumerate(with_bar(self._jobs, title, self._console), 1):
                rows_file = self._directory / f"{name}-{job.name}.rows"
                record = application.run(
                    job.name,
                    job.job,
                    job.parameters,
                    rows_file=rows_file,
                    timeout_seconds=JOB_TIMEOUT_SECONDS,
                )
                after = moved()
                result.jobs[job.name] = JobResult(record, rows_file, after - before)
                before = after
                self.say(
                    f"  {number}/{len(self._jobs)} {job.name:<10} {record.seconds:5.1f} s"
                    f" {record.rows:>6} rows  [dim]{job.title}[/dim]"
                )
        result.spark = read_event_log(application.event_log)
        self.say(f"[bold]{title}[/bold]: done in {time.monotonic() - started:.0f} s")
        return result


def jobs_of(queries: Sequence[int], data: Path, texts: Sequence[str]) -> list[DemoJob]:
    """Return the TPC-H queries of these numbers, then the RDD job over these files."""
    jobs = [
        DemoJob(
            f"tpch q{number}",
            tpch.query_title(number),
            "tpch",
            {"query": number, "data": str(data)},
        )
        for number in queries
    ]
    title = "RDD: reduceByKey, join, sortByKey over the text of Python's library"
    parameters = {"files": list(texts), "partitions": RDD_PARTITIONS}
    return [*jobs, DemoJob("word count", title, "wordcount", parameters)]


def compare(own: SideResult, sluice: SideResult) -> list[outcome.JobOutcome]:
    """Put the two sides of each job together."""
    return [
        outcome.JobOutcome(
            name=name,
            rows=result.record.rows,
            differences=tuple(differences(own.jobs[name].rows_file, result.rows_file)),
            own_seconds=own.jobs[name].record.seconds,
            sluice_seconds=result.record.seconds,
            moved=result.moved,
            spark=sluice.spark.get(name, ShuffleUse()),
        )
        for name, result in sluice.jobs.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and print its findings; return the exit code."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    console.print(f"TPC-H data, scale factor {options.scale_factor:g}, and real text")
    data = ensure_tpch(options.scale_factor)
    texts, text_bytes = standard_library_texts(TEXT_BYTES)
    data_bytes = warm_page_cache(data)
    console.print(
        f"  {data_bytes / 1e6:.0f} MB of tables; {len(texts)} text files, {text_bytes / 1e6:.0f} MB"
    )
    with scratch_directory(options.keep) as scratch:
        demo = Demo(console, jobs_of(options.queries, data, texts), scratch)
        try:
            own, sluice = demo.run()
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"The demo failed: {error}", style="red", markup=False, soft_wrap=True)
            for line in executor_errors(scratch):
                console.print(f"  executor: {line}", markup=False, soft_wrap=True)
            if options.keep is None:
                console.print("With --keep DIR all logs of the processes stay in DIR.")
            return 1
        outcomes = compare(own, sluice)
    console.print(outcome.table(outcomes))
    moved = sum((result.moved for result in sluice.jobs.values()), Moved())
    found = outcome.problems(outcomes, total(sluice.spark.values()), moved)
    for problem in found:
        console.print(problem, style="red", markup=False)
    if not found:
        console.print(
            f"[green]All {len(outcomes)} results are equal, and all {moved.written_bytes} bytes"
            f" written and {moved.read_bytes} bytes read went through the TaskManagers.[/green]"
        )
    return 1 if found else 0


@contextmanager
def scratch_directory(keep: Path | None) -> Iterator[Path]:
    """Give a directory for all files of a run: ``keep`` if it is given, else a temporary one.

    Raises:
        RuntimeError: ``keep`` has files in it.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(
            prefix="sluice-demo-", ignore_cleanup_errors=True
        ) as scratch:
            yield Path(scratch)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise RuntimeError(f"{keep} is not empty: give a directory that is new or empty")
    yield keep.resolve()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--scale-factor", type=float, default=1.0, help="of TPC-H (default 1)")
    parser.add_argument(
        "--queries",
        type=_numbers,
        default=DEFAULT_QUERIES,
        help="comma-separated TPC-H query numbers (default %(default)s)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="write logs and event logs to DIR and leave them"
    )
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
