"""Spark's external shuffle service, for baselines whose executors expect one on their host.

It listens on all addresses, so one service is enough for workers on several loopback addresses, and
two could not share a port.
"""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

from tests.support.cluster import START_TIMEOUT_SECONDS, installed_spark, spark_environment
from tests.support.processes import ManagedProcess, ProcessFailed

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

HOST = "127.0.0.1"
_STARTING = re.compile(r"Starting shuffle service on port")
_RETRY_SECONDS = 0.05


class ExternalShuffleService:
    """A running service; a context manager that ends it.

    Args:
        directory: Receives its log; the workers' directories are below it.
    """

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self._directory = directory
        self._process: ManagedProcess | None = None

    def __enter__(self) -> Self:
        self.port = _free_port()
        spark = installed_spark()
        environment = spark_environment(HOST, self._directory, spark) | {
            "SPARK_DAEMON_MEMORY": "512m",
            # It refuses executors whose directories are not below its own; these are all workers'.
            "SPARK_LOCAL_DIRS": str(self._directory),
            "SPARK_SHUFFLE_OPTS": "-Dspark.shuffle.service.enabled=true"
            f" -Dspark.shuffle.service.port={self.port}",
        }
        self._process = ManagedProcess(
            "Spark external shuffle service",
            [
                str(spark.home / "bin" / "spark-class"),
                "org.apache.spark.deploy.ExternalShuffleService",
            ],
            log_path=self._directory / "external-shuffle-service.log",
            environment=environment,
            directory=self._directory,
        )
        try:
            self._process.wait_for_line(_STARTING, START_TIMEOUT_SECONDS)
            self._wait_until_it_listens(self._process)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.stop()

    def _wait_until_it_listens(self, process: ManagedProcess) -> None:
        # Its log says nothing once it listens.
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1.0).close()
            except OSError:
                if not process.running or time.monotonic() > deadline:
                    raise ProcessFailed(process.describe("does not listen")) from None
                time.sleep(_RETRY_SECONDS)  # a refused connect has no event
            else:
                return


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("", 0))
        port: int = bound.getsockname()[1]
        return port
