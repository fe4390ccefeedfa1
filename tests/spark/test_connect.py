"""Sessions of Spark Connect, whose server PySpark starts with plugins of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.class_archive import java_options
from tests.support.cluster import installed_spark

if TYPE_CHECKING:
    from tests.support.daemons import Daemons

REPOSITORY = Path(__file__).resolve().parents[2]
JOB = REPOSITORY / "tests" / "spark" / "jobs" / "connect.py"
RUN_TIMEOUT_SECONDS = 200
IMPORTS = "import grpc, grpc_status, google.rpc, pandas, pyarrow, pyspark.sql.connect.session"
SUM = sum(range(1000))


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the tests' Spark, if it has a client of Spark Connect."""
    spark = installed_spark()
    imported = subprocess.run(
        [spark.python, "-c", IMPORTS], capture_output=True, timeout=60, check=False
    )
    if imported.returncode or not list((spark.home / "jars").glob("spark-connect_*.jar")):
        pytest.skip(f"Spark {spark.version} is installed without Spark Connect")
    return str(spark.python)


def test_two_clients_of_a_connect_server_shuffle_through_sluice(
    python: str, daemons: Daemons, directory: Path
):
    """One is interrupted, and adds an artifact of its own."""
    before = daemons.moved()
    settings = {**daemons.credentials, "spark.ui.enabled": "false", "spark.driver.memory": "768m"}
    inherited = {name: text for name, text in os.environ.items() if "SPARK" not in name}
    done = subprocess.run(
        [python, str(JOB), daemons[0].endpoint, *(f"{key}={settings[key]}" for key in settings)],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
        cwd=directory,
        env=inherited
        | {
            "PYTHONPATH": str(REPOSITORY),
            "PYSPARK_PYTHON": python,
            # Takes a free port for the server.
            "SPARK_TESTING": "1",
            "SPARK_SUBMIT_OPTS": java_options(directory),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert "OPERATION_CANCELED" in found.pop("interrupted")
    assert found == {
        "connect": True,
        "same session": True,
        "active": "true",
        "sums": [SUM, SUM],
        "artifact": 3 * sum(range(100)),
        "after": [SUM, SUM],
        "left to Spark": SUM,
    }
    moved = daemons.moved() - before
    assert moved.written_bytes > 0
    assert moved.read_bytes > 0
    assert "is active: shuffles go through the TaskManagers at" in done.stderr
