"""TaskManagers that can be killed, started again on their directories, and asked how they are."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from sluice.cli.http_client import fetch_json
from sluice.protocol.access_token import SCOPE_STATUS, make_access_token
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from sluice.spark_integration.endpoint_check import TOKEN_FILE
from sluice.transport.access import read_secret
from tests.support import metrics
from tests.support.cluster import REPOSITORY, WORKER_HOSTS
from tests.support.processes import ManagedProcess, ProcessFailed
from tests.support.removal import remove_used

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

AUTHENTICATED = os.environ.get("SLUICE_TEST_AUTHENTICATED", "1") != "0"
"""Whether TaskManagers have a cluster secret, and applications a token, unless a test says."""

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 60.0
"""Longer than a TaskManager drains by default."""
TOKEN_SECONDS = 3600
"""For how long an access token is good: longer than any test."""
POLL_SECONDS = 0.1
"""Pause between two looks at the status page, which cannot be waited for."""

_READY = re.compile(r"is ready: data port \S*:(\d+), HTTP port (\d+)")
_MEMORY_FILE_SYSTEM = Path("/dev/shm")


class Daemon:
    """One TaskManager; its ports stay the same when it is started again.

    Args:
        host: Address to bind.
        directory: Receives socket, log and disk tier.
        memory_directory: Receives the memory tier.
        expiry_seconds: Its ``application_expiry_seconds``.
        memory_tier: Size of its memory tier, as the configuration writes it.
        options: Further settings of its own, which win.
        environment: Further variables of its process.
    """

    def __init__(
        self,
        host: str,
        directory: Path,
        memory_directory: Path,
        expiry_seconds: float,
        memory_tier: str,
        options: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self._directory = directory
        self._memory_directory = memory_directory
        self._expiry_seconds = expiry_seconds
        self._memory_tier = memory_tier
        self._options = dict(options)
        self._environment = dict(environment or {})
        own_directory = directory / f"data-{host}"
        self._data_directory = Path(str(options.get("data-directories", own_directory)))
        self._data_port = self._http_port = 0
        self._starts = 0
        self._process: ManagedProcess | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.running

    @property
    def endpoint(self) -> str:
        """Its data port, as ``spark.sluice.endpoints`` writes it."""
        return f"{self.host}:{self._data_port}"

    @property
    def http_url(self) -> str:
        """Its HTTP server."""
        return f"http://{self.host}:{self._http_port}"

    @property
    def pid(self) -> int:
        """Its process; 0 before its first start."""
        return 0 if self._process is None else self._process.pid

    @property
    def metrics_url(self) -> str:
        """Its metrics page."""
        return f"{self.http_url}/metrics"

    def change(self, **options: object) -> None:
        """Give it other settings with its next start; None takes one back to its default."""
        for name, value in options.items():
            self._options[name.replace("_", "-")] = value
        self._options = {name: value for name, value in self._options.items() if value is not None}

    def start(self) -> None:
        """Start it and wait until it is ready; the second time on the ports of the first."""
        self._starts += 1
        self._process = ManagedProcess(
            f"TaskManager on {self.host}",
            [str(Path(sys.executable).parent / "sluice"), "taskmanager", *self._arguments()],
            log_path=self._directory / f"taskmanager-{self.host}-{self._starts}.log",
            environment={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
            | self._environment,
            directory=self._directory,
        )
        ready = self._process.wait_for_line(_READY, START_TIMEOUT_SECONDS)
        self._data_port, self._http_port = int(ready[1]), int(ready[2])

    def kill(self) -> None:
        """End it as a crash does, and wait until it is gone."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.stop()

    def lose_data(self, *, keeps_id: bool = False) -> None:
        """Remove all it has stored; not while it runs.

        Args:
            keeps_id: Whether a directory without map outputs is left, which has its id.
        """
        for directory in (self._memory_directory, self._data_directory)[: 1 if keeps_id else 2]:
            shutil.rmtree(directory)
            directory.mkdir()

    def remove_data_directory(self) -> None:
        """Remove its data directory while it runs: all at once, as a disk that is pulled."""
        remove_used(self._data_directory)

    def mend_data_directory(self) -> None:
        """Make its data directory again, empty; return when it is used."""
        self._data_directory.mkdir(mode=0o700)
        self.wait_until(
            lambda status: all(tier.healthy for tier in status.storage if tier.tier == "disk"),
            START_TIMEOUT_SECONDS,
        )

    def remove_memory_directory(self) -> None:
        """Remove the directory of its memory tier while it runs, which makes it again, empty."""
        remove_used(self._memory_directory)

    def wait_for_all_tiers(self) -> None:
        """Wait until all its tiers are in use."""
        self.wait_until(
            lambda status: all(tier.healthy for tier in status.storage), START_TIMEOUT_SECONDS
        )

    def pause(self) -> None:
        """Let it stand still, as on a host that hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    @property
    def memory_arena(self) -> Path:
        """The file of its memory tier."""
        return next(self._memory_directory.glob("arena-*.dat"))

    @property
    def arenas(self) -> list[Path]:
        """The files of all its tiers."""
        return self._stored("arena-*.dat")

    @property
    def journals(self) -> list[Path]:
        """The journals of all its directories, without those of releases."""
        return self._stored("journal-*")

    def _stored(self, pattern: str) -> list[Path]:
        directories = (self._data_directory, self._memory_directory)
        return [path for each in directories for path in sorted(each.glob(pattern))]

    def drain(self, *, migrate: bool = False) -> None:
        """Let it take nothing new, as ``sluice drain`` does; returns when it has nothing to do.

        Args:
            migrate: Whether it gives its committed map outputs to others.
        """
        sluice("drain", self.http_url, *self._proof, *(["--migrate"] if migrate else []))

    def undrain(self) -> None:
        """Let it take work again, as ``sluice undrain`` does."""
        sluice("undrain", self.http_url, *self._proof)

    def terminate(self) -> None:
        """Ask it to end, as a service's stop does; it drains first, and goes on meanwhile."""
        self._signal(signal.SIGTERM)

    def await_end(self) -> None:
        """Wait for the end of its process in good order.

        Raises:
            ProcessFailed: It did not end in time, or not in good order.
        """
        if self._process is not None:
            code = self._process.wait(STOP_TIMEOUT_SECONDS)
            if code:
                raise ProcessFailed(self._process.describe("did not end in good order"))

    def restart(self, **options: object) -> None:
        """Stop it as an upgrade does, and start it on its directories, with other settings if any.

        Raises:
            ProcessFailed: It did not end in good order, or does not start.
        """
        self.terminate()
        self.await_end()
        self.change(**options)
        self.start()

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.stop()

    @property
    def _secret_file(self) -> Path | None:
        file = self._options.get("cluster-secret-files")
        return None if file is None else Path(str(file))

    @property
    def _proof(self) -> list[str]:
        secret = self._secret_file
        return [] if secret is None else ["--secret-file", str(secret)]

    def access_token(self) -> str:
        """Return a token that lets its status be read; empty without a secret."""
        if self._secret_file is None:
            return ""
        expires_at = int(time.time()) + TOKEN_SECONDS
        return make_access_token(read_secret(self._secret_file), SCOPE_STATUS, expires_at).to_text()

    def status(self) -> TaskManagerStatus:
        """Return its status.

        Raises:
            ConnectionError: It does not answer, or not this question.
        """
        try:
            document = fetch_json(self.http_url, "/api/v1/status", token=self.access_token())
        except click.ClickException as error:
            raise ConnectionError(error.message) from error
        return TaskManagerStatus.from_json(document)

    def wait_until(
        self, what: Callable[[TaskManagerStatus], object], timeout_seconds: float
    ) -> TaskManagerStatus:
        """Look at the status until ``what`` is true of it.

        Raises:
            TimeoutError: It did not become true; the message has the last status.
        """
        return _look_until(self.status, what, timeout_seconds)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _arguments(self) -> list[str]:
        options = {
            "bind-host": self.host,
            "data-port": self._data_port,
            "http-host": self.host,
            "http-port": self._http_port,
            "socket-path": self._directory / f"{self.host}.sock",
            "data-directories": self._data_directory,
            "memory-directory": self._memory_directory,
            "memory-tier-bytes": self._memory_tier,
            "application-expiry-seconds": self._expiry_seconds,
        } | self._options
        return [part for key, value in options.items() for part in (f"--{key}", str(value))]


