"""bench-spill: shuffles larger than memory, over Spark's own shuffle.

Each side runs alone, in turn: a cluster with two one-core executors, and for Sluice two
TaskManagers, all of them in one cgroup whose limit includes the page cache. Jobs, each with
``--gigabytes`` of shuffle: ``repartition`` of rows of 1 kB to 64 reducers, ``sort`` of text to 64,
``reducers`` as ``repartition`` to 1,000. A twentieth of each runs first, to warm up and to compare
the rows of both sides.

* ``JOB_time``, ``JOB_cpu``: of Sluice over Spark's own; CPU of executors and TaskManagers.
* ``JOB_written_over_shuffle``, ``JOB_read_over_written``: bytes that Sluice's side moved to the
  disk and from it, as the kernel counts them for the whole disk; ``JOB_own_…``: of Spark's own.
* ``readyz_p99_ms``: the 99th percentile of the time in which a TaskManager answered ``/readyz``.
* ``innocent_p99``: the 99th percentile of the times in which another application wrote and read 256
  KiB meanwhile, over that during the twentieth, which fits in memory; the worst of all jobs. The
  CPU of TaskManagers for it counts as Sluice's.
* ``time``, ``cpu``, ``written_over_shuffle``, ``read_over_written``: the worst of all jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.fairness_tenant import Application, Load, release
from benchmarks.memory_cgroup import CgroupUnavailable, MemoryCgroup, join
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import side_in_child
from sluice.spark_integration import spark_conf
from tests.support import cpu_time
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster, installed_spark
from tests.support.daemons import Daemons, Work
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIDES: Final = ("own", "sluice")
GIB: Final = 1 << 30
ROW_BYTES: Final = {"repartition": 1000, "sort": 80, "reducers": 1000}
"""About what a row of each job takes in the shuffle."""
REDUCERS: Final = {"repartition": 64, "sort": 64, "reducers": 1000}
MAPS: Final = 48
CHECKED_PART: Final = 20
JOB_TIMEOUT_SECONDS: Final = 1800.0
POLL_SECONDS: Final = 0.1
INNOCENT_PAUSE_SECONDS: Final = 0.02
"""Between two exchanges: the other application is a light load, and not a second heavy one."""

EXCHANGE_BYTES: Final = Load().part_bytes * Load().parts
SECTOR_BYTES: Final = 512
SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "900m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}
AIMS: Final = {
    "time": "≤ 0.85",
    "cpu": "≤ 0.9",
    "written_over_shuffle": "≤ 1.05",
    "read_over_written": "≤ 1.05",
    "readyz_p99_ms": "≤ 100",
    "innocent_p99": "≤ 2",
}


class DiskUse(NamedTuple):
    """Bytes that a whole disk has moved since the machine started."""

    read_bytes: int
    written_bytes: int


def disk_use(directory: Path) -> DiskUse:
    """Return what the disk of a directory has moved.

    Raises:
        RuntimeError: The directory is not on a disk, as in a tmpfs.
    """
    device = directory.stat().st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in Path("/proc/diskstats").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if fields[:2] == wanted:
            return DiskUse(int(fields[5]) * SECTOR_BYTES, int(fields[9]) * SECTOR_BYTES)
    raise RuntimeError(f"{directory} is not on a disk: set TMPDIR to a directory that is")


# ---- one side, in the cgroup ---------------------------------------------------------------------


class ReadyTimes:
    """Asks a TaskManager again and again whether it is ready, from a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/readyz"
        self._stop = threading.Event()
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Ask during the block."""
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _ask(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=60) as answer:  # noqa: S310 - ours
                    answer.read()
            except OSError:
                return  # it has ended, and the job fails
            self.seconds.append(time.monotonic() - began)


class Innocent:
    """An application that exchanges small map outputs all the time, from a thread of its own.

    Args:
        socket_path: Of the TaskManager.
        token: Its token.
    """

    def __init__(self, socket_path: Path, token: str) -> None:
        self._application = Application("innocent", str(socket_path), token)
        self._stop = threading.Event()
        self._seconds: list[float] = []
        self._work: Future[None] | None = None

    def take(self) -> list[float]:
        """Return the times of the exchanges since the last call.

        Raises:
            SluiceError: An exchange has failed.
            RuntimeError: There were none.
        """
        if self._work is not None and self._work.done():
            self._work.result()
        taken, self._seconds = self._seconds, []
        if not taken:
            raise RuntimeError("the innocent application has exchanged nothing")
        return taken

    def forget(self) -> None:
        """Forget the times so far."""
        self._seconds = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Exchange during the block.

        Raises:
            SluiceError: An exchange has failed.
        """
        with ThreadPoolExecutor(1) as threads:
            self._work = work = threads.submit(asyncio.run, self._exchange())
            try:
                yield
            finally:
                self._stop.set()
            work.result()

    async def _exchange(self) -> None:
        async with self._application.connections() as (writer, reader, releaser):
            while not self._stop.is_set():
                began = time.monotonic()
                shuffle = await self._application.exchange(Load(), writer, reader)
                self._seconds.append(time.monotonic() - began)
                await release(releaser, shuffle)
                await asyncio.sleep(INNOCENT_PAUSE_SECONDS)


