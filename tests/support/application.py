"""A spark-submit application that runs jobs one after the other, on request.

The runner and the script `tests/support/jobs/serve.py` talk over a Unix socket, one JSON object per
line: a request names a job, the answer has its outcome. So the runner can read metrics between
two jobs, and two applications can take turns while both stay warm.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.cluster import REPOSITORY, installed_spark, spark_environment
from tests.support.processes import ManagedProcess, ProcessFailed

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from tests.support.cluster import SparkInstallation

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0
_SCRIPT = Path(__file__).resolve().parent / "jobs" / "serve.py"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The outcome of a job: wall time in the driver, and the file of its result rows."""

    name: str
    seconds: float
    rows: int
    digest: str
    """SHA-256 of the canonical rows, empty when the job was told to keep none."""


class SparkApplication:
    """A running application; a context manager that ends it.

    Args:
        name: Application name and prefix of its files.
        master_url: ``spark://host:port``.
        settings: Spark settings, full keys.
        directory: Receives log, event log and control socket; keep its path short, a Unix socket
            path has at most 107 bytes.
        properties_file: A spark-defaults file with further settings; ``settings`` win over it.
        script: Serves the jobs; another script may know other jobs.
        spark: The Spark to run; the installed one by default.
        wrapper: Program and arguments that run the command that follows them.
    """

    def __init__(
        self,
        name: str,
        master_url: str,
        settings: Mapping[str, str],
        directory: Path,
        *,
        properties_file: Path | None = None,
        script: Path = _SCRIPT,
        spark: SparkInstallation | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.directory = directory
        self.application_id = ""
        self.spark_version = ""
        self._spark = spark or installed_spark()
        submit = self._spark.home / "bin" / "spark-submit"
        self._command = [*wrapper, str(submit), "--master", master_url]
        self._command += _options(name, settings, directory, properties_file)
        self._command.append(str(script))
        self._resources = ExitStack()
        self._process: ManagedProcess | None = None
        self._connection: socket.socket | None = None
        self._received = b""

    @property
    def event_log(self) -> Path:
        """The application's event log; complete once the application has ended."""
        return self.directory / f"{self.name}-events" / self.application_id

    def __enter__(self) -> Self:
        control = self.directory / f"{self.name}.sock"
        (self.directory / f"{self.name}-events").mkdir()
        with ExitStack() as starting:
            listener = starting.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(control))
            listener.listen(1)
            self._process = starting.enter_context(
                ManagedProcess(
                    f"Spark application {self.name}",
                    [*self._command, "--control", str(control)],
                    log_path=self.directory / f"{self.name}.log",
                    environment=spark_environment("127.0.0.1", self.directory, self._spark),
                    directory=self.directory,
                )
            )
            self._connection = starting.enter_context(self._accept(listener, self._process))
            hello = self._receive(START_TIMEOUT_SECONDS)
            self.application_id = str(hello["application_id"])
            self.spark_version = str(hello["spark_version"])
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._resources.close()

    def run(
        self,
        name: str,
        job: str,
        parameters: Mapping[str, Any],
        *,
        rows_file: Path | None = None,
        timeout_seconds: float,
    ) -> JobRecord:
        """Run one job under the job group ``name`` and wait for its end.

        Raises:
            ProcessFailed: The job failed, the application ended, or the time ran out.
        """
        request = {
            "name": name,
            "job": job,
            "parameters": dict(parameters),
            "rows_file": None if rows_file is None else str(rows_file),
        }
        if self._connection is None:
            raise ProcessFailed(f"Spark application {self.name} is not running")
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        answer = self._receive(timeout_seconds)
        return JobRecord(
            name=name,
            seconds=float(answer["seconds"]),
            rows=int(answer["rows"]),
            digest=str(answer["digest"]),
        )

    def wait_for_output(self, pattern: re.Pattern[str], timeout_seconds: float) -> None:
        """Wait until its output has a line that matches.

        Raises:
            ProcessFailed: The output ended or the time ran out first.
        """
        if self._process is None:
            raise ProcessFailed(f"Spark application {self.name} is not running")
        self._process.wait_for_line(pattern, timeout_seconds)

    def finish(self) -> None:
        """End the application in good order, so that its event log is complete.

        Raises:
            ProcessFailed: It did not end in time or ended with an error.
        """
        if self._connection is None or self._process is None:
            return
        self._connection.close()
        self._connection = None
        code = self._process.wait(STOP_TIMEOUT_SECONDS)
        if code != 0:
            raise ProcessFailed(self._process.describe("failed"))

    def _accept(self, listener: socket.socket, process: ManagedProcess) -> socket.socket:
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                selector.register(ended, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(START_TIMEOUT_SECONDS)]
        finally:
            os.close(ended)
        if listener not in ready:
            raise ProcessFailed(
                process.describe(f"did not connect within {START_TIMEOUT_SECONDS:g} s")
            )
        return listener.accept()[0]

    def _receive(self, timeout_seconds: float) -> dict[str, Any]:
        connection, process = self._connection, self._process
        if connection is None or process is None:
            raise ProcessFailed(f"Spark application {self.name} is not running")
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                part = connection.recv(1 << 16)
            except TimeoutError:
                raise ProcessFailed(
                    process.describe(f"gave no answer within {timeout_seconds:g} s")
                ) from None
            if not part:
                raise ProcessFailed(process.describe("closed its control connection"))
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessFailed(f"{self.name}: {answer['error']}\n{process.tail()}")
        return answer


def _options(
    name: str,
    settings: Mapping[str, str],
    directory: Path,
    properties_file: Path | None,
) -> list[str]:
    effective = {
        "spark.app.name": name,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(directory / f"{name}-warehouse"),
        "spark.local.dir": str(directory / f"{name}-local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (directory / f"{name}-events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
    }
    effective |= settings
    options: list[str] = []
    if properties_file is not None:
        options += ["--properties-file", str(properties_file)]
    for key, value in effective.items():
        options += ["--conf", f"{key}={value}"]
    return options
