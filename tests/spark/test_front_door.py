"""``sluice submit``, ``sluice spark-conf`` and ``configure`` beside settings of the user's own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from sluice.spark_integration.local_taskmanager import LocalTaskManager
from tests.spark.class_archive import java_options
from tests.support.cluster import SPARK_PYTHON_VARIABLE, installed_spark

REPOSITORY = Path(__file__).resolve().parents[2]
JOB = REPOSITORY / "tests" / "spark" / "jobs" / "front_door.py"
RUN_TIMEOUT_SECONDS = 200
PLUGIN = "io.sluice.spark.SluicePlugin"
MANAGER = "io.sluice.spark.SluiceShuffleManager"
SMALL = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]


@pytest.fixture(autouse=True)
def _class_archive(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java_options(directory)}"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A jar of the user's, in a directory with a blank."""
    path = tmp_path / "own jars" / "own.jar"
    path.parent.mkdir()
    with ZipFile(path, "w") as archive:
        archive.writestr("of-the-user.txt", "")
    return path


def found_by(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    inherited = {name: text for name, text in os.environ.items() if "PYSPARK" not in name}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
        cwd=REPOSITORY,
        env=inherited | {"PYTHONPATH": str(REPOSITORY)} | (environment or {}),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0, done.stderr[-4000:]
    assert "support pandas" not in done.stderr  # PySpark warns of versions of pandas
    assert re.search(r"Sluice \S+ is active: shuffles go through the TaskManagers", done.stderr)
    found = json.loads(lines[0].removeprefix("FOUND "))
    assert found["sum"] == 10
    assert found["conf"]["spark.shuffle.manager"] == MANAGER
    return found


@pytest.mark.extended
@pytest.mark.skipif(
    SPARK_PYTHON_VARIABLE in os.environ, reason="sluice submit runs the PySpark of its own Python"
)
def test_submit_runs_its_own_python_and_keeps_the_users_jar(jar: Path):
    sluice = Path(sys.executable).with_name("sluice")
    command = [str(sluice), "submit", "--", *SMALL, "--conf", f"spark.jars={jar}", str(JOB)]
    found = found_by(command, {"PATH": "/usr/bin:/bin"})
    assert found["own jar"]
    assert found["python"] == found["worker"] == sys.prefix
    names = [entry.rpartition("/")[2] for entry in found["conf"]["spark.jars"].split(",")]
    assert names == ["own.jar", "sluice-spark.jar"]


@pytest.mark.extended
def test_jars_typed_behind_the_options_of_spark_conf_do_not_remove_sluice(jar: Path):
    spark = installed_spark()
    sluice = f"{Path(sys.executable).with_name('sluice')} spark-conf"
    with LocalTaskManager() as taskmanager:
        line = (
            f"{spark.home / 'bin' / 'spark-submit'} {shlex.join(SMALL)} "
            f"$({sluice} --endpoints {taskmanager.endpoint} --spark-version {spark.version}) "
            f"--jars {shlex.quote(str(jar))} {JOB}"
        )
        found = found_by(["bash", "-c", line], {"PYSPARK_PYTHON": str(spark.python)})
    assert found["own jar"]
    assert PLUGIN in found["conf"]["spark.plugins.defaultList"]


@pytest.mark.extended
def test_configure_refuses_a_running_context_and_restarts_it_on_request(jar: Path):
    python = str(installed_spark().python)
    with LocalTaskManager() as taskmanager:
        found = found_by(
            [python, str(JOB), taskmanager.endpoint],
            {
                "PYSPARK_PYTHON": python,
                "PYSPARK_SUBMIT_ARGS": f"{shlex.join([*SMALL, '--jars', str(jar)])} pyspark-shell",
            },
        )
    assert found["refused"].startswith("A SparkContext is running, and its settings")
    assert "restart=True" in found["refused"]
    assert found["own jar"]
    assert PLUGIN in found["conf"]["spark.plugins.defaultList"]
    if "spark.driver.extraClassPath" not in found["conf"]:  # which Spark 3.5 has for Sluice
        jars = found["conf"]["spark.jars"].split(",")
        assert [entry.rpartition("/")[2] for entry in jars] == ["own.jar", "sluice-spark.jar"]
