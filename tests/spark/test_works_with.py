"""Every command of the page "Works with" runs, and its shuffles go through Sluice."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sluice.spark_integration.local_taskmanager import LocalTaskManager
from tests.spark.class_archive import java_options
from tests.support.cluster import SPARK_PYTHON_VARIABLE, installed_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "guide" / "works-with.md"
ENDPOINTS = "host1:7337,host2:7337"
PORTS = ("10000", "15002", "18080")
RUN_TIMEOUT_SECONDS = 200
LOOK_SECONDS = 0.2
"""Pause between two looks at the history server, which cannot be waited for."""
ACTIVE = re.compile(r"Sluice \S+ is active: shuffles go through the TaskManagers at unix:")
BLOCK = re.compile(
    r"^## (?P<title>.*?)$"
    r"|^<!-- (?:runs|serves: (?P<ready>.*?)) -->\n```sh\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
JOB = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
pairs = spark.sparkContext.parallelize(range(100), 3).map(lambda each: (each % 7, each))
assert dict(pairs.reduceByKey(lambda a, b: a + b, 2).collect())[0] == sum(range(0, 100, 7))
assert spark.range(1000).repartition(4).distinct().count() == 1000
print("the job is done")
spark.stop()
"""

pytestmark = pytest.mark.skipif(
    SPARK_PYTHON_VARIABLE in os.environ, reason="sluice spark-conf is of its own Python's PySpark"
)


class Command(NamedTuple):
    """A block of the page."""

    title: str
    code: str
    ready: str | None
    """Text that a server logs when it is ready; None for a command that ends by itself."""


def commands() -> dict[str, list[Command]]:
    """Return the commands of each section of the page."""
    found: dict[str, list[Command]] = {}
    title = ""
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if match["title"] is not None:
            title = match["title"]
        else:
            found.setdefault(title, []).append(Command(title, match["code"], match["ready"]))
    return found


COMMANDS = commands()
SAID = {
    "Spark Connect": r"active: true\n(?s:.*)\|\s+6\|\s+142\|$",
    "spark-sql": r"^6\s+142$",
    "Thrift server": r"\b6\s+\|\s+142\b",
    "Packages": "the job is done",
    "Kryo with registration": "the job is done",
    "GraphX": "ranks: 16",
    "History server": r'"name" : "job\.py"',
}
"""Text in the output of each section."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with LocalTaskManager() as taskmanager:
        yield taskmanager.endpoint


@pytest.fixture
def environment(directory: Path, tmp_path: Path) -> dict[str, str]:
    spark = installed_spark()
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[2]\nspark.ui.enabled false\nspark.sql.shuffle.partitions 2\n"
        f"spark.sql.warehouse.dir {tmp_path}/warehouse\n",
        encoding="utf-8",
    )
    inherited = {name: text for name, text in os.environ.items() if "SPARK" not in name}
    paths = [
        str(Path(sys.executable).parent),
        str(spark.home / "bin"),
        str(spark.home / "sbin"),
        os.environ["PATH"],
    ]
    return inherited | {
        "PATH": os.pathsep.join(paths),
        "SPARK_HOME": str(spark.home),
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_SUBMIT_OPTS": java_options(directory),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


def test_every_section_has_a_command():
    titles = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    elsewhere = {"Notebooks", "Delta and Iceberg"}
    assert set(titles) == SAID.keys() | elsewhere
    assert COMMANDS.keys() == SAID.keys()


@pytest.mark.extended
@pytest.mark.parametrize("title", SAID)
def test_the_commands_of_a_section_run(
    title: str, endpoint: str, environment: dict[str, str], tmp_path: Path
):
    if title == "Packages" and not _in_maven_repository("org/apiguardian/apiguardian-api/1.1.2"):
        pytest.skip("the package is not in Maven's local repository")
    output = ""
    ports = {port: str(_free_port()) for port in PORTS}
    with (tmp_path / "spark-defaults.conf").open("a", encoding="utf-8") as defaults:
        defaults.write(
            "spark.connect.grpc.binding.address 127.0.0.1\n"
            f"spark.connect.grpc.binding.port {ports['15002']}\n"
        )
    servers: list[subprocess.Popen[str]] = []
    try:
        for command in COMMANDS[title]:
            code = command.code.replace(ENDPOINTS, endpoint)
            code = code.replace("/tmp/spark-events", str(tmp_path / "events"))
            for port, free in ports.items():
                code = code.replace(port, free)
            if command.ready is None:
                done = subprocess.run(
                    ["bash", "-euc", code],
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=RUN_TIMEOUT_SECONDS,
                    check=False,
                )
                output += done.stdout
                assert done.returncode == 0, output[-4000:]
            else:
                if "HistoryServer" in code:
                    environment["SPARK_HISTORY_OPTS"] = ""
                    events = f"-Dspark.history.fs.logDirectory=file:{tmp_path}/events "
                    code = code.replace('OPTS="', f'OPTS="{events}')
                server = _serve(code, environment, tmp_path)
                servers.append(server)
                output += _until(server, command.ready)
                if title == "History server":
                    output += _applications(ports["18080"])
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert re.search(SAID[title], output, re.MULTILINE), output[-4000:]
    assert ACTIVE.search(output), output[-4000:]


def _serve(code: str, environment: dict[str, str], directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-euc", code],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _until(server: subprocess.Popen[str], ready: str) -> str:
    """Return the output of a server until it is ready; pytest's timeout limits it."""
    assert server.stdout is not None
    said = ""
    for line in server.stdout:
        said += line
        if ready in line:
            return said
    raise AssertionError(said[-4000:])


def _applications(port: str) -> str:
    """Return the history server's list of applications when it has read an event log."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with opener.open(f"http://127.0.0.1:{port}/api/v1/applications", timeout=30.0) as answer:
            listed = str(answer.read().decode())
        if json.loads(listed):
            return listed
        time.sleep(LOOK_SECONDS)
    raise AssertionError("the history server lists no application")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _in_maven_repository(path: str) -> bool:
    return (Path.home() / ".m2" / "repository" / path).is_dir()