def parameters(job: str, gigabytes: float, mode: str) -> dict[str, Any]:
    """Return the parameters of a job."""
    rows = round(gigabytes * 1e9 / ROW_BYTES[job])
    return {"mode": mode, "rows": rows, "maps": MAPS, "reducers": REDUCERS[job]}


def run_side(options: argparse.Namespace) -> None:
    """Run the jobs of one side; print the findings of each as a line."""
    join(options.cgroup)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-spill-", ignore_cleanup_errors=True) as scratch,
        contextlib.ExitStack() as running,
    ):
        directory = Path(scratch)
        cluster = running.enter_context(StandaloneCluster(directory, memory="2g"))
        settings = dict(SETTINGS)
        taskmanagers: Daemons | None = None
        innocent: Innocent | None = None
        if options.side == "sluice":
            taskmanagers = Daemons(
                directory / "tm",
                hosts=cluster.hosts,
                authenticated=True,
                memory_tier_bytes=options.memory_tier,
            )
            running.enter_context(taskmanagers)
            token = taskmanagers.token_file.read_text(encoding="ascii").strip()
            innocent = Innocent(directory / "tm" / f"{cluster.hosts[0]}.sock", token)
            running.enter_context(innocent.running())
            settings |= spark_conf(taskmanagers.endpoints, installed_spark().version)
            settings |= taskmanagers.credentials
        application = running.enter_context(
            SparkApplication(options.side, cluster.master_url, settings, directory)
        )
        for job in options.jobs.split(","):
            print(json.dumps(run_job(job, options.gigabytes, application, taskmanagers, innocent)))
            sys.stdout.flush()


def run_job(
    job: str,
    gigabytes: float,
    application: SparkApplication,
    taskmanagers: Daemons | None,
    innocent: Innocent | None,
) -> dict[str, Any]:
    """Check and time a job; return its findings."""
    directory = application.directory
    kind = "repartition" if job == "reducers" else job
    checking = parameters(job, gigabytes / CHECKED_PART, "check")
    if innocent is not None:
        innocent.forget()
    checked = application.run(f"{job} check", kind, checking, timeout_seconds=JOB_TIMEOUT_SECONDS)
    quiet = percentile(innocent.take()) if innocent is not None else 1.0
    exchanged: list[float] = []
    os.sync()
    ready = ReadyTimes(taskmanagers[0].url) if taskmanagers is not None else None
    before, cpu_before = disk_use(directory), executors_cpu_seconds(application)
    work_before = taskmanagers.work() if taskmanagers is not None else NO_WORK
    written_before = taskmanagers.moved().written_bytes if taskmanagers is not None else 0
    with ready.measured() if ready is not None else contextlib.nullcontext():
        timed = application.run(
            job, kind, parameters(job, gigabytes, "time"), timeout_seconds=JOB_TIMEOUT_SECONDS
        )
    if innocent is not None:
        exchanged = innocent.take()
    loud = percentile(exchanged)
    os.sync()  # what is still dirty belongs to the job
    after = disk_use(directory)
    work = taskmanagers.work().since(work_before) if taskmanagers is not None else NO_WORK
    return {
        "job": job,
        "side": application.name,
        "seconds": timed.seconds,
        "cpu_seconds": executors_cpu_seconds(application) - cpu_before + work.cpu_seconds,
        "taskmanagers_cpu_seconds": work.cpu_seconds,
        "disk_read_bytes": after.read_bytes - before.read_bytes,
        "disk_written_bytes": after.written_bytes - before.written_bytes,
        "shuffle_bytes": taskmanagers.moved().written_bytes
        - written_before
        - len(exchanged) * EXCHANGE_BYTES
        if taskmanagers is not None
        else 0,
        "readyz_p99_ms": percentile(ready.seconds) * 1000 if ready is not None else 0.0,
        "innocent_p99": loud / quiet,
        "innocent_p99_ms": loud * 1000,
        "rows": checked.rows,
        "digest": checked.digest,
    }


