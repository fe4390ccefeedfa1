"""`make bench-replicas`: the cost of a second copy of each map output, and its worth.

Two hosts, each with a network namespace of its own if this is root and has the tools (a line says
if not), and on each a TaskManager and an executor of one core for each of three applications: `off`
has no second copies, `async` has copies that are made after the commit is answered, `sync` has them
before that. The job deals wide rows out again. After a run whose results are compared, and a
warm-up, there are rounds in which all three run it, in changing order.

* ``async``, ``sync``: median over the rounds of the job's time over that without copies. They miss
  their aims if the copies hold up the data path, or if their bytes are read again.
* ``maps_again``, ``seconds_lost``: in a job of more rows, because the middle of a shorter reduce
  stage is over before it is seen, a TaskManager is killed and loses its data when the reduce tasks
  have read half of their bytes, and it stays away until the job has ended. The figures are the map
  tasks that run again in the worst round, and the time beyond that of the undisturbed run of the
  round, in the median. The first misses its aim if a copy is not found or not complete, the second
  one if readers wait for the lost TaskManager. ``..._async`` and ``..._off`` are the same for the
  other applications. Results must be right in all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.sides import EXECUTOR_SETTINGS, JOB_TIMEOUT_SECONDS
from sluice.protocol.errors import SluiceError
from sluice.spark_integration import spark_conf
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster
from tests.support.daemons import Daemons
from tests.support.eventlog import read_event_log
from tests.support.host_networks import host_networks
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from tests.support.application import JobRecord
    from tests.support.host_networks import HostNetworks

SIDES: dict[str, dict[str, str]] = {
    "off": {},
    "async": {"spark.sluice.replicas": "2", "spark.sluice.replicas.mode": "async"},
    "sync": {"spark.sluice.replicas": "2", "spark.sluice.replicas.mode": "sync"},
}
"""Settings of each application, by its name."""

AIMS = {"async": "≤ 1.10", "sync": "≤ 1.25", "maps_again": "0", "seconds_lost": "≤ 3"}

JOB = "repartition"
ROWS, MAPS, REDUCERS = 400_000, 16, 64
LOSS_SCALE = 3.0
"""Of the rows of the jobs that lose a TaskManager."""
SETTINGS: dict[str, Any] = {"lost_after_seconds": 600}
"""Of the TaskManagers: what earlier jobs had at a lost one is not copied again in a timed job."""

TIME_LIMIT_SECONDS = 1200.0
LOOK_SECONDS = 0.05
"""Pause between two looks at the bytes that were read, which TaskManagers tell nobody."""


@dataclass(slots=True)
class Loss:
    """A job whose TaskManager was lost."""

    side: str
    name: str
    rows: int
    undisturbed_seconds: float
    seconds: float
    maps_again: int = -1
    """Known when the application has ended."""

    @property
    def seconds_lost(self) -> float:
        """Return the time beyond that of the undisturbed run."""
        return self.seconds - self.undisturbed_seconds


@dataclass(slots=True)
class Findings:
    """The figures of the rounds so far."""

    ratios: dict[str, list[float]] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def report(self, versions: dict[str, str]) -> Report:
        """Return the figures by the contract of all benchmarks."""
        figures: dict[str, float] = {}
        spread: dict[str, tuple[float, float]] = {}
        for side, ratios in self.ratios.items():
            figures[side], spread[side] = median_and_spread(ratios)
        for side in dict.fromkeys(loss.side for loss in self.losses):
            losses = [loss for loss in self.losses if loss.side == side]
            suffix = "" if side == "sync" else f"_{side}"
            again = [loss.maps_again for loss in losses]
            figures[f"maps_again{suffix}"] = max(again)
            spread[f"maps_again{suffix}"] = min(again), max(again)
            lost = median_and_spread([loss.seconds_lost for loss in losses])
            figures[f"seconds_lost{suffix}"], spread[f"seconds_lost{suffix}"] = lost
        runs = [
            *self.rounds,
            *(
                {
                    "lost_with": loss.side,
                    "rows": loss.rows,
                    "seconds": loss.seconds,
                    "undisturbed_seconds": loss.undisturbed_seconds,
                    "maps_again": loss.maps_again,
                }
                for loss in self.losses
            ),
        ]
        return Report("replicas", figures, runs, spread, versions)


class Rig:
    """A cluster, TaskManagers and an application for each side; a context manager.

    Args:
        directory: Scratch directory; the caller removes it.
        sides: Names of the applications.
        memory_tier: Size of each TaskManager's memory tier.
        networks: The hosts.
    """

    def __init__(
        self, directory: Path, sides: Sequence[str], memory_tier: str, networks: HostNetworks
    ) -> None:
        self._directory = directory
        self._networks = networks
        self._sides = tuple(sides)
        self._memory_tier = memory_tier
        self._resources = ExitStack()
        self._runs = 0
        self.applications: dict[str, SparkApplication] = {}

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            cluster = starting.enter_context(
                StandaloneCluster(
                    self._directory,
                    hosts=self._networks.hosts,
                    cores=len(self._sides),
                    memory="8g",
                    wrapper=self._networks.wrapper,
                )
            )
            self.taskmanagers = starting.enter_context(
                Daemons(
                    self._directory / "tm",
                    hosts=self._networks.hosts,
                    authenticated=True,
                    wrapper=self._networks.wrapper,
                    memory_tier_bytes=self._memory_tier,
                    **SETTINGS,
                )
            )
            every = {
                **EXECUTOR_SETTINGS,
                "spark.driver.host": self._networks.hosts[0],
                "spark.driver.bindAddress": self._networks.hosts[0],
                **spark_conf(self.taskmanagers.endpoints),
                **self.taskmanagers.credentials,
            }
            for side in self._sides:
                self.applications[side] = starting.enter_context(
                    SparkApplication(side, cluster.master_url, every | SIDES[side], self._directory)
                )
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.__exit__(kind, error, traceback)

    def run(self, side: str, rows: int, mode: str = "time", name: str = "") -> JobRecord:
        """Run the job once; the mode ``check`` gives a digest of its rows, by one more shuffle."""
        self._runs += 1
        return self.applications[side].run(
            name or f"{side} {self._runs}",
            JOB,
            {"mode": mode, "rows": rows, "maps": MAPS, "reducers": REDUCERS},
            timeout_seconds=JOB_TIMEOUT_SECONDS,
        )

    def run_with_loss(self, side: str, rows: int, name: str, host: str) -> JobRecord:
        """Run the job and lose a host's TaskManager when half of the bytes have been read.

        A new one takes its place when the job has ended.
        """
        lost = self.taskmanagers[self.taskmanagers.hosts.index(host)]
        replicas = int(SIDES[side].get("spark.sluice.replicas", 1))
        before = self.taskmanagers.moved()
        deadline = time.monotonic() + JOB_TIMEOUT_SECONDS
        with ThreadPoolExecutor(1) as runner:
            job = runner.submit(self.run, side, rows, "check", name)
            while not job.done() and time.monotonic() < deadline:
                moved = self.taskmanagers.moved() - before
                # All is written before the first byte is read; copies are written too.
                if moved.read_bytes > moved.written_bytes / replicas / 2:
                    lost.kill()
                    lost.lose_data()
                    break
                time.sleep(LOOK_SECONDS)  # TaskManagers announce no bytes
            else:
                raise RuntimeError(
                    f"{name} was over before a TaskManager could be lost: {rows} rows are read too"
                    " fast here; choose a larger --loss-scale"
                )
            try:
                return job.result(JOB_TIMEOUT_SECONDS)
            finally:
                lost.start()


def measure(rig: Rig, console: Console, options: argparse.Namespace) -> Findings:
    """Compare the results, warm up, and run the rounds and the losses."""
    findings = Findings()
    _rounds(rig, console, findings, options)
    if options.losses:
        _losses(rig, console, findings, options)
    return findings


def _rounds(rig: Rig, console: Console, findings: Findings, options: argparse.Namespace) -> None:
    rows = round(ROWS * options.scale)
    deadline = time.monotonic() + options.time_limit_seconds
    console.print(f"  {rows:,} rows in each round", soft_wrap=True)
    _compare(rig, findings, options.sides, rows)
    for side in options.sides:
        rig.run(side, rows)
    for number in with_bar(range(options.rounds), "rounds", console):
        if number and time.monotonic() > deadline:
            findings.problems.append(f"{number} rounds instead of {options.rounds}: time is over")
            break
        turn = number % len(options.sides)
        order = [*options.sides[turn:], *options.sides[:turn]]
        seconds = {side: rig.run(side, rows).seconds for side in order}
        findings.rounds.append({"round": number, "rows": rows, **seconds})
        for side in options.sides:
            if side != "off" and "off" in seconds:
                findings.ratios.setdefault(side, []).append(seconds[side] / seconds["off"])
        told = "   ".join(f"{side} {each:6.2f} s" for side, each in sorted(seconds.items()))
        console.print(f"  round {number}   {told}", soft_wrap=True)


def _compare(rig: Rig, findings: Findings, sides: Sequence[str], rows: int) -> str:
    """Run the job once on all sides and return the digest of its rows."""
    checked = {side: rig.run(side, rows, "check").digest for side in sides}
    if len(set(checked.values())) > 1:
        findings.problems.append(f"results of {rows} rows differ: {checked}")
    return next(iter(checked.values()))


def _losses(rig: Rig, console: Console, findings: Findings, options: argparse.Namespace) -> None:
    rows = round(ROWS * options.loss_scale)
    console.print(f"  {rows:,} rows in each job that loses a TaskManager", soft_wrap=True)
    # The first job of this size is slower than all others, and no measure for them.
    digest = _compare(rig, findings, options.sides, rows)
    for number in with_bar(range(options.losses), "losses", console):
        host = rig.taskmanagers.hosts[number % len(rig.taskmanagers.hosts)]
        for side in options.sides:
            rig.run(side, rows)  # the executors find the TaskManager that was lost before
            undisturbed = rig.run(side, rows, "check")
            name = f"{side} loses {number}"
            disturbed = rig.run_with_loss(side, rows, name, host)
            findings.losses.append(Loss(side, name, rows, undisturbed.seconds, disturbed.seconds))
            if disturbed.digest != digest:
                findings.problems.append(f"{name}: its results differ")
            console.print(
                f"  {name:<14} {undisturbed.seconds:6.2f} s undisturbed,"
                f" {disturbed.seconds:6.2f} s with {host} lost",
                soft_wrap=True,
            )


def count_map_tasks(losses: Sequence[Loss], applications: dict[str, SparkApplication]) -> None:
    """Read in the logs of applications that have ended how many map tasks ran again."""
    for loss in losses:
        use = read_event_log(applications[loss.side].event_log)[loss.name]
        # The job's reduce tasks are map tasks of the shuffle that sums up its rows.
        loss.maps_again = use.map_tasks - MAPS - REDUCERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    stop_on_termination()
    console = open_console()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-replicas-", ignore_cleanup_errors=True) as path,
        host_networks() as networks,
    ):
        if networks.problem:
            console.print(networks.problem, style="yellow", markup=False, soft_wrap=True)
        rig = Rig(Path(path), options.sides, options.memory_tier, networks)
        try:
            with rig:
                findings = measure(rig, console, options)
                spark = next(iter(rig.applications.values())).spark_version
            count_map_tasks(findings.losses, rig.applications)
        except (SluiceError, RuntimeError, OSError) as error:
            console.print(f"bench-replicas failed: {error}", style="red", markup=False)
            return 1
    report = findings.report({"spark": spark})
    is_default = options.scale == 1 and options.loss_scale == LOSS_SCALE
    report.show(console, AIMS if is_default else None)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    for problem in findings.problems:
        console.print(problem, style="red", markup=False)
    return 1 if findings.problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replicas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the rows of the rounds (default 1)"
    )
    parser.add_argument(
        "--loss-scale",
        type=float,
        default=LOSS_SCALE,
        help="of the rows of the jobs that lose a TaskManager (default %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (default 7)")
    parser.add_argument("--losses", type=int, default=3, help="of each side (default 3)")
    parser.add_argument(
        "--sides", type=_names, default=tuple(SIDES), help=f"of {','.join(SIDES)} (default all)"
    )
    parser.add_argument(
        "--memory-tier", default="1 GiB", help="of each TaskManager (default %(default)s)"
    )
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SIDES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such side: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
