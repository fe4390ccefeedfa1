"""Two warm applications on one cluster, one with each shuffle, that take turns.

Both run at the same time, but never work at the same time: an idle application costs almost
nothing, and turns within a minute of each other see the same machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.baseline import SHUFFLE_SERVICE_PORT, Baseline
from benchmarks.shuffle_service import ExternalShuffleService
from sluice.spark_integration import spark_conf
from tests.support import cpu_time
from tests.support.application import SparkApplication
from tests.support.cluster import StandaloneCluster, installed_spark
from tests.support.comparison import differences
from tests.support.daemons import Daemons, Work

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

JOB_TIMEOUT_SECONDS = 600.0

EXECUTOR_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "2g",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


def side_in_child(module: str, arguments: Mapping[str, object]) -> list[dict[str, Any]]:
    """Run one side of a benchmark in a process of its own; return the objects that it prints.

    Args:
        module: Its module, which prints a JSON object per line.
        arguments: Its options, without the dashes.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    for name, value in arguments.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            lines = child.communicate()[0].splitlines()
        except BaseException:
            child.terminate()
            raise
    if child.returncode != 0:
        raise RuntimeError(f"the side {arguments['side']} ended with exit code {child.returncode}")
    return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same job on both sides, one straight after the other."""

    own_seconds: float
    sluice_seconds: float
    own_cpu_seconds: float = 0.0
    """CPU time of all threads of a side's executors, and of the TaskManagers."""
    sluice_cpu_seconds: float = 0.0
    taskmanagers_cpu_seconds: float = 0.0
    """Share of the TaskManagers in Sluice's CPU time."""
    taskmanagers_messages: float = 0.0
    taskmanagers_wake_ups: float = 0.0
    """Times that the TaskManagers' data loops waited for something."""
    taskmanagers_read_gb: float = 0.0
    """Gigabytes that reduce tasks received from the TaskManagers."""

    @property
    def ratio(self) -> float:
        """Return Sluice over Spark's own shuffle: below 1 Sluice is faster."""
        return self.sluice_seconds / self.own_seconds


class Sides:
    """A cluster, TaskManagers and the two applications; a context manager that ends them all.

    Another shuffle manager takes the place of Spark's own when the environment variable
    ``BASELINE_CONF`` names a spark-defaults file with its settings and jars. If it turns on Spark's
    external shuffle service, one is started for it; if it has settings of Sluice, it is Sluice with
    these settings, and of another build if ``spark.jars`` is among them.

    Args:
        directory: Scratch directory; the caller removes it.
        settings: Spark settings of both sides.
        memory_tier: Size of each TaskManager's memory tier, as its configuration writes it.
        executor_cores: Cores of each of the two executors of a side.
        tcp: Whether executors have TCP endpoints only, as between pods.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        memory_tier: str = "512 MiB",
        executor_cores: int = 1,
        tcp: bool = False,
    ) -> None:
        self._directory = directory
        self._tcp = tcp
        self._executor_cores = executor_cores
        cores = {
            "spark.executor.cores": str(executor_cores),
            "spark.cores.max": str(2 * executor_cores),
        }
        self._settings = EXECUTOR_SETTINGS | cores | dict(settings)
        self._memory_tier = memory_tier
        self._resources = ExitStack()
        self.baseline = Baseline()

    def __enter__(self) -> Self:
        self.baseline = Baseline.of_environment()
        with ExitStack() as starting:
            # Each worker has one executor of each application.
            cluster = starting.enter_context(
                StandaloneCluster(self._directory, cores=2 * self._executor_cores, memory="5g")
            )
            own_settings = dict(self._settings)
            if self.baseline.needs_shuffle_service:
                port = starting.enter_context(ExternalShuffleService(self._directory)).port
                own_settings[SHUFFLE_SERVICE_PORT] = str(port)
            self.taskmanagers = starting.enter_context(
                Daemons(
                    self._directory / "tm",
                    hosts=cluster.hosts,
                    authenticated=True,
                    memory_tier_bytes=self._memory_tier,
                )
            )
            daemons = self.taskmanagers
            endpoints = daemons.tcp_endpoints if self._tcp else daemons.endpoints
            with_sluice = {
                **spark_conf(endpoints, installed_spark().version),
                **self.taskmanagers.credentials,
            }
            if self.baseline.is_sluice:
                own_settings |= self.baseline.over(with_sluice)
            self.own = starting.enter_context(
                SparkApplication(
                    "own",
                    cluster.master_url,
                    own_settings,
                    self._directory,
                    properties_file=self.baseline.file,
                )
            )
            self.sluice = starting.enter_context(
                SparkApplication(
                    "sluice",
                    cluster.master_url,
                    self._settings | with_sluice,
                    self._directory,
                )
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

    def check(self, name: str, job: str, parameters: Mapping[str, Any]) -> list[str]:
        """Run a job on both sides and return the differences of its rows; empty when equal."""
        files = []
        for side in (self.own, self.sluice):
            rows_file = self._directory / f"{side.name}.rows"
            side.run(
                name, job, parameters, rows_file=rows_file, timeout_seconds=JOB_TIMEOUT_SECONDS
            )
            files.append(rows_file)
        return differences(*files)

    def pair(self, name: str, job: str, parameters: Mapping[str, Any], *, own_first: bool) -> Pair:
        """Time a job on both sides; the first side should alternate, so that drift cancels out."""
        turns = {}
        work: dict[str, Work] = {}
        for side in (self.own, self.sluice) if own_first else (self.sluice, self.own):
            before, at = self._executors_cpu_seconds(side), self.taskmanagers.work()
            record = side.run(name, job, parameters, timeout_seconds=JOB_TIMEOUT_SECONDS)
            executors = self._executors_cpu_seconds(side) - before
            turns[side.name] = record.seconds, executors
            work[side.name] = self.taskmanagers.work().since(at)
        own_seconds, own_executors = turns["own"]
        sluice_seconds, sluice_executors = turns["sluice"]
        done = work["sluice"]
        return Pair(
            own_seconds=own_seconds,
            sluice_seconds=sluice_seconds,
            own_cpu_seconds=own_executors + work["own"].cpu_seconds,
            sluice_cpu_seconds=sluice_executors + done.cpu_seconds,
            taskmanagers_cpu_seconds=done.cpu_seconds,
            taskmanagers_messages=done.messages,
            taskmanagers_wake_ups=done.wake_ups,
            taskmanagers_read_gb=done.read_bytes / 1e9,
        )

    def _executors_cpu_seconds(self, side: SparkApplication) -> float:
        return cpu_time.of_executors(self._directory, side.application_id)
