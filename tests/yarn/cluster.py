"""A YARN cluster on loopback: a ResourceManager and two NodeManagers in one JVM.

Its containers are processes of their own, as on a real cluster, and run as the user of the test.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cluster import installed_spark, spark_environment
from tests.support.executors import executors_below
from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.support.executors import Executor

JARS_VARIABLE = "SLUICE_YARN_JARS"
"""Names the cluster's jars for the tests."""

NODE_MANAGERS = 2
NODE = "yarn-node"
PLACE = {"SLUICE_NODE": NODE, "SLUICE_ZONE": "yarn-zone"}
"""In the environment of the NodeManagers, which pass it to their containers."""

START_TIMEOUT_SECONDS = 120.0
KILL_TIMEOUT_SECONDS = 60.0

_PROGRAM = Path(__file__).resolve().parent / "MiniYarn.java"
_READY = re.compile("^ready$")


class YarnCluster:
    """The cluster; a context manager that ends it with its containers.

    Args:
        directory: Receives its files and those of the containers.
        jars: The jars of ``pom.xml``, separated as in a class path.
    """

    def __init__(self, directory: Path, jars: str) -> None:
        self.directory = directory
        self.configuration = directory / "yarn-conf"
        """The directory for ``YARN_CONF_DIR``."""
        spark = installed_spark().home
        self._class_path = os.pathsep.join([str(self.configuration), jars, f"{spark}/jars/*"])
        # The names by which YARN and Spark know this host lead to loopback.
        hosts = directory / "yarn-hosts"
        names = f"localhost {socket.gethostname()} {socket.getfqdn()}"
        hosts.write_text(f"127.0.0.1 {names}\n", encoding="utf-8")
        self.environment = spark_environment("127.0.0.1", directory)
        self.environment["JAVA_TOOL_OPTIONS"] += f" -Djdk.net.hosts.file={hosts}"
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        data = self.directory / "yarn"
        for each in (data, self.configuration):
            each.mkdir()
        command = ["java", "-Xmx512m", "-cp", self._class_path, str(_PROGRAM)]
        with ExitStack() as starting:
            starting.callback(self._end_containers)
            process = starting.enter_context(
                ManagedProcess(
                    "YARN cluster",
                    [*command, str(data), str(self.configuration), str(NODE_MANAGERS)],
                    log_path=self.directory / "yarn.log",
                    environment=self.environment | PLACE,
                    directory=self.directory,
                )
            )
            process.wait_for_line(_READY, START_TIMEOUT_SECONDS)
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def executors(self, application_id: str) -> list[Executor]:
        """Return the executors of an application, each in a container of its own."""
        return executors_below(self.directory / "yarn", application_id)

    def container_of(self, pid: int) -> str | None:
        """Return the id of the container that a process runs in; None if it runs in none."""
        place = Path(f"/proc/{pid}/cwd").readlink()
        in_container = (self.directory / "yarn").resolve() in place.parents
        return place.name if in_container else None

    def kill_container(self, pid: int) -> None:
        """Let YARN kill the container of a process.

        Raises:
            subprocess.SubprocessError: YARN refused, or did not answer.
        """
        container = self.container_of(pid)
        program = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
        command = ["java", "-cp", self._class_path, program, "container"]
        subprocess.run(
            [*command, "-signal", str(container), "FORCEFUL_SHUTDOWN"],
            check=True,
            env=self.environment,
            cwd=self.directory,
            timeout=KILL_TIMEOUT_SECONDS,
        )

    def _end_containers(self) -> None:
        """Kill the executors that a killed cluster has left."""
        for executor in executors_below(self.directory / "yarn"):
            with suppress(ProcessLookupError):
                os.kill(executor.pid, signal.SIGKILL)
