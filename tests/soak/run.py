"""Runs Spark jobs for a long time while TaskManagers come, go and move: `make soak`.

    .venv/bin/python -m tests.soak.run --minutes 30 --seed 1

One application runs small jobs and another one a large job, again and again. Every few seconds a
TaskManager joins, drains and leaves, is killed and starts again, or does so at another address.
The driver finds them by a name of a name server (as root), or by the reports of one of them. Every
job must have the rows of Spark's own shuffle, and no map task may run again. In the end a table
shows what each process used; descriptors, memory and attempts to connect must not grow. The exit
code is 0 if all was well.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from sluice.spark_integration import spark_conf
from tests.chaos.blame import SPECULATION, UNKNOWN
from tests.chaos.checked_jobs import CheckedJobs
from tests.chaos.copies import LOST_AFTER_SECONDS, Copies
from tests.chaos.run import SETTINGS
from tests.chaos.timeline import Timeline
from tests.soak.churn import HOSTS, Change, Churn
from tests.soak.usage import UsageSampler, table
from tests.spark.applications import LOCAL_MASTER, Application
from tests.spark.jobs.repeated import JOBS, repeated_wide
from tests.support.cluster import StandaloneCluster
from tests.support.daemon import sluice
from tests.support.daemons import leftovers
from tests.support.name_server import NameServer, resolving_with, why_no_resolver
from tests.support.named_cluster import NamedCluster
from tests.support.processes import stop_on_termination

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.support.daemon import Daemon

NAME = "taskmanagers.soak.example"
FIRST_HOST = "127.77.0.10"
DIRECTORY_VARIABLE = "SOAK_DIRECTORY"
"""Set for the process that has a name server of its own."""
LARGE = repeated_wide.__name__
LEFT = Change.LEAVE.value
JOB_SECONDS = 300.0
QUIET_SECONDS = 10.0
CLEAN_SECONDS = 90.0


class Soak:
    """One run.

    Args:
        directory: Receives everything; keep its path short.
        seed: Decides what changes, and the order of the jobs.
        seconds: How long.
        copies: Of the map outputs.
        find: How the driver finds the TaskManagers: ``dns`` or ``reports``.
    """

    def __init__(
        self, directory: Path, seed: int, seconds: float, copies: Copies, find: str
    ) -> None:
        self.problems: list[str] = []
        self._directory = directory
        self._seed = seed
        self._seconds = seconds
        self._copies = copies
        self._by_name = find == "dns"
        self._timeline = Timeline()

    def run(self) -> None:
        """Run the jobs and changes; :attr:`problems` has the problems found."""
        with Application("own", LOCAL_MASTER, self._directory, SETTINGS) as own:
            expected = {job: own.rows(job) for job in JOBS}
        secret, token = self._directory / "secret", self._directory / "token"
        sluice("secret", "create", str(secret))
        words = f"--secret-file {secret} --subject soak --expires 7d --out {token}"
        sluice("token", "create", *words.split())
        members = f"dns:{NAME}" if self._by_name else FIRST_HOST
        with (
            NameServer() as names,
            StandaloneCluster(self._directory, cores=2, memory="2g") as cluster,
            UsageSampler() as sampler,
        ):
            taskmanagers = NamedCluster(
                self._directory,
                (),
                members,
                cluster_secret_files=secret,
                lost_after_seconds=LOST_AFTER_SECONDS,
                resolve_interval_seconds=1,
                network_segments=None,
                memory_tier_bytes="32 MiB",
                min_free_bytes=0,
            )
            churn = Churn(
                self._seed,
                taskmanagers,
                lambda hosts: names.set(NAME, hosts),
                self._timeline,
                sampler,
                has_copies=self._copies.replicas > 1,
                first_host="" if self._by_name else FIRST_HOST,
            )
            try:
                churn.start_members()
                settings = {
                    **spark_conf(f"{members}:{taskmanagers.port}"),
                    "spark.sluice.auth.tokenFile": str(token),
                    **SETTINGS,
                    **self._copies.settings,
                    "spark.cores.max": "2",
                    **({"spark.sluice.resolveInterval": "1s"} if self._by_name else {}),
                }
                with (
                    Application("small", cluster.master_url, self._directory, settings) as small,
                    Application("large", cluster.master_url, self._directory, settings) as large,
                ):
                    applications = {
                        each.name: CheckedJobs(
                            each,
                            self._directory,
                            expected,
                            self._timeline,
                            self.problems,
                            churn.troubles,
                            job_seconds=JOB_SECONDS,
                        )
                        for each in (small, large)
                    }
                    for each in (small, large):
                        sampler.watch(f"driver {each.name}", each.driver_pid)
                    self._soak(applications, churn)
                    self._expect_quiet(churn.members, taskmanagers)
                for daemon in churn.members:
                    self._expect_nothing_left(daemon)
            finally:
                taskmanagers.kill()
        self._timeline.flush()
        self._summary(applications, churn, sampler)

    def _soak(self, applications: dict[str, CheckedJobs], churn: Churn) -> None:
        deadline = time.monotonic() + self._seconds
        small = [job for job in JOBS if job != LARGE]

        def work(jobs: CheckedJobs, choices: list[str]) -> None:
            chance = random.Random(f"{self._seed} {choices}")
            jobs.run(choices[0])  # once at least
            while time.monotonic() < deadline and not self.problems and churn.at_work:
                jobs.run(chance.choice(choices))

        with churn:
            threads = [
                threading.Thread(target=work, args=(applications[name], choices), name=name)
                for name, choices in (("small", small), ("large", [LARGE]))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if churn.error is not None:
            self._problem(f"the members could not be changed: {churn.error!r}")
        self._problem_if_repeated(applications)

    def _problem_if_repeated(self, applications: dict[str, CheckedJobs]) -> None:
        for name, jobs in applications.items():
            again = jobs.repairs.map_reruns.copy()
            del again[SPECULATION]
            if self._copies.replicas == 1:  # long absences may cost map tasks
                again = Counter({LEFT: again[LEFT], UNKNOWN: again[UNKNOWN]})
            if again.total():
                self._problem(f"{name}: map tasks ran again: {dict(again)}")

    def _expect_quiet(self, members: list[Daemon], cluster: NamedCluster) -> None:
        """Check that after a while no process dials a TaskManager that is gone.

        The applications are there, but no job runs.
        """
        if self.problems:
            return
        for daemon in members:
            try:
                daemon.wait_until(
                    lambda status: (
                        [each.presence for each in status.cluster.members]
                        == ["present"] * (len(members) - 1)
                    ),
                    CLEAN_SECONDS,
                )
            except TimeoutError as error:
                self._problem(f"{daemon.host} does not see {len(members) - 1} others: {error}")
        used = {each.host for each in members}
        left = [each for each in (FIRST_HOST, *HOSTS) if each not in used]
        began = time.monotonic()
        while dialed := cluster.dialed(left, QUIET_SECONDS):
            if time.monotonic() - began > CLEAN_SECONDS:
                self._problem(f"addresses that were left are dialed: {dialed}")
                return
        waited = time.monotonic() - began - QUIET_SECONDS
        self._timeline.note("run", f"after {waited:.0f} s no process dials TaskManagers that left")

    def _expect_nothing_left(self, daemon: Daemon) -> None:
        def left(status: TaskManagerStatus) -> dict[str, object]:
            # Members watch each other, and executors that end late may still knock.
            connections = tuple(each for each in status.connections if each.leg != "copier")
            return leftovers(structs.replace(status, connections=connections, applications=()))

        if self.problems:
            return
        try:
            daemon.wait_until(lambda status: not left(status), CLEAN_SECONDS)
        except TimeoutError:
            self._problem(f"at the end {daemon.host} has {left(daemon.status())}")

    def _summary(
        self, applications: dict[str, CheckedJobs], churn: Churn, sampler: UsageSampler
    ) -> None:
        if sampler.error is not None:
            self._problem(f"not everything was sampled: {sampler.error!r}")
        for usage in sampler.all:
            for text in usage.excess():
                self._problem(text)
        self._timeline.flush()
        for name, jobs in applications.items():
            print(f"soak: {name}: {jobs.count} jobs; {jobs.repairs}")
        counts = ", ".join(f"{count} x {each.value}" for each, count in churn.counts.items())
        print(f"soak: {counts}")
        for line in table(sampler.all):
            print(f"soak: {line}")

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self._timeline.note("run", f"PROBLEM: {text}")


def main() -> int:
    """Run it once."""
    stop_on_termination()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long members change")
    parser.add_argument("--seed", type=int, default=1, help="decides what changes when")
    parser.add_argument(
        "--replicas", type=int, choices=(1, 2), default=2, help="copies of each map output"
    )
    parser.add_argument(
        "--find",
        choices=("dns", "reports"),
        default="reports" if why_no_resolver() else "dns",
        help="how the driver finds TaskManagers: by a name (as root), or by the reports of one",
    )
    parser.add_argument("--keep", action="store_true", help="keep all files also if all was well")
    options = parser.parse_args()
    inside = os.environ.get(DIRECTORY_VARIABLE)
    directory = Path(inside or tempfile.mkdtemp(prefix="soak-"))
    if options.find == "dns" and inside is None:
        # This process continues with another resolver; its id, and so its server, is the same.
        command = resolving_with(NameServer(), directory)
        command += [sys.executable, "-m", "tests.soak.run", *sys.argv[1:]]
        os.execvpe(command[0], command, os.environ | {DIRECTORY_VARIABLE: str(directory)})
    print(f"soak: seed {options.seed}, {options.minutes:g} min, by {options.find}", flush=True)
    soak = Soak(
        directory,
        options.seed,
        options.minutes * 60,
        Copies(options.replicas, "sync"),
        options.find,
    )
    is_well = False
    try:
        soak.run()
        is_well = not soak.problems
    finally:
        if options.keep or not is_well:
            print(f"soak: files in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    for problem in soak.problems:
        print(f"soak: PROBLEM: {problem}")
    print(f"soak: {'all is well' if is_well else 'NOT well'}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
