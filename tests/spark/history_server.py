"""Spark's history server, on the event logs of finished applications."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.spark.ui import UI_TIMEOUT_SECONDS, get
from tests.support.cluster import installed_spark, spark_environment
from tests.support.daemon import look_until
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

START_TIMEOUT_SECONDS = 120.0
_STARTED = re.compile(r"HistoryServer.* started at (http://\S+)")


class HistoryServer:
    """A running history server; a context manager that ends it.

    Args:
        name: Of its files.
        directory: Receives its log, and its store, which is on the disk.
        logs: Directory of the event logs.
        jar: Added to its class path; None for a server that knows only Spark.
    """

    def __init__(self, name: str, directory: Path, logs: Path, jar: Path | None) -> None:
        self._name = name
        self._directory = directory
        store = directory / f"{name}-store"
        store.mkdir()
        options = {
            "spark.history.fs.logDirectory": logs.as_uri(),
            "spark.history.store.path": str(store),
            "spark.history.ui.port": "0",
        }
        self._environment = spark_environment("127.0.0.1", directory) | {
            "SPARK_HISTORY_OPTS": " ".join(f"-D{key}={text}" for key, text in options.items()),
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "SPARK_DAEMON_MEMORY": "512m",
        }
        if jar is not None:
            self._environment["SPARK_DAEMON_CLASSPATH"] = str(jar)
        self._processes = ExitStack()
        self._process: ManagedProcess | None = None
        self._url = ""

    def __enter__(self) -> Self:
        command = str(installed_spark().home / "bin" / "spark-class")
        with ExitStack() as starting:
            self._process = starting.enter_context(
                ManagedProcess(
                    f"history server {self._name}",
                    [command, "org.apache.spark.deploy.history.HistoryServer"],
                    log_path=self._directory / f"{self._name}.log",
                    environment=self._environment,
                    directory=self._directory,
                )
            )
            self._url = self._process.wait_for_line(_STARTED, START_TIMEOUT_SECONDS)[1]
            self._processes = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._processes.close()

    @property
    def output(self) -> str:
        """Return its log so far."""
        return "\n".join(self._process.lines if self._process is not None else ())

    def settings(self, application_id: str) -> dict[str, str]:
        """Return Spark's settings of an application, as its page "Environment" shows them."""
        answer = get(f"{self._url}/api/v1/applications/{application_id}/environment")
        return dict(json.loads(answer)["sparkProperties"])

    def page(self, application_id: str, path: str) -> str:
        """Return a page of an application; the server shows another if it does not have it.

        Raises:
            TimeoutError: The server did not find the application.
        """
        applications = f"{self._url}/api/v1/applications"
        look_until(
            lambda: [found["id"] for found in json.loads(get(applications))],
            lambda found: application_id in found,
            UI_TIMEOUT_SECONDS,
        )
        return get(f"{self._url}/history/{application_id}/{path}")
