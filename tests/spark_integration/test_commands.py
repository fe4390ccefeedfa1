"""`sluice spark-conf` and `sluice submit`, with a stand-in for spark-submit."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.spark_integration import SparkIntegrationError, cli, local_taskmanager
from sluice.spark_integration.local_taskmanager import LocalTaskManager

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PySpark whose spark-submit is a script; tests write its body."""
    package = tmp_path / "pyspark"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    jar = tmp_path / "s.jar"
    jar.touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another test of this process may have imported the real one, which would be found first.
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setattr("sluice.spark_integration.conf.jar_path", lambda: jar)
    return package / "bin" / "spark-submit"


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_spark_conf_prints_options_that_a_shell_reads_back() -> None:
    arguments = [
        "--endpoints",
        "tm 1:7337",
        "--spark-version",
        "4.3.0",
        "--jar",
        "/a b/s.jar",
    ]
    result = CliRunner().invoke(cli.spark_conf, arguments)
    assert result.exit_code == 0
    words = shlex.split(result.output)
    assert words[words.index("--jars") + 1] == "/a b/s.jar"
    assert "spark.plugins=io.sluice.spark.SluicePlugin" in words
    assert "spark.sluice.endpoints=tm 1:7337" in words


def test_spark_conf_says_what_is_wrong_in_one_line() -> None:
    result = CliRunner().invoke(cli.spark_conf, ["--spark-version", "2.4"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: This version of Spark is not supported (value 2.4")


def test_submit_passes_arguments_and_exit_code(fake_spark: Path, tmp_path: Path) -> None:
    write_script(fake_spark, f'printf "%s\\n" "$@" > {tmp_path}/arguments; exit 7')
    arguments = ["--endpoints", "tm:1", "--", "--master", "local[2]", "job.py", "--flag", "a b"]
    result = CliRunner().invoke(cli.submit, arguments)
    assert result.exit_code == 7
    words = (tmp_path / "arguments").read_text().splitlines()
    assert words[-5:] == ["--master", "local[2]", "job.py", "--flag", "a b"]
    assert "spark.sluice.endpoints=tm:1" in words


def test_submit_starts_and_stops_a_taskmanager(fake_spark: Path, tmp_path: Path) -> None:
    write_script(
        fake_spark,
        f'for word in "$@"; do case "$word" in spark.sluice.endpoints=unix:*)\n'
        f'  path=${{word#*unix:}}; [ -S "$path" ] && echo "$path" > {tmp_path}/socket;; esac; done',
    )
    result = CliRunner().invoke(cli.submit, ["job.py"])
    assert result.exit_code == 0, result.output
    path = Path((tmp_path / "socket").read_text().strip())
    assert not path.parent.exists()


WAIT_FOR_TERM = """\
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("started", flush=True)
signal.pause()
"""

SUBMIT = """\
import sluice.spark_integration.conf
sluice.spark_integration.conf.jar_path = lambda: "s.jar"
from sluice.spark_integration.cli import submit
submit()
"""


def test_submit_forwards_signals(fake_spark: Path) -> None:
    write_script(fake_spark, f"exec {sys.executable} -c {shlex.quote(WAIT_FOR_TERM)}")
    command = [sys.executable, "-c", SUBMIT, "--endpoints", "tm:1", "--", "job.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 9
        finally:
            process.kill()


def test_submit_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli.submit, ["job.py"])
    assert result.exit_code == 1
    assert "sluice[spark]" in result.output


def test_the_local_taskmanager_answers_and_leaves_nothing() -> None:
    with LocalTaskManager() as taskmanager:
        path = taskmanager.endpoint.removeprefix("unix:")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert not Path(path).parent.exists()
    taskmanager.close()


def test_a_local_taskmanager_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_NETWORK_SEGMENTS", "-5")
    with pytest.raises(SparkIntegrationError, match="network_segments"), LocalTaskManager():
        pytest.fail("it must not start")


def test_a_local_taskmanager_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_taskmanager, "START_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(SparkIntegrationError, match="not ready in time"), LocalTaskManager():
        pytest.fail("it must not be ready")
