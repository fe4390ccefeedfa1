"""`sluice spark-conf` and `sluice submit`, with a stand-in for spark-submit."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sluice.protocol.identity import parse_token
from sluice.spark_integration import SparkIntegrationError, cli, local_taskmanager
from sluice.spark_integration.endpoint_check import TOKEN, TOKEN_FILE
from sluice.spark_integration.local_taskmanager import LocalTaskManager

pytestmark = pytest.mark.slow  # all of it together

if TYPE_CHECKING:
    import click

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
    for variable in ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
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
    words = shlex.split(result.stdout)
    assert "spark.jars=/a b/s.jar" in words
    assert "spark.plugins.defaultList=io.sluice.spark.SluicePlugin" in words
    assert "spark.sluice.endpoints=tm 1:7337" in words
    # $(...) would keep the quotes and cut at the blanks.
    assert result.stderr.startswith("sluice: a value has a character that the shell would")
    assert 'eval "spark-submit $(sluice spark-conf' in result.stderr


def test_spark_conf_prints_plain_values_without_quotes() -> None:
    endpoints = "unix:/run/{host}/taskmanager.sock,[::1]:7337"
    result = CliRunner().invoke(cli.spark_conf, ["--endpoints", endpoints, "--jar", "/s.jar"])
    assert result.exit_code == 0
    assert result.stderr == ""
    assert f"spark.sluice.endpoints={endpoints}" in result.stdout.split()


def test_spark_conf_says_which_endpoints_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    arguments = ["--spark-version", "4.3.0", "--jar", "/s.jar"]
    assert CliRunner().invoke(cli.spark_conf, arguments).stderr == (
        "sluice: without --endpoints, spark.sluice.endpoints is 127.0.0.1:7337, the default\n"
    )
    (tmp_path / "spark-defaults.conf").write_text("spark.sluice.endpoints tm7:1\n")
    assert CliRunner().invoke(cli.spark_conf, arguments).stderr == (
        "sluice: without --endpoints, spark.sluice.endpoints is tm7:1, as your settings say\n"
    )


def test_spark_conf_adds_to_the_users_options_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.jars /default.jar\nspark.driver.defaultExtraClassPath /default\n"
    )
    arguments = ["--spark-version", "4.3.0", "--jar", "/s.jar"]
    words = CliRunner().invoke(cli.spark_conf, arguments).stdout.split()
    assert "spark.jars=/default.jar,/s.jar" in words
    assert "spark.driver.defaultExtraClassPath=/default:/s.jar" in words
    arguments += ["--jars", "/own.jar", "-c", "spark.x=1"]
    words = CliRunner().invoke(cli.spark_conf, arguments).stdout.split()
    assert "spark.jars=/own.jar,/s.jar" in words
    assert words[-2:] == ["--conf", "spark.x=1"]
    assert "--jars" not in words


def test_spark_conf_adds_to_the_class_path_of_spark_3_5() -> None:
    arguments = ["--spark-version", "3.5.9", "--jar", "/s.jar", "--driver-class-path", "/own"]
    words = CliRunner().invoke(cli.spark_conf, arguments).stdout.split()
    assert "spark.driver.extraClassPath=/own:/s.jar" in words
    assert "--driver-class-path" not in words


@pytest.mark.parametrize("command", [cli.spark_conf, cli.submit])
def test_another_shuffle_manager_is_refused_in_one_line(
    fake_spark: Path, command: click.Command
) -> None:
    words = ["--conf", "spark.shuffle.manager=org.other.Manager"]
    words += ["job.py"] if command is cli.submit else []
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: spark.shuffle.manager is set to another class than Sluice's (value "
        "org.other.Manager). Remove spark.shuffle.manager, or run this application without "
        "Sluice\n"
    )


@pytest.mark.parametrize("command", [cli.spark_conf, cli.submit])
def test_an_empty_list_of_endpoints_is_refused_in_one_line(
    fake_spark: Path, command: click.Command
) -> None:
    words = ["--endpoints", ""] + (["job.py"] if command is cli.submit else [])
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No endpoint is given")


@pytest.mark.parametrize("command", [cli.spark_conf, cli.submit])
def test_an_endpoint_without_a_port_is_refused_in_one_line(
    fake_spark: Path, command: click.Command
) -> None:
    words = ["--endpoints", "tm1"] + (["job.py"] if command is cli.submit else [])
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: An address has no host or no port (value tm1")
    assert result.stderr.count("\n") == 1


def test_spark_conf_reports_errors_in_one_line() -> None:
    result = CliRunner().invoke(cli.spark_conf, ["--spark-version", "2.4"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: This version of Spark is not supported (value 2.4")


def test_submit_passes_arguments_and_exit_code(fake_spark: Path, tmp_path: Path) -> None:
    write_script(fake_spark, f'printf "%s\\n" "$@" > {tmp_path}/arguments; exit 7')
    typed = ["--master", "local[2]", "job.py", "--flag", "a b"]
    result = CliRunner().invoke(cli.submit, ["--no-check", "--endpoints", "tm:1", "--", *typed])
    assert result.exit_code == 7
    words = (tmp_path / "arguments").read_text().splitlines()
    assert words[-5:] == typed
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


def submitted(fake_spark: Path, tmp_path: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """Return the arguments that spark-submit gets, and the variables of Python that it sees."""
    write_script(
        fake_spark,
        f'printf "%s\\n" "$@" > {tmp_path}/arguments; env | grep ^PYSPARK_ | sort > {tmp_path}/env',
    )
    result = CliRunner().invoke(cli.submit, ["--no-check", "--endpoints", "tm:1", "--", *arguments])
    assert result.exit_code == 0 or (tmp_path / "arguments").exists(), result.output
    return (
        (tmp_path / "arguments").read_text().splitlines(),
        (tmp_path / "env").read_text().splitlines(),
    )


@pytest.mark.parametrize(
    "typed",
    [["--jars", "/own.jar"], ["--jars=/own.jar"], ["--conf", "spark.jars=/own.jar"]],
    ids=" ".join,
)
def test_submit_adds_to_the_users_jars(fake_spark: Path, tmp_path: Path, typed: list[str]) -> None:
    packages = ["--packages", "org.example:example:1"]
    words, _ = submitted(fake_spark, tmp_path, *typed, *packages, "job.py", "--jars", "arg")
    assert f"spark.jars=/own.jar,{tmp_path}/s.jar" in words
    assert words[-5:] == [*packages, "job.py", "--jars", "arg"]
    assert words.index("--jars") == len(words) - 2


def test_submit_adds_to_spark_defaults(fake_spark: Path, tmp_path: Path) -> None:
    directory = fake_spark.parents[1] / "conf"
    directory.mkdir()
    (directory / "spark-defaults.conf").write_text("spark.jars=/own.jar\nspark.plugins=own.P\n")
    words, _ = submitted(fake_spark, tmp_path, "job.py")
    assert f"spark.jars=/own.jar,{tmp_path}/s.jar" in words
    # The user's plugins are loaded beside those of this list.
    assert "spark.plugins.defaultList=io.sluice.spark.SluicePlugin" in words
    assert not any(word.startswith("spark.plugins=") for word in words)


def test_submit_runs_the_job_in_its_own_python(fake_spark: Path, tmp_path: Path) -> None:
    _, variables = submitted(fake_spark, tmp_path, "job.py")
    assert variables == [
        f"PYSPARK_DRIVER_PYTHON={sys.executable}",
        f"PYSPARK_PYTHON={sys.executable}",
    ]


@pytest.mark.parametrize(
    ("environment", "typed", "expected"),
    [
        ({"PYSPARK_PYTHON": "/p"}, [], ["PYSPARK_PYTHON=/p"]),
        ({}, ["--conf", "spark.pyspark.python=/p"], []),
        (
            {"PYSPARK_DRIVER_PYTHON": "ipython"},
            [],
            ["PYSPARK_DRIVER_PYTHON=ipython", f"PYSPARK_PYTHON={sys.executable}"],
        ),
        (
            {},
            ["--conf", "spark.pyspark.driver.python=/d"],
            [f"PYSPARK_PYTHON={sys.executable}"],
        ),
    ],
)
def test_a_configured_python_is_kept(
    fake_spark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    typed: list[str],
    expected: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, variables = submitted(fake_spark, tmp_path, *typed, "job.py")
    assert variables == expected


def test_submit_takes_the_endpoints_of_the_users_settings(fake_spark: Path, tmp_path: Path) -> None:
    write_script(fake_spark, f'printf "%s\\n" "$@" > {tmp_path}/arguments')
    words = ["--no-check", "--", "--conf", "spark.sluice.endpoints=tm9:1", "job.py"]
    assert CliRunner().invoke(cli.submit, words).exit_code == 0
    given = (tmp_path / "arguments").read_text().splitlines()
    assert [word for word in given if "endpoints" in word] == ["spark.sluice.endpoints=tm9:1"]


def test_submit_gives_the_job_a_token_of_its_own_taskmanager(
    fake_spark: Path, tmp_path: Path
) -> None:
    write_script(
        fake_spark,
        f'printf "%s\\n" "$@" > {tmp_path}/arguments; '
        f'file="$(grep ^{TOKEN_FILE}= {tmp_path}/arguments)"; file="${{file#*=}}"; '
        f'stat -c %a "$file" "${{file%/*}}" > {tmp_path}/modes; cat "$file" > {tmp_path}/token; '
        f"cat /proc/*/cmdline > {tmp_path}/processes 2>/dev/null || true  # some have ended",
    )
    theirs = ["--conf", f"{TOKEN}=sluice-token-1-other", "--conf", f"{TOKEN_FILE}=/other"]
    assert CliRunner().invoke(cli.submit, ["--", *theirs, "job.py"]).exit_code == 0
    given = (tmp_path / "arguments").read_text().splitlines()
    assert [word for word in given if word.startswith(f"{TOKEN}=")] == [f"{TOKEN}="]
    assert len([word for word in given if word.startswith(f"{TOKEN_FILE}=")]) == 1
    assert (tmp_path / "modes").read_text().split() == ["600", "700"]
    token = parse_token((tmp_path / "token").read_text())
    assert token.subject == "local run"
    assert token.expires_at_seconds == 0
    processes = (tmp_path / "processes").read_bytes()
    assert b"--cluster-secret-files" in processes
    assert (tmp_path / "token").read_bytes().strip() not in processes
    assert b"sluice-secret-1-" not in processes


def test_submit_passes_a_token_on_to_taskmanagers_that_run(
    fake_spark: Path, tmp_path: Path
) -> None:
    words, _ = submitted(fake_spark, tmp_path, "--conf", f"{TOKEN_FILE}=/token", "job.py")
    assert [word for word in words if "auth" in word] == [f"{TOKEN_FILE}=/token"]


def test_submit_without_java_fails_with_one_line(
    fake_spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/no/such/directory")
    result = CliRunner().invoke(cli.submit, ["job.py"])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: Java is not found. Install Java 17 or later, or set JAVA_HOME to its directory\n"
    )


def test_submit_with_a_wrong_java_home_fails_with_one_line(
    fake_spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/directory")
    result = CliRunner().invoke(cli.submit, ["job.py"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: JAVA_HOME is not the directory of a Java installation")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [cli.spark_conf, cli.submit])
def test_submit_refuses_an_old_spark_in_one_line(
    fake_spark: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.4.4")
    result = CliRunner().invoke(command, ["job.py"] if command is cli.submit else [])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: This version of Spark is not supported (value 3.4.4")
    assert "pip install 'pyspark==4.3.*'" in result.stderr


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
    command = [sys.executable, "-c", SUBMIT, "--no-check", "--endpoints", "tm:1", "--", "job.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 9
        finally:
            process.kill()


def test_submit_without_pyspark_fails_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli.submit, ["job.py"])
    assert result.exit_code == 1
    assert "pip install 'sluice-shuffle[spark]'" in result.output


def test_the_local_taskmanager_answers_and_leaves_nothing() -> None:
    with LocalTaskManager() as taskmanager:
        path = taskmanager.endpoint.removeprefix("unix:")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert not Path(path).parent.exists()
    taskmanager.close()


def test_a_local_taskmanager_that_fails_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_NETWORK_SEGMENTS", "-5")
    with pytest.raises(SparkIntegrationError, match="network_segments"), LocalTaskManager():
        pytest.fail("it must not start")


def test_a_local_taskmanager_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_taskmanager, "START_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(SparkIntegrationError, match="not ready in time"), LocalTaskManager():
        pytest.fail("it must not be ready")
