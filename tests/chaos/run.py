"""A Spark job of some minutes while everything around it breaks: `make chaos`.

    .venv/bin/python -m tests.chaos.run --seconds 240 --seed 1

Runs jobs with many shuffles, one after the other, on two hosts, each with a TaskManager and an
executor. Meanwhile a schedule that follows from the seed kills, restarts, pauses and cuts off
executors and TaskManagers. Every job must end in time with the rows that Spark's own shuffle gave
before. In the end the TaskManagers must hold nothing. What happened is printed as one time line:
seconds, who speaks, what. The exit code is 0 if all was well.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.spark_integration import spark_conf
from tests.chaos.blame import SPECULATION
from tests.chaos.breaker import Breaker
from tests.chaos.checked_jobs import CheckedJobs
from tests.chaos.copies import LOST_AFTER_SECONDS, Copies, await_copies
from tests.chaos.links import Links
from tests.chaos.schedule import Kind, schedule, surroundings
from tests.chaos.timeline import Repairs, Timeline
from tests.spark.applications import LOCAL_MASTER, Application
from tests.spark.jobs.repeated import JOBS
from tests.support import jumping_clock
from tests.support.cluster import WORKER_HOSTS, StandaloneCluster
from tests.support.daemons import Daemons, leftovers
from tests.support.jumping_clock import ClockError
from tests.support.loop_disk import LoopDisk, loop_disks
from tests.support.processes import stop_on_termination

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.support.daemon import Daemon

CLEAN_SECONDS = 60.0
EXPIRY_SECONDS = 60.0
"""The TaskManagers' default, and longer than any fault: an application that is cut off keeps its
data."""
DISK_BYTES = 1024 * 1024 * 1024
"""Of each TaskManager's disk: more than the jobs shuffle on a host, until it is filled."""