NO_WORK: Final = Work(0.0, 0, 0, 0)


def executors_cpu_seconds(application: SparkApplication) -> float:
    """Return the CPU seconds of the side's executors so far."""
    return cpu_time.of_executors(application.directory, application.application_id)


def percentile(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[len(values) * 99 // 100] if values else 0.0


# ---- both sides ----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both sides in turn, as often as there are rounds; return their findings.

    Raises:
        CgroupUnavailable: No cgroup can be made.
        RuntimeError: A side failed, or the sides have different rows.
    """
    chosen = {name: getattr(options, name) for name in ("jobs", "gigabytes", "memory_tier")}
    runs: list[dict[str, Any]] = []
    for number in with_bar(range(options.rounds), "rounds"):
        found: dict[str, list[dict[str, Any]]] = {}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            with MemoryCgroup(round(options.memory_gib * GIB)) as cgroup:
                found[side] = side_in_child(
                    "spill", {**chosen, "side": side, "cgroup": cgroup.path}
                )
        for own, ours in zip(found["own"], found["sluice"], strict=True):
            if (own["rows"], own["digest"]) != (ours["rows"], ours["digest"]):
                raise RuntimeError(f"{own['job']}: the rows of the two sides differ")
            runs += [{"round": number, **run} for run in (own, ours)]
    return runs


FIGURES: Final = (
    "time",
    "cpu",
    "written_over_shuffle",
    "read_over_written",
    "own_written_over_shuffle",
    "own_read_over_written",
)


def figure(key: str, own: dict[str, Any], ours: dict[str, Any]) -> float:
    """Return a figure of a pair of runs."""
    side = own if key.startswith("own_") else ours
    if key.endswith("written_over_shuffle"):
        ratio = side["disk_written_bytes"] / ours["shuffle_bytes"]
    elif key.endswith("read_over_written"):
        ratio = side["disk_read_bytes"] / side["disk_written_bytes"]
    else:
        name = {"time": "seconds", "cpu": "cpu_seconds"}[key]
        ratio = ours[name] / own[name]
    return float(ratio)


def report_of(runs: Sequence[dict[str, Any]]) -> Report:
    """Make the report: medians over the rounds."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    worst: dict[str, float] = {}
    for job in dict.fromkeys(run["job"] for run in runs):
        pairs: dict[int, dict[str, dict[str, Any]]] = {}
        for run in runs:
            if run["job"] == job:
                pairs.setdefault(run["round"], {})[run["side"]] = run
        for key in FIGURES:
            values = [figure(key, each["own"], each["sluice"]) for each in pairs.values()]
            figures[f"{job}_{key}"], spread[f"{job}_{key}"] = median_and_spread(values)
            if key in AIMS:
                worst[key] = max(worst.get(key, 0.0), figures[f"{job}_{key}"])
    worst["readyz_p99_ms"] = max(run["readyz_p99_ms"] for run in runs)
    worst["innocent_p99"] = max(run["innocent_p99"] for run in runs)
    return Report("spill", worst | figures, runs, spread)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when a side fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spill", description=__doc__)
    parser.add_argument("--jobs", default=",".join(ROW_BYTES))
    parser.add_argument("--gigabytes", type=float, default=6.0, help="of shuffle (default 6)")
    parser.add_argument("--memory-gib", type=float, default=3.5, help="of a side (default 3.5)")
    parser.add_argument("--memory-tier", default="256 MiB", help="of each TaskManager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    stop_on_termination()
    if options.side is not None:
        run_side(options)
        return 0
    console = open_console()
    try:
        runs = measure(options)
    except (CgroupUnavailable, RuntimeError, OSError) as error:
        console.print(f"bench-spill failed: {error}", style="red", markup=False)
        return 1
    for run in runs:
        console.print({key: value for key, value in run.items() if key != "digest"})
    report = report_of(runs)
    report.show(console, AIMS)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
