"""A TaskManager as a process of its own, started as a user starts it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from sluice.cli.http_client import fetch_json
from sluice.protocol import framing
from sluice.protocol.access_token import SCOPE_STATUS, make_access_token
from sluice.protocol.schema import PROCESS_PORT_STEP
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from sluice.transport.access import read_secret
from sluice.transport.address import Address
from tests.support.cluster import REPOSITORY
from tests.support.free_ports import free_ports
from tests.support.processes import ManagedProcess, ProcessFailed
from tests.support.removal import remove_used

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

SLUICE = Path(sys.executable).with_name("sluice")
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")
} | {"PYTHONPATH": f"{Path(framing.__file__).parents[2].absolute()}:{REPOSITORY}"}
"""Runs the data path that this process has loaded, compiled or not."""

TIMEOUT_SECONDS = 60
"""Longer than a TaskManager drains by default."""
TOKEN_SECONDS = 3600
"""Time for which an access token is valid: longer than any test."""
POLL_SECONDS = 0.1
"""Pause between two requests for the status."""

READY = re.compile(
    r"is ready: data port \S*:(?P<advertised>\d+)(?: \(here (?P<here>\d+)\))?, "
    r"HTTP port (?P<http>\d+)"
)


def arguments(directory: Path, **settings: object) -> list[str]:
    """Return the command of a small TaskManager on loopback with all its files in a directory.

    None gives a setting its default.
    """
    given = {
        "bind_host": "127.0.0.1",
        "http_host": "127.0.0.1",
        "data_port": 0,
        "http_port": 0,
        "network_segments": 64,
        "data_directories": directory / "data",
        "memory_directory": directory / "memory",
        "memory_tier_bytes": "4 MiB",
    } | settings
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    ]
    return [str(SLUICE), "taskmanager", *flags]


class Daemon:
    """A TaskManager that can be killed, and started again on its directories and ports.

    As a context manager it starts, and is killed at the end.

    Args:
        directory: Receives its log, and what it stores unless its settings say otherwise.
        host: Address to bind.
        program: Command that runs ``sluice``, instead of the installed one.
        environment: Additional environment variables of its process.
        settings: Keys of its configuration, for :func:`arguments`.
    """

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        *,
        program: Sequence[str] = (str(SLUICE),),
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.directory = directory
        self.host = host
        processes = int(str(settings.get("processes", 1)))
        self.data_port = free_ports(processes, host) if processes > 1 else 0
        self.http_port = 0
        self._program = program
        self._environment = ENVIRONMENT | dict(environment or {})
        self._settings = settings
        self._data_directory = Path(str(settings.get("data_directories", directory / "data")))
        self._memory_directory = Path(str(settings.get("memory_directory", directory / "memory")))
        self._http_socket = directory / "h"
        self._process: ManagedProcess | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def process(self) -> ManagedProcess:
        """The process of its last start."""
        assert self._process is not None, f"{self.directory} has not been started"
        return self._process

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def address(self) -> Address:
        """Address of its data port."""
        return Address(self.host, self.data_port)

    def address_of(self, process: int) -> Address:
        """Return the address of one of its data processes."""
        return Address(self.host, self.data_port + PROCESS_PORT_STEP * process)

    @property
    def endpoint(self) -> str:
        """Its data port, in the form of ``spark.sluice.endpoints``."""
        return f"{self.host}:{self.data_port}"

    @property
    def url(self) -> str:
        """URL of its HTTP server."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def control_url(self) -> str:
        """The Unix socket of its HTTP server, which drains it without a secret."""
        return f"unix:{self._http_socket}"

    @property
    def metrics_url(self) -> str:
        """URL of its metrics page."""
        return f"{self.url}/metrics"

    @property
    def lines(self) -> list[str]:
        """The lines that it has logged since its last start."""
        return self.process.lines

    @property
    def log(self) -> str:
        """Its log since its last start."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def identity(self) -> str:
        """Its TaskManager id."""
        return self.log.partition("TaskManager ")[2].split()[0]

    def wait_for_log(self, text: str, since: int = 0) -> str:
        """Wait for a line with the text after the first ``since`` lines; return the line."""
        pattern = re.compile(re.escape(text))
        return self.process.wait_for_line(pattern, TIMEOUT_SECONDS, since).string

    def change(self, **settings: object) -> None:
        """Change settings for its next start; None resets one to its default."""
        self._settings = self._settings | settings

    def start(self) -> Self:
        """Start it and wait until it is ready; a later start keeps its ports."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "bind_host": self.host,
            "http_host": self.host,
            "data_port": self.data_port,
            "http_port": self.http_port,
            "http_socket_path": self._http_socket,
        } | self._settings
        self._process = ManagedProcess(
            f"TaskManager on {self.host}",
            [*self._program, *arguments(self.directory, **settings)[1:]],
            log_path=self.directory / "taskmanager.log",
            environment=self._environment,
            directory=self.directory,
        )

    def wait_until_ready(self) -> None:
        """Wait until it is ready.

        Raises:
            ProcessFailed: It has ended, or is not ready in time.
        """
        ready = self.process.wait_for_line(READY, TIMEOUT_SECONDS)
        self.data_port = int(ready["here"] or ready["advertised"])
        self.http_port = int(ready["http"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(TIMEOUT_SECONDS)
        self.process.stop()
        return code

    def kill(self) -> None:
        """Kill it, as a crash does, and wait until it has ended."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it gracefully."""
        if self._process is not None:
            self._process.stop()

    def pause(self) -> None:
        """Suspend its processes, as on a host that hangs."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume its processes."""
        for pid in reversed(self._pids()):
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        """Return its process and its data processes."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [self.pid, *(int(pid) for each in threads for pid in each.read_text().split())]

    def terminate(self) -> None:
        """Send SIGTERM without waiting; it drains first, and serves meanwhile."""
        self.process.send_signal(signal.SIGTERM)

    def restart(self, **settings: object) -> None:
        """Stop it as an upgrade does, and start it on its directories, with changed settings.

        Raises:
            ProcessFailed: It did not stop gracefully, or does not start.
        """
        if self.end():
            raise ProcessFailed(self.process.describe("did not stop gracefully"))
        self.change(**settings)
        self.start()

    def drain(self, *, migrate: bool = False) -> None:
        """Drain it with ``sluice drain``; return when nothing is written or read.

        Args:
            migrate: Whether it moves its map outputs to other TaskManagers.
        """
        sluice("drain", self.control_url, *self._proof, *(["--migrate"] if migrate else []))

    def undrain(self) -> None:
        """Let it accept work again, with ``sluice undrain``."""
        sluice("undrain", self.control_url, *self._proof)

    def lose_data(self, *, keeps_id: bool = False) -> None:
        """Remove everything that it has stored; call this while it does not run.

        Args:
            keeps_id: Whether its data directories, which contain its id, stay.
        """
        for directory in (self._memory_directory, self._data_directory)[: 1 if keeps_id else 2]:
            shutil.rmtree(directory)
            directory.mkdir()

    def remove_data_directory(self) -> None:
        """Remove its data directory at once while it runs, as when a disk is pulled."""
        remove_used(self._data_directory)

    def mend_data_directory(self) -> None:
        """Recreate its data directory, empty; return when it is in use."""
        self._data_directory.mkdir(mode=0o700)
        self.wait_for_all_tiers()

    def remove_memory_directory(self) -> None:
        """Remove the directory of its memory tier while it runs; it recreates the directory."""
        remove_used(self._memory_directory)

    def wait_for_all_tiers(self) -> None:
        """Wait until all its tiers are in use."""
        self.wait_until(
            lambda status: all(tier.healthy for tier in status.storage), TIMEOUT_SECONDS
        )

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

    @property
    def _proof(self) -> list[str]:
        secret = self._settings.get("cluster_secret_files")
        return [] if secret is None else ["--secret-file", str(secret)]

    def access_token(self) -> str:
        """Return a token that allows reading its status; empty without a secret."""
        secret = self._settings.get("cluster_secret_files")
        if secret is None:
            return ""
        expires_at = int(time.time()) + TOKEN_SECONDS
        return make_access_token(read_secret(Path(str(secret))), SCOPE_STATUS, expires_at).to_text()

    def status(self) -> TaskManagerStatus:
        """Return its status.

        Raises:
            ConnectionError: It does not answer, or refuses.
        """
        try:
            document = fetch_json(self.url, "/api/v1/status", token=self.access_token())
        except click.ClickException as error:
            raise ConnectionError(error.message) from error
        return TaskManagerStatus.from_json(document)

    def wait_until(
        self, what: Callable[[TaskManagerStatus], object], timeout_seconds: float
    ) -> TaskManagerStatus:
        """Poll the status until ``what`` is true of it.

        Raises:
            TimeoutError: It did not become true; the message has the last status.
        """
        return look_until(self.status, what, timeout_seconds)


def look_until(look: Callable[[], T], what: Callable[[T], object], timeout_seconds: float) -> T:
    """Poll until ``what`` is true: a TaskManager does not report changes of its status.

    Raises:
        TimeoutError: It did not become true; the message has what was seen last.
    """
    deadline = time.monotonic() + timeout_seconds
    while not what(seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still so after {timeout_seconds:g} s: {seen}")
        time.sleep(POLL_SECONDS)
    return seen


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; any exit code is accepted."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=ENVIRONMENT,
    )


def sluice(*words: str) -> str:
    """Run the command ``sluice`` and return its output.

    Raises:
        ProcessFailed: Its exit code is not 0; the message has its standard error.
    """
    done = run([str(SLUICE), *words])
    if done.returncode:
        raise ProcessFailed(f"sluice {' '.join(words)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout
