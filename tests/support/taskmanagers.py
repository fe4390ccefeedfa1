"""TaskManagers as processes of their own, one per host of the cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.protocol import framing
from sluice.shuffle.taskmanager.status.status import data_path
from sluice.spark_integration.endpoint_check import TOKEN_FILE
from tests.support import cpu_time, metrics
from tests.support.cluster import REPOSITORY, WORKER_HOSTS
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

START_TIMEOUT_SECONDS = 30.0
_READY = re.compile(r"is ready: .*HTTP port (\d+)")
_MEMORY_FILE_SYSTEM = Path("/dev/shm")


class TaskManagers:
    """One TaskManager per host, each with a Unix socket; a context manager that ends them.

    Args:
        directory: Receives sockets, configuration, logs and the disk tier.
        hosts: Addresses to bind, one TaskManager each.
        memory_tier: Size of each memory tier, as the configuration writes it.
        profile: Whether each leaves a profile of its work, ``HOST.profile``, in the directory.
        authenticated: Whether they let in only those that prove the cluster's secret.
        settings: Further keys of the configuration, and their values as variables have them.
        disk_bytes_per_second: Speed of the disks, which cache nothing; 0: as the machine's are.
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] = WORKER_HOSTS,
        memory_tier: str = "512 MiB",
        profile: bool = False,
        authenticated: bool = False,
        settings: Mapping[str, str] | None = None,
        disk_bytes_per_second: int = 0,
    ) -> None:
        self.directory = directory
        self._settings = settings or {}
        self._authenticated = authenticated
        self._profile = profile
        self._disk_bytes_per_second = disk_bytes_per_second
        self.hosts = tuple(hosts)
        self.metrics_urls: list[str] = []
        self.processes: list[ManagedProcess] = []
        self._memory_tier = memory_tier
        self._memory_directories: dict[str, Path] = {}
        self._resources = ExitStack()

    @property
    def endpoints(self) -> str:
        """Return ``spark.sluice.endpoints``: each executor takes its own host's socket."""
        return f"unix:{self.directory}/{{host}}.sock"

    @property
    def spark_settings(self) -> dict[str, str]:
        """Return the settings with which a Spark application proves itself to them."""
        return {TOKEN_FILE: str(self._secret)} if self._authenticated else {}

    @property
    def _secret(self) -> Path:
        return self.directory / "cluster.secret"

    def moved(self) -> metrics.Moved:
        """Return the bytes that all of them have moved so far."""
        return metrics.scrape(self.metrics_urls)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all of them so far."""
        return sum(cpu_time.of_process(process.pid) for process in self.processes)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._authenticated:
            make_secret(self._secret)
        with ExitStack() as starting:
            self._memory_directories = {
                host: self._memory_directory(host, starting) for host in self.hosts
            }
            processes = [starting.enter_context(self._start(host)) for host in self.hosts]
            self.processes = processes
            for host, process in zip(self.hosts, processes, strict=True):
                port = process.wait_for_line(_READY, START_TIMEOUT_SECONDS)[1]
                self.metrics_urls.append(f"http://{host}:{port}/metrics")
            self._check_data_path()
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def _memory_directory(self, host: str, resources: ExitStack) -> Path:
        parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else self.directory
        path = Path(tempfile.mkdtemp(prefix=f"sluice-{host}-", dir=parent))
        resources.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def _check_data_path(self) -> None:
        """Check that the TaskManagers have the data path that the result will name.

        Raises:
            RuntimeError: They have another data path than this process.
        """
        for name, labels, _ in metrics.scrape_samples(self.metrics_urls):
            if name == "sluice_taskmanager_info" and labels["data_path"] != data_path():
                raise RuntimeError(
                    f"the data path of a TaskManager is {labels['data_path']}, that of the "
                    f"benchmark {data_path()}: start it by make, or see PYTHONPATH"
                )

    def lose(self, host: str) -> None:
        """End a TaskManager as a crash does, and remove all that it has stored."""
        process = self.processes[self.hosts.index(host)]
        os.kill(process.pid, signal.SIGKILL)
        process.stop()
        for directory in (self.directory / f"data-{host}", self._memory_directories[host]):
            for entry in directory.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def replace(self, host: str) -> None:
        """Start a new TaskManager in the place of a lost one."""
        number = self.hosts.index(host)
        process = self._resources.enter_context(self._start(host))
        self.processes[number] = process
        port = process.wait_for_line(_READY, START_TIMEOUT_SECONDS)[1]
        self.metrics_urls[number] = f"http://{host}:{port}/metrics"

    def _start(self, host: str) -> ManagedProcess:
        memory_directory = self._memory_directories[host]
        config = self.directory / f"{host}.toml"
        config.write_text(
            configuration(host, self.directory, memory_directory, self._memory_tier)
            + (
                f'\n[auth]\ncluster_secret_files = ["{self._secret}"]\n'
                if self._authenticated
                else ""
            ),
            encoding="utf-8",
        )
        program = [str(Path(sys.executable).parent / "sluice")]
        if self._profile:
            output = str(self.directory / f"{host}.profile")
            program = [sys.executable, "-m", "benchmarks.profiled", output, *program]
        if self._disk_bytes_per_second:
            speed = str(self._disk_bytes_per_second)
            program = [sys.executable, "-m", "benchmarks.slow_disk", speed, *program]
        return ManagedProcess(
            f"TaskManager on {host}",
            [*program, "taskmanager", "--config", str(config)],
            log_path=self.directory / f"taskmanager-{host}.log",
            environment={
                "PATH": "/usr/bin:/bin",
                # The data path that this process has, compiled or not.
                "PYTHONPATH": f"{Path(framing.__file__).parents[2].absolute()}:{REPOSITORY}",
                **{f"SLUICE_{key.upper()}": value for key, value in self._settings.items()},
            },
            directory=self.directory,
        )


def make_secret(path: Path) -> None:
    """Write the secret of a new cluster, for its owner alone."""
    program = Path(sys.executable).parent / "sluice"
    subprocess.run([str(program), "secret", "create", str(path)], check=True, capture_output=True)


def configuration(host: str, directory: Path, memory_directory: Path, memory_tier: str) -> str:
    """Configuration file of the TaskManager on ``host``; ports are chosen by the system."""
    return f"""\
[transport]
bind_host = "{host}"
data_port = 0
socket_path = "{directory}/{host}.sock"

[storage]
data_directories = ["{directory}/data-{host}"]
memory_directory = "{memory_directory}"
memory_tier_bytes = "{memory_tier}"

[http]
http_host = "{host}"
http_port = 0
"""