class Daemons:
    """One TaskManager per host; a context manager that ends them.

    Args:
        directory: Receives everything but the memory tiers; keep its path short.
        hosts: Addresses, one TaskManager each.
        expiry_seconds: Their ``application_expiry_seconds``.
        memory_tier: Size of each memory tier.
        options: Further settings of single TaskManagers, by host.
        authenticated: Whether they have a secret.
        environment: Further variables of their processes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] = WORKER_HOSTS,
        expiry_seconds: float = 15.0,
        memory_tier: str = "128 MiB",
        options: Mapping[str, Mapping[str, object]] | None = None,
        authenticated: bool = AUTHENTICATED,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._authenticated = authenticated
        self._directory = directory
        self._hosts = tuple(hosts)
        self._expiry_seconds = expiry_seconds
        self._memory_tier = memory_tier
        self._options = dict(options or {})
        self._environment = environment
        self._resources = ExitStack()
        self._all: list[Daemon] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        own: dict[str, object] = {}
        if self._authenticated:
            own["cluster-secret-files"] = self.secret_file
            sluice("secret", "create", str(self.secret_file))
            self.token_file.write_text(self.token("tests", "1d"), encoding="ascii")
        with ExitStack() as starting:
            for host in self._hosts:
                parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else self._directory
                memory = Path(tempfile.mkdtemp(prefix="sluice-test-", dir=parent))
                starting.callback(shutil.rmtree, memory, ignore_errors=True)
                daemon = Daemon(
                    host,
                    self._directory,
                    memory,
                    self._expiry_seconds,
                    self._memory_tier,
                    own | dict(self._options.get(host, {})),
                    self._environment,
                )
                starting.callback(daemon.stop)
                daemon.start()
                self._all.append(daemon)
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def __getitem__(self, number: int) -> Daemon:
        return self._all[number]

    def __iter__(self):
        return iter(self._all)

    @property
    def endpoints(self) -> str:
        """Value of ``spark.sluice.endpoints``: each executor takes its own host's socket."""
        return f"unix:{self._directory}/{{host}}.sock"

    @property
    def secret_file(self) -> Path:
        """The file of their secret."""
        return self._directory / "cluster.secret"

    @property
    def token_file(self) -> Path:
        """The file of a submit token."""
        return self._directory / "token"

    def token(self, subject: str, expires: str) -> str:
        """Make a submit token."""
        file = str(self.secret_file)
        words = ("--secret-file", file, "--subject", subject, "--expires", expires)
        return sluice("token", "create", *words)

    @property
    def credentials(self) -> dict[str, str]:
        """Return the settings with which a Spark application proves itself to them."""
        return {TOKEN_FILE: str(self.token_file)} if self._authenticated else {}

    def wait_until(
        self, what: Callable[[list[TaskManagerStatus]], object], timeout_seconds: float
    ) -> list[TaskManagerStatus]:
        """Look at the status of all until ``what`` is true of them.

        Raises:
            TimeoutError: It did not become true; the message has the last status of each.
        """
        return _look_until(lambda: [daemon.status() for daemon in self._all], what, timeout_seconds)

    def moved(self) -> metrics.Moved:
        """Sum up the bytes that all have moved since each was started last."""
        return metrics.scrape([daemon.metrics_url for daemon in self._all])

    def newest_outputs(self, application_id: str) -> list[int]:
        """How many map outputs of an application's newest shuffle each of them has."""
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
    """Tell whether a TaskManager's name for an application is that of this one.

    With a credential it has the namespace of the application's key, too.
    """
    return name == application_id or name.startswith(f"{application_id}@")


def sluice(*words: str) -> str:
    """Run the command ``sluice`` and return its output.

    Raises:
        subprocess.CalledProcessError: Its exit code is not 0; a note has what it said.
    """
    program = str(Path(sys.executable).parent / "sluice")
    try:
        done = subprocess.run(
            [program, *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
    return done.stdout


def leftovers(status: TaskManagerStatus) -> dict[str, object]:
    """Return what a TaskManager without applications should not have; empty when all is well."""
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


def _look_until(look: Callable[[], T], what: Callable[[T], object], timeout_seconds: float) -> T:
    # A TaskManager tells nobody when its status changes: it has to be asked.
    deadline = time.monotonic() + timeout_seconds
    while not what(seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still so after {timeout_seconds:g} s: {seen}")
        time.sleep(POLL_SECONDS)
    return seen
