"""TaskManagers for the executors of a Spark cluster, one per host."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.spark_integration.endpoint_check import TOKEN_FILE
from tests.support import cpu_time, metrics
from tests.support.cluster import WORKER_HOSTS
from tests.support.daemon import SLUICE, Daemon, look_until, sluice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus

AUTHENTICATED = os.environ.get("TEST_AUTHENTICATED", "1") != "0"
"""Whether TaskManagers have a cluster secret, and applications a token, by default."""

PROCESSES = int(os.environ.get("TEST_PROCESSES", "1"))
"""How many data processes a TaskManager has by default."""

_MEMORY_FILE_SYSTEM = Path("/dev/shm")


class Work(NamedTuple):
    """The work of TaskManagers so far.

    Attributes:
        cpu_seconds: CPU time of all their threads.
        messages: Messages of their connections, in both directions.
        wake_ups: Times that their data loops waited for something.
        read_bytes: Bytes that they sent to reduce tasks.
    """

    cpu_seconds: float
    messages: int
    wake_ups: int
    read_bytes: int

    def since(self, before: Work) -> Work:
        """Return the work that came after another sample."""
        return Work(
            self.cpu_seconds - before.cpu_seconds,
            self.messages - before.messages,
            self.wake_ups - before.wake_ups,
            self.read_bytes - before.read_bytes,
        )


class Daemons:
    """One TaskManager per host, each with a Unix socket; a context manager that stops them.

    Args:
        directory: Receives everything except the memory tiers; its path must be short, because it
            contains the sockets.
        hosts: Addresses, one TaskManager each.
        options: Settings of single TaskManagers, by host.
        authenticated: Whether they have a secret.
        wrapper: Program and arguments that run the command that follows them; ``{host}`` is
            replaced.
        environment: Additional environment variables of their processes.
        settings: Settings of all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] = WORKER_HOSTS,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        authenticated: bool = AUTHENTICATED,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.hosts = tuple(hosts)
        self._directory = directory
        self._options = options or {}
        self._authenticated = authenticated
        self._wrapper = wrapper
        self._environment = environment
        self._settings: dict[str, Any] = {
            "network_segments": None,
            "processes": PROCESSES,
            "memory_tier_bytes": "128 MiB",
        } | settings
        self._resources = ExitStack()
        self._all: list[Daemon] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._authenticated:
            self._settings["cluster_secret_files"] = self.secret_file
            sluice("secret", "create", str(self.secret_file))
            words = f"--secret-file {self.secret_file} --subject tests --expires 1d"
            token = sluice("token", "create", *words.split())
            self.token_file.write_text(token, encoding="ascii")
        with ExitStack() as starting:
            for host in self.hosts:
                self._all.append(self._launched(host, starting))
            for daemon in self._all:
                daemon.wait_until_ready()
            self._resources = starting.pop_all()
        return self

    def _launched(self, host: str, starting: ExitStack) -> Daemon:
        parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else self._directory
        memory = Path(tempfile.mkdtemp(prefix="sluice-test-", dir=parent))
        starting.callback(shutil.rmtree, memory, ignore_errors=True)
        own = {"socket_path": self._directory / f"{host}.sock", "memory_directory": memory}
        daemon = Daemon(
            self._directory / host,
            host,
            program=[*(word.replace("{host}", host) for word in self._wrapper), str(SLUICE)],
            environment=self._environment,
            **own | self._settings | dict(self._options.get(host, {})),
        )
        starting.callback(daemon.stop)
        daemon.launch()
        return daemon

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def __getitem__(self, number: int) -> Daemon:
        return self._all[number]

    def __iter__(self) -> Iterator[Daemon]:
        return iter(self._all)

    @property
    def endpoints(self) -> str:
        """Value of ``spark.sluice.endpoints``: each executor uses the socket of its host."""
        return f"unix:{self._directory}/{{host}}.sock"

    @property
    def tcp_endpoints(self) -> str:
        """The same without sockets in the file system, as between pods."""
        return ",".join(daemon.endpoint for daemon in self._all)

    @property
    def metrics_urls(self) -> list[str]:
        """URL of the metrics page of each."""
        return [daemon.metrics_url for daemon in self._all]

    @property
    def secret_file(self) -> Path:
        """File of their secret."""
        return self._directory / "cluster.secret"

    @property
    def token_file(self) -> Path:
        """File of a submit token."""
        return self._directory / "token"

    @property
    def credentials(self) -> dict[str, str]:
        """Settings with which a Spark application authenticates."""
        return {TOKEN_FILE: str(self.token_file)} if self._authenticated else {}

    def wait_until(
        self, what: Callable[[list[TaskManagerStatus]], object], timeout_seconds: float
    ) -> list[TaskManagerStatus]:
        """Poll the status of all until ``what`` is true of them.

        Raises:
            TimeoutError: It did not become true; the message has the last status of each.
        """
        return look_until(lambda: [daemon.status() for daemon in self._all], what, timeout_seconds)

    def moved(self) -> metrics.Moved:
        """Sum up the bytes that all have moved since each was started last."""
        return metrics.scrape(self.metrics_urls)

    def work(self) -> Work:
        """Sum up the work of all since each was started last."""
        moved = self.moved()
        wake_ups = sum(cpu_time.wake_ups_of_first_thread(daemon.pid) for daemon in self._all)
        return Work(self.cpu_seconds(), moved.messages, wake_ups, moved.read_bytes)

    def cpu_seconds(self) -> float:
        """Sum up the CPU time of all since each was started last."""
        return sum(cpu_time.of_process(daemon.pid) for daemon in self._all)

    def newest_outputs(self, application_id: str) -> list[int]:
        """Return the number of map outputs of an application's newest shuffle at each of them."""
        shuffles = [
            (shuffle.shuffle_id, number, shuffle.committed_map_outputs)
            for number, daemon in enumerate(self._all)
            for shuffle in daemon.status().partitions
            if is_of(application_id, shuffle.application_id)
        ]
        newest = max((shuffle_id for shuffle_id, _, _ in shuffles), default=-1)
        outputs = [0] * len(self._all)
        for shuffle_id, number, count in shuffles:
            if shuffle_id == newest:
                outputs[number] = count
        return outputs


def is_of(application_id: str, name: str) -> bool:
    """Return whether a TaskManager's name for an application stands for this application.

    With a credential the name ends with the namespace of the application's key.
    """
    return name == application_id or name.startswith(f"{application_id}@")


def leftovers(status: TaskManagerStatus) -> dict[str, object]:
    """Return what a TaskManager without applications should not have; empty if it has nothing."""
    found = {
        "partitions": status.partitions,
        "applications": status.applications,
        "gates": status.gates,
        "local pools": status.pools,
        "segments lent": status.network_pool.lent_segments,
        # An idle connection between TaskManagers belongs to no application; it is kept for a while.
        "connections": [
            connection
            for connection in status.connections
            if connection.channels or not connection.leg.startswith("peer")
        ],
        "bytes stored": sum(tier.used_bytes for tier in status.storage),
    }
    return {name: value for name, value in found.items() if value}
