"""A Spark standalone cluster on loopback: one master, two one-core workers on two addresses.

Two addresses make two hosts as Spark sees them, so tasks have local and remote shuffle data as on
a real cluster. Every port is chosen by the system and read from the log.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
START_TIMEOUT_SECONDS = 90.0
LOOK_UP_TIMEOUT_SECONDS = 60.0
SPARK_PYTHON_VARIABLE = "SPARK_PYTHON"
"""Names a Python whose PySpark is used instead of the one installed here: other Spark versions."""

REPOSITORY = Path(__file__).resolve().parents[2]

_MASTER_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_MASTER_ELECTED = re.compile(r"I have been elected leader|New state: ALIVE")
_ERROR = re.compile(r"\bERROR\b|^Caused by: |^(java|scala|org|io)\.[\w.$]*(Error|Exception)\b")
_WORKER_REGISTERED = re.compile(r"Successfully registered with master")


@dataclass(frozen=True, slots=True)
class SparkInstallation:
    """A Spark and the Python that its driver and its Python workers run."""

    home: Path
    python: Path
    version: str


@functools.cache
def installed_spark() -> SparkInstallation:
    """Return the PySpark of this Python, or of the Python that the environment variable names.

    Raises:
        RuntimeError: PySpark is not installed.
    """
    python = os.environ.get(SPARK_PYTHON_VARIABLE) or sys.executable
    program = "import pyspark; print(pyspark.__file__, pyspark.__version__, sep='\\n')"
    answer = subprocess.run(
        [python, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LOOK_UP_TIMEOUT_SECONDS,
    )
    if answer.returncode:
        raise RuntimeError(f"{python} has no PySpark: run `make setup`\n{answer.stderr}")
    file, version = answer.stdout.split("\n")[:2]
    return SparkInstallation(Path(file).resolve().parent, Path(python), version)


def spark_environment(
    host: str, directory: Path, spark: SparkInstallation | None = None
) -> dict[str, str]:
    """Return the environment of a process of ``spark`` (default: installed) that binds ``host``.

    Temporary files go below ``directory``: a JVM leaves its native libraries behind when killed.
    """
    spark = spark or installed_spark()
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    inherited = ("SPARK_", "PYSPARK_")
    environment = {key: os.environ[key] for key in os.environ if not key.startswith(inherited)}
    environment |= {
        "SPARK_HOME": str(spark.home),
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": str(spark.python),
        "PYSPARK_DRIVER_PYTHON": str(spark.python),
        # Jobs import `benchmarks` in the driver and in Python workers alike.
        "PYTHONPATH": str(REPOSITORY),
        "TMPDIR": str(temporary),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
        "PYTHONHASHSEED": "0",  # the hash of a string must agree between Python workers
    }
    return environment


class StandaloneCluster:
    """Master and workers, started together and stopped together.

    Use it as a context manager: entering waits until every worker is registered.

    Args:
        directory: Receives logs, work directories and shuffle files.
        hosts: Loopback addresses, one worker each.
        cores: Cores each worker offers.
        memory: Memory each worker offers, as Spark writes it (``"3g"``).
        worker_environment: Added to the workers' environment, ``{host}`` replaced in values.
        wrapper: Program and arguments that run a worker's command, which follows them; ``{host}``
            is replaced.
        spark: The Spark to run; the installed one by default.
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] = WORKER_HOSTS,
        cores: int = 1,
        memory: str = "3g",
        worker_environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        spark: SparkInstallation | None = None,
    ) -> None:
        self.directory = directory
        self.hosts = tuple(hosts)
        self.master_url = ""
        self._spark = spark or installed_spark()
        self._cores = cores
        self._memory = memory
        self._worker_environment = dict(worker_environment or {})
        self._wrapper = tuple(wrapper)
        self._processes = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            master = starting.enter_context(self._start_master())
            self.master_url = master.wait_for_line(_MASTER_STARTED, START_TIMEOUT_SECONDS)[1]
            master.wait_for_line(_MASTER_ELECTED, START_TIMEOUT_SECONDS)
            workers = [starting.enter_context(self._start_worker(host)) for host in self.hosts]
            for worker in workers:
                worker.wait_for_line(_WORKER_REGISTERED, START_TIMEOUT_SECONDS)
            self._processes = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._processes.close()

    def _start_master(self) -> ManagedProcess:
        host = self.hosts[0]
        return self._start(
            "Spark master",
            "org.apache.spark.deploy.master.Master",
            ["--host", host, "--port", "0", "--webui-port", "0"],
            spark_environment(host, self.directory, self._spark),
        )

    def _start_worker(self, host: str) -> ManagedProcess:
        local_directory = self.directory / f"local-{host}"
        environment = spark_environment(host, self.directory, self._spark) | {
            "SPARK_LOCAL_DIRS": str(local_directory)
        }
        environment |= {
            key: value.replace("{host}", host) for key, value in self._worker_environment.items()
        }
        arguments = ["--host", host, "--port", "0", "--webui-port", "0"]
        arguments += ["--cores", str(self._cores), "--memory", self._memory]
        arguments += ["--work-dir", str(self.directory / f"work-{host}"), self.master_url]
        return self._start(
            f"Spark worker on {host}",
            "org.apache.spark.deploy.worker.Worker",
            arguments,
            environment,
            [word.replace("{host}", host) for word in self._wrapper],
        )

    def _start(
        self,
        name: str,
        class_name: str,
        arguments: list[str],
        environment: dict[str, str],
        wrapper: Sequence[str] = (),
    ) -> ManagedProcess:
        return ManagedProcess(
            name,
            [*wrapper, str(self._spark.home / "bin" / "spark-class"), class_name, *arguments],
            log_path=self.directory / f"{name.lower().replace(' ', '-')}.log",
            # Master and workers do little and live shortly: compiling them well is wasted.
            environment=environment
            | {
                "SPARK_DAEMON_MEMORY": "512m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            },
            directory=self.directory,
        )


def executor_errors(directory: Path, limit: int = 10) -> list[str]:
    """The last errors that executors of clusters below ``directory`` logged, oldest first.

    A driver only sees that its executors end; their own logs have the reason.
    """
    logs = sorted(directory.glob("work-*/*/*/stderr"), key=lambda log: log.stat().st_mtime)
    found: deque[str] = deque(maxlen=limit)
    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            found.extend(line.rstrip() for line in lines if _ERROR.search(line))
    return list(found)
