"""The stack of docker-compose.yml with TLS: started, asked, hurt, taken down."""

from __future__ import annotations

import functools
import json
import selectors
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.compose.commands import ComposeTestFailed, run, tail, wait_until
from tests.compose.images import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from tests.compose.engine import Engine

ADDRESS = "127.0.0.1"
"""Addresses at which the stack publishes its ports."""
TASKMANAGERS = ("taskmanager-1", "taskmanager-2")
WORKERS = ("spark-worker-1", "spark-worker-2")
SERVICES = (*TASKMANAGERS, "spark-master", *WORKERS, "prometheus")
ONE_SHOTS = ("credentials", "certificates")
"""Make secrets, a token and certificates, and end."""

_BUILD_SECONDS = 900
_UP_SECONDS = 240
_HEALTHY_SECONDS = 180
_DOWN_SECONDS = 150
_ANSWER_SECONDS = 30
_END_SECONDS = 20
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a driver that lives for seconds: most of its time would go into compiling."""


class Stack:
    """One compose project with a name of its own.

    Args:
        engine: Where it runs.
        project: Name of the compose project; prefix of its containers, networks and volumes.
        variables: Image names and the like for docker-compose.yml.
    """

    def __init__(self, engine: Engine, project: str, variables: Mapping[str, str]) -> None:
        self.engine = engine
        self.environment = {
            **engine.environment,
            **variables,
            "COMPOSE_PROJECT_NAME": project,
            "SLUICE_PUBLISH_ADDRESS": ADDRESS,
        }
        self.project = project

    def compose(self, *arguments: str, timeout_seconds: float, check: bool = True) -> str:
        """Run the compose command on the repository's two files and no other."""
        return run(
            [*self._command(), *arguments],
            timeout_seconds=timeout_seconds,
            environment=self.environment,
            directory=REPOSITORY,
            check=check,
        )

    def build(self) -> None:
        """Build both images."""
        self.compose("build", "taskmanager-1", "spark-master", timeout_seconds=_BUILD_SECONDS)

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Start everything; at the end remove containers, networks and volumes."""
        try:
            self.compose("up", "--detach", "--no-build", timeout_seconds=_UP_SECONDS)
            yield self
        finally:
            self.compose(
                *("down", "--volumes", "--remove-orphans", "--timeout", "5"),
                timeout_seconds=_DOWN_SECONDS,
            )

    def container(self, service: str) -> str:
        """Id of the service's container, running or not."""
        # Not `compose ps`: its options differ between the two compose commands.
        found = self.engine.docker(
            *("ps", "--all", "--quiet", "--no-trunc"),
            *("--filter", f"label=com.docker.compose.project={self.project}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
            *("--filter", "label=com.docker.compose.oneoff=False"),
        ).split()
        if len(found) != 1:
            raise ComposeTestFailed(f"{service} has {len(found)} containers, expected 1")
        return found[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's record of the service's container."""
        answer: list[dict[str, Any]] = json.loads(
            self.engine.docker("inspect", self.container(service))
        )
        return answer[0]

    def wait_healthy(self, *services: str) -> None:
        """Wait until the engine calls all of them healthy."""

        def healthy() -> bool | str:
            states = {service: self._health(service) for service in services}
            return all(state == "healthy" for state in states.values()) or str(states)

        wait_until("all healthy", healthy, timeout_seconds=_HEALTHY_SECONDS)

    def exec(self, service: str, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command in the service's container and return what it says."""
        options = [word for each in (variables or {}).items() for word in ("-e", "=".join(each))]
        return self.engine.docker("exec", *options, self.container(service), *command)

    @functools.cached_property
    def access_token(self) -> str:
        """A token with which the TaskManagers tell their status."""
        command = ("sluice", "token", "create", "--access", "status", "--expires", "1d")
        return self.exec(TASKMANAGERS[0], *command).strip()

    def kill(self, service: str) -> None:
        """End the service by SIGKILL; the engine does not start it again."""
        self.engine.docker("kill", self.container(service))

    def start(self, service: str) -> None:
        """Start the service's container again."""
        self.engine.docker("start", self.container(service))

    @contextmanager
    def submit(self, name: str, *command: str, mount: Path | None = None) -> Iterator[Submitted]:
        """Run a driver, by default the one documented; it is ended with the block."""
        container = f"{self.project}-{name}"
        options = ["--rm", "-T", "--name", container, "-e", f"JAVA_TOOL_OPTIONS={_SHORT_LIVED}"]
        if mount is not None:
            options += ["--volume", f"{mount}:/mounted:ro"]
        process = subprocess.Popen(
            [*self._command(), "run", *options, "submit", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=REPOSITORY,
        )
        submitted = Submitted(name, container, process)
        try:
            yield submitted
        finally:
            if process.poll() is None:
                self.engine.docker("rm", "--force", container, check=False)
            submitted.close()

    def save_logs(self, directory: Path) -> None:
        """Write every container's log and the executors' logs below ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        for service in (*SERVICES, *ONE_SHOTS):
            try:
                container = self.container(service)
                log = self.engine.docker("logs", "--timestamps", container, check=False)
                (directory / f"{service}.log").write_text(log)
                if service in WORKERS:
                    self.engine.docker(
                        *("cp", f"{container}:/var/lib/spark/work", directory / f"{service}-work"),
                        check=False,
                    )
            except ComposeTestFailed as error:
                (directory / f"{service}.log").write_text(f"{error}\n")

    def _health(self, service: str) -> str:
        state = self.inspect(service)["State"]
        return str(state.get("Health", {}).get("Status", state["Status"]))

    def _command(self) -> tuple[str, ...]:
        # Files are named so that an override file that lies beside them has no part in the test.
        files = ("--file", "docker-compose.yml", "--file", "docker-compose.tls.yml")
        return (*self.engine.compose, *files)


class Submitted:
    """A driver that runs in the stack."""

    def __init__(self, name: str, container: str, process: subprocess.Popen[bytes]) -> None:
        self.container = container
        self.said = ""
        self._looked_at = 0
        self._name = name
        self._process = process

    def wait_for_line(self, start: str, timeout_seconds: float) -> str:
        """Read on until a line begins with ``start``, and return that line.

        Raises:
            ComposeTestFailed: It ended before, or the time ran out.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            end = self.said.find("\n", self._looked_at)
            if end >= 0:
                line = self.said[self._looked_at : end].rstrip("\r")
                self._looked_at = end + 1
                if line.startswith(start):
                    return line
            elif not self._read(deadline):
                raise ComposeTestFailed(
                    f"job {self._name} said no line `{start}...`:\n{tail(self.said)}"
                )

    def finish(self, timeout_seconds: float) -> str:
        """Wait for its end with code 0 and return all that it has said.

        Raises:
            ComposeTestFailed: It failed, or the time ran out.
        """
        deadline = time.monotonic() + timeout_seconds
        while self._read(deadline):
            pass
        try:
            code: int | None = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            how = "did not end in time" if code is None else f"ended with code {code}"
            raise ComposeTestFailed(f"job {self._name} {how}:\n{tail(self.said)}")
        return self.said

    def close(self) -> None:
        """End the command that shows it, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, deadline: float) -> bool:
        """Take what has been said; False at its end or when the time is over."""
        output = self._process.stdout
        if output is None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
        part = output.read1(1 << 16)  # type: ignore[attr-defined]
        self.said += part.decode(errors="replace")
        return bool(part)
