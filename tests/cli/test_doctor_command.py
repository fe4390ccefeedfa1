"""``sluice doctor``: a line for each check, JSON, and the exit code."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from sluice.cli import doctor_command, doctor_host
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from tests.cli.rig import NOWHERE, run, taskmanager_serving
from tests.support.http_servers import in_terminal
from tools.docs.sample_status import STATUS


@pytest.fixture(autouse=True)
def host(monkeypatch, tmp_path):
    """A host on which nothing is wrong, whatever this one lacks."""
    for key in keys().values():
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.setenv("SLUICE_DATA_DIRECTORIES", str(tmp_path / "data"))
    monkeypatch.setenv("SLUICE_MIN_FREE_BYTES", "0")
    monkeypatch.setenv("SLUICE_DATA_PORT", "0")
    monkeypatch.setenv("SLUICE_HTTP_PORT", "0")
    for name in ("spark", "limits", "memory_directory"):
        monkeypatch.setattr(doctor_host, name, lambda *given: [doctor_host.ok("fake", "well")])


def test_a_host_without_problems_exits_with_0():
    with taskmanager_serving(STATUS) as port:
        result = run("doctor", f"127.0.0.1:{port}")
        document = json.loads(run("doctor", f"127.0.0.1:{port}", "--json").stdout)
    assert result.exit_code == 0, result.output
    assert "ok       HTTP http://127.0.0.1:" in result.stdout
    assert (document["schema"], document["problems"]) == ("sluice.doctor/1", 0)
    assert len(document["checks"]) == len(result.stdout.splitlines())


def test_problems_have_their_remedies_and_exit_with_1():
    result = run("doctor", NOWHERE, "--endpoints", f"{NOWHERE},nonsense")
    assert result.exit_code == 1
    problems = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert [line.split()[1] for line in problems] == ["endpoint:", "HTTP", "data"]
    assert all("Start it" in line or "Write HOST:PORT" in line for line in problems)


def test_configured_taskmanagers_are_asked(monkeypatch):
    monkeypatch.setenv("SLUICE_TASKMANAGERS", NOWHERE)
    assert f"problem  data {NOWHERE}" in run("doctor").stdout


def test_a_wrong_configuration_is_a_problem_and_no_end(monkeypatch):
    monkeypatch.setenv("SLUICE_DATA_PORT", "x")
    result = run("doctor")
    assert result.exit_code == 1
    assert "problem  configuration: data_port" in result.stdout
    assert "fake: well" in result.stdout


def test_data_processes_without_ports_are_a_problem(monkeypatch):
    monkeypatch.setenv("SLUICE_PROCESSES", "2")
    monkeypatch.setenv("SLUICE_DATA_PORT", "65535")
    result = run("doctor")
    assert result.exit_code == 1
    assert "problem  configuration: data_port = 65535 leaves no ports for 2" in result.stdout


def test_a_check_that_fails_unexpectedly_is_a_line(monkeypatch):
    def broken(config):
        yield doctor_host.ok("before", "well")
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(doctor_host, "data_directories", broken)
    result = run("doctor")
    assert result.exit_code == 1
    assert "ok       before: well" in result.stdout
    assert "problem  doctor: ZeroDivisionError: by zero" in result.stdout


def test_a_check_that_hangs_is_a_line(monkeypatch):
    released = threading.Event()

    def data_directories(config):
        released.wait(60)
        return []

    monkeypatch.setattr(doctor_host, "data_directories", data_directories)
    monkeypatch.setattr(doctor_command, "CHECK_SECONDS", 0.5)
    result = run("doctor")
    released.set()
    assert "problem  data directories: it did not end within 0.5 s" in result.stdout


def test_a_terminal_of_80_columns_gets_no_longer_line(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("SLUICE_DATA_DIRECTORIES", str(Path.home() / "none"))
    shown = in_terminal(80, "doctor")
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "skipped  HTTP ports: none is given" in shown
