"""The entrypoint of the image `spark`, with programs that print what they were given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENTRYPOINT = REPOSITORY / "docker" / "spark-entrypoint.sh"
EXECUTOR = {
    "SPARK_HOME": "/spark",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-7",
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name in ("java", "spark-submit"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    return tmp_path


def words(programs: Path, *arguments: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [ENTRYPOINT, *arguments],
        env={"PATH": f"{programs}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.splitlines()


def test_a_driver_is_submitted_in_client_mode(programs: Path):
    given = ("--properties-file", "/conf", "local:///job.py", "two words")
    found = words(programs, "driver", *given, SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    assert found[:5] == [
        *("spark-submit", "--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.0.0.2"),
    ]
    assert tuple(found[-4:]) == given


def test_an_executor_gets_the_options_of_its_variables(programs: Path):
    options = {f"SPARK_JAVA_OPT_{number}": f"-Doption={number} $x" for number in range(12)}
    found = words(programs, "executor", **EXECUTOR, **options)
    assert found[0] == "java"
    assert found[1:13] == [f"-Doption={number} $x" for number in range(12)]
    assert found[13:18] == [
        *("-Xms512m", "-Xmx512m", "-cp", "/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]
    pairs = dict(zip(found[18::2], found[19::2], strict=True))
    assert pairs["--executor-id"] == "7"
    assert pairs["--hostname"] == "10.0.0.1"
    assert pairs["--podName"] == "exec-7"


def test_class_paths_of_the_application_come_first(programs: Path):
    paths = {"SPARK_EXTRA_CLASSPATH": "/extra.jar", "SPARK_CLASSPATH": "/more"}
    found = words(programs, "executor", **EXECUTOR, **paths)
    assert found[found.index("-cp") + 1] == "/extra.jar:/more:/spark/jars/*"


def test_any_other_command_runs_as_it_is(programs: Path):
    assert words(programs, "spark-submit", "/opt/jobs/demo.py") == [
        "spark-submit",
        "/opt/jobs/demo.py",
    ]
