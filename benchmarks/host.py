"""bench-host: a Spark repartition against one and two data processes of each TaskManager.

Two hosts, an executor and a TaskManager each. One application uses TaskManagers of a single
process, the other one TaskManagers of two. They take turns with the same repartition, after a run
each that warms up and compares the rows. Process ``i`` of each TaskManager is pinned to core ``i``,
modulo the cores of the machine; Spark is not pinned. CPU time is that of the data processes; the
supervisor's is not counted.

* ``per_core``: what a core moves with two processes over what it moves with one: the CPU time of a
  gigabyte with one over that with two.
* ``evenness``: the difference of the CPU times of the two processes of a TaskManager over their
  mean, the worst of both TaskManagers.
* ``remote_share_one``, ``remote_share_two``: the share of what reduce tasks received that came
  through another process. With two processes it must not grow.
* ``gb_per_second_at_N_cores``: computed, not measured: what all data processes of a host with N
  cores move if each moves what one of the two did.
* ``time``: wall time with two processes over that with one. Two cores leave none to spare.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import EXECUTOR_SETTINGS, JOB_TIMEOUT_SECONDS
from benchmarks.spark import sizes
from sluice.spark_integration import spark_conf
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster, installed_spark
from tests.support.comparison import differences
from tests.support.cpu_time import of_process
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

AIMS: Final = {"per_core": "≥ 0.95", "evenness": "≤ 0.1"}
GB: Final = 1e9
JOB: Final = "repartition"
CORES: Final = (16, 64, 128)
CORES_PER_PROCESS: Final = 8
"""As docs/operate/sizing.md advises."""


class Side(NamedTuple):
    """An application and its TaskManagers."""

    application: SparkApplication
    taskmanagers: Daemons
    pids: Sequence[Sequence[int]]
    """The data processes of each TaskManager."""

    def cpu_seconds(self) -> list[list[float]]:
        """Return the CPU time of each data process so far."""
        return [[of_process(pid) for pid in pids] for pids in self.pids]

    def moved(self) -> tuple[int, int]:
        """Return the bytes that reduce tasks received so far, and those of other processes."""
        counters = [daemon.status().counters for daemon in self.taskmanagers]
        remote = sum(each.consumer_bytes_out_remote for each in counters)
        return remote + sum(each.consumer_bytes_out_local for each in counters), remote


def start(
    name: str, processes: int, cluster: StandaloneCluster, directory: Path, running: ExitStack
) -> Side:
    """Start TaskManagers of some processes, and their application."""
    taskmanagers = running.enter_context(
        Daemons(
            directory / name,
            hosts=cluster.hosts,
            authenticated=True,
            processes=processes,
            memory_tier_bytes="2 GiB",
        )
    )
    settings = spark_conf(taskmanagers.endpoints, installed_spark().version)
    application = running.enter_context(
        SparkApplication(
            name,
            cluster.master_url,
            EXECUTOR_SETTINGS | settings | taskmanagers.credentials,
            directory,
        )
    )
    statuses = [daemon.status() for daemon in taskmanagers]
    pids = [
        [each.pid for each in status.processes] or [daemon.pid]
        for status, daemon in zip(statuses, taskmanagers, strict=True)
    ]
    for of_taskmanager in pids:
        for process, pid in enumerate(of_taskmanager):
            pin(pid, process % (os.cpu_count() or 1))
    return Side(application, taskmanagers, pids)


def pin(pid: int, core: int) -> None:
    """Let all threads of a process run on one core only; later ones inherit that."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def timed(side: Side, scale: float) -> dict[str, float]:
    """Run the job once; return its figures."""
    before, (all_before, remote_before) = side.cpu_seconds(), side.moved()
    messages_before = side.taskmanagers.moved().messages
    seconds = side.application.run(
        JOB, JOB, sizes(scale)[JOB], timeout_seconds=JOB_TIMEOUT_SECONDS
    ).seconds
    received, remote = side.moved()
    messages = side.taskmanagers.moved().messages - messages_before
    spent = [
        [now - then for now, then in zip(*each, strict=True)]
        for each in zip(side.cpu_seconds(), before, strict=True)
    ]
    means = [sum(each) / len(each) for each in spent]
    return {
        "seconds": seconds,
        "seconds_per_gb": sum(map(sum, spent)) / (received - all_before) * GB,
        "messages_per_gb": messages / (received - all_before) * GB,
        "remote_share": (remote - remote_before) / (received - all_before),
        "evenness": max(
            (max(each) - min(each)) / mean for each, mean in zip(spent, means, strict=True)
        ),
    }


def measure(pairs: int, scale: float) -> list[dict[str, float]]:
    """Alternate both sides; return the figures of each pair.

    Raises:
        RuntimeError: Their rows differ.
    """
    runs = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-host-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as running,
    ):
        directory = Path(scratch)
        cluster = running.enter_context(StandaloneCluster(directory, cores=2, memory="5g"))
        one = start("one", 1, cluster, directory, running)
        two = start("two", 2, cluster, directory, running)
        rows = [directory / f"{name}.rows" for name in ("one", "two")]
        for side, file in zip((one, two), rows, strict=True):
            side.application.run(
                JOB,
                JOB,
                sizes(scale)[JOB],
                rows_file=file,
                timeout_seconds=JOB_TIMEOUT_SECONDS,
            )
        if found := differences(*rows):
            raise RuntimeError(f"one and two processes have different results: {found[0]}")
        for number in with_bar(range(pairs), "pairs"):
            sides = (one, two) if number % 2 else (two, one)
            first, second = (timed(side, scale) for side in sides)
            alone, both = (first, second) if number % 2 else (second, first)
            of_a_core = 1 / both["seconds_per_gb"]
            runs.append(
                {
                    "per_core": alone["seconds_per_gb"] / both["seconds_per_gb"],
                    "evenness": both["evenness"],
                    "time": both["seconds"] / alone["seconds"],
                    "one_seconds_per_gb": alone["seconds_per_gb"],
                    "two_seconds_per_gb": both["seconds_per_gb"],
                    "one_messages_per_gb": alone["messages_per_gb"],
                    "two_messages_per_gb": both["messages_per_gb"],
                    "remote_share_one": alone["remote_share"],
                    "remote_share_two": both["remote_share"],
                    **{
                        f"gb_per_second_at_{cores}_cores": of_a_core * cores / CORES_PER_PROCESS
                        for cores in CORES
                    },
                }
            )
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the job (default 1)")
    options = parser.parse_args(arguments)
    stop_on_termination()
    runs = measure(options.pairs, options.scale)
    found = {key: median_and_spread([run[key] for run in runs]) for key in runs[0]}
    report = Report(
        "host",
        {key: value for key, (value, _) in found.items()},
        runs,
        {key: bounds for key, (_, bounds) in found.items()},
        {"spark": installed_spark().version, "cores": str(os.cpu_count())},
    )
    report.show(open_console(), AIMS)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