SETTINGS = {
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # or there would be few tasks
    "spark.cores.max": "4",
    "spark.sluice.driver.pingInterval": "1s",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went."""

    jobs: int
    problems: list[str]
    repairs: Repairs


class Chaos:
    """One run.

    Args:
        directory: Receives everything; keep its path short.
        seed: Decides what breaks when, and the order of the jobs.
        seconds: How long things break.
        copies: Of the map outputs.
        settings: Spark settings, which win over those of the seed.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        seconds: float,
        copies: Copies,
        settings: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._seconds = seconds
        self._surroundings = surroundings(seed)
        self._copies = copies
        self._settings = (
            SETTINGS | dict(self._surroundings.spark) | copies.settings | dict(settings)
        )
        self._timeline = Timeline()
        self._problems: list[str] = []

    def run(self) -> Outcome:
        """Run it and return what was found."""
        expected = self._expected()
        tm_directory = self._directory / "tm"
        clocks = {host: ClockError(self._directory / f"{host}.clock") for host in WORKER_HOSTS}
        with (
            loop_disks(self._directory / "disks", WORKER_HOSTS, DISK_BYTES) as disks,
            Links(tm_directory, WORKER_HOSTS) as links,
            StandaloneCluster(self._directory, cores=2, memory="2g") as cluster,
        ):
            options = links.options()
            for host, disk in disks.items():
                options[host]["data_directories"] = disk.data
            with Daemons(
                tm_directory,
                application_expiry_seconds=EXPIRY_SECONDS,
                memory_tier_bytes=self._surroundings.memory_tier,
                options=options,
                drain_timeout_seconds=5,
                min_free_bytes=0,
                lost_after_seconds=LOST_AFTER_SECONDS if self._copies.replicas > 1 else None,
                wrapper=(
                    sys.executable,
                    jumping_clock.__file__,
                    str(self._directory / "{host}.clock"),
                ),
            ) as daemons:
                sockets = max(_sockets(daemon) for daemon in daemons)
                settings = spark_conf(daemons.endpoints) | daemons.credentials | self._settings
                with Application(
                    "chaos", cluster.master_url, self._directory, settings
                ) as application:
                    self._timeline.note("run", f"{self._surroundings}; replicas {self._copies}")
                    jobs = CheckedJobs(
                        application, self._directory, expected, self._timeline, self._problems
                    )
                    self._all_once(jobs)
                    self._broken(jobs, daemons, links, disks, clocks)
                    self._heal(jobs)
                    self._all_once(jobs)
                    self._expect_nothing_lost(jobs.repairs)
                    if not self._problems:
                        self._expect_nothing_open(daemons)
                for daemon in daemons:
                    self._expect_nothing_left(daemon, sockets)
        self._timeline.flush()
        return Outcome(jobs.count, self._problems, jobs.repairs)

    def _expected(self) -> dict[str, Path]:
        with Application("own", LOCAL_MASTER, self._directory, SETTINGS) as own:
            return {job: own.rows(job) for job in JOBS}

    def _all_once(self, jobs: CheckedJobs) -> None:
        """Before and after the faults, when nothing may go wrong."""
        before = jobs.repairs
        for job in JOBS:
            if not self._problems:
                jobs.run(job)
        copies = self._settings["spark.speculation"] == "true"  # these may come at any time
        if not self._problems and not copies and jobs.repairs != before:
            self._problem(f"without any fault: {jobs.repairs}, before: {before}")

    def _broken(
        self,
        jobs: CheckedJobs,
        daemons: Daemons,
        links: Links,
        disks: Mapping[str, LoopDisk],
        clocks: Mapping[str, ClockError],
    ) -> None:
        without: set[Kind] = set()
        if self._copies.replicas == 1:
            without.add(Kind.KILL_COPYING)
        if len(disks) < len(WORKER_HOSTS):
            without.add(Kind.FILL_DISK)
            self._timeline.note(
                "run", f"not here, as nothing can be mounted: {Kind.FILL_DISK.value}"
            )
        actions = schedule(
            self._seed,
            self._seconds,
            WORKER_HOSTS,
            without,
            single_losses=self._copies.replicas > 1,
        )
        chance = random.Random(f"{self._seed} jobs")
        breaker = Breaker(
            actions, self._seed, self._directory, daemons, links, self._timeline, disks, clocks
        )
        if self._copies.replicas > 1:
            breaker.after_trouble = lambda: self._await_copies(daemons)
        with breaker:
            jobs.explained_by(breaker.troubles)
            while breaker.at_work and not self._problems:
                jobs.run(chance.choice(list(JOBS)))
        if breaker.error is not None:
            self._problem(f"the breaker broke: {breaker.error!r}")

    def _await_copies(self, daemons: Daemons) -> None:
        await_copies(daemons.metrics_urls)
        self._timeline.note("run", "all map outputs have their copies")

    def _heal(self, jobs: CheckedJobs) -> None:
        """Let Spark make again what was lost of map outputs that stay until the end."""
        for job in JOBS:
            if not self._problems:
                jobs.run(job)

    def _expect_nothing_lost(self, repairs: Repairs) -> None:
        """With a second copy that is there before a commit, one loss at a time costs no map task.

        A copy that is made afterwards may be too late.
        """
        again = repairs.map_reruns.copy()
        del again[SPECULATION]
        if self._copies.replicas > 1 and self._copies.mode == "sync" and again:
            self._problem(f"with replicas {self._copies} map tasks ran again: {dict(again)}")

    def _expect_nothing_open(self, daemons: Daemons) -> None:
        """No job runs, but the application is still there, and with it shuffles it may read."""
        for daemon in daemons:
            try:
                daemon.wait_until(lambda status: not _in_use(status), CLEAN_SECONDS)
            except TimeoutError as error:
                self._problem(f"between jobs {daemon.host} has {_in_use(daemon.status())}: {error}")

    def _expect_nothing_left(self, daemon: Daemon, sockets: int) -> None:
        """As a new TaskManager, which has so many open sockets."""
        try:
            status = daemon.wait_until(
                # Executors that end late may still knock, so its name stays known for a while.
                lambda status: leftovers(status).keys() <= {"applications"},
                CLEAN_SECONDS,
            )
        except (TimeoutError, OSError) as error:
            self._problem(f"in the end {daemon.host} has leftovers: {error}")
            return
        # One more for the question itself, whose connection may stay open for a while.
        if (found := _sockets(daemon)) > sockets + len(status.connections) + 1:
            self._problem(f"in the end {daemon.host} has {found} open sockets, at first {sockets}")

    def _problem(self, text: str) -> None:
        self._problems.append(text)
        self._timeline.note("run", f"PROBLEM: {text}")


def _sockets(daemon: Daemon) -> int:
    """How many sockets a TaskManager has open."""
    count = 0
    for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def _in_use(status: TaskManagerStatus) -> dict[str, object]:
    """Return what no TaskManager should have between two jobs."""
    found = {
        "gates": status.gates,
        "local pools": status.pools,
        "segments lent": status.network_pool.lent_segments,
        "open map outputs": sum(shuffle.open_map_outputs for shuffle in status.partitions),
    }
    return {name: value for name, value in found.items() if value}


def main() -> int:
    """Run one seed after the other."""
    stop_on_termination()
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="how long things break")
    parser.add_argument("--seed", type=int, default=1, help="decides what breaks when")
    parser.add_argument(
        "--replicas", type=int, choices=(1, 2), default=1, help="copies of each map output"
    )
    parser.add_argument(
        "--mode", choices=("async", "sync"), default="sync", help="when second copies are made"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep logs and event log also if all was well"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the schedule of the seed and do nothing"
    )
    options = parser.parse_args()
    if options.plan:
        print(surroundings(options.seed))
        single_losses = options.replicas > 1
        for action in schedule(
            options.seed, options.seconds, WORKER_HOSTS, single_losses=single_losses
        ):
            print(f"{action.at_seconds:7.1f}  {action}")
        return 0
    print(f"chaos: seed {options.seed}, {options.seconds:g} s", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcome = None
    try:
        settings = dict(setting.split("=", 1) for setting in options.conf)
        copies = Copies(options.replicas, options.mode)
        outcome = Chaos(directory, options.seed, options.seconds, copies, settings).run()
    finally:
        if options.keep or outcome is None or outcome.problems:
            print(f"chaos: files in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"chaos: {outcome.repairs}")
    for problem in outcome.problems:
        print(f"chaos: PROBLEM: {problem}")
    verdict = "NOT well" if outcome.problems else "all is well"
    print(f"chaos: seed {options.seed}, {outcome.jobs} jobs, {verdict}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
