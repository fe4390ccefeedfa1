"""The progress bar of ``sluice drain --migrate``: only in a terminal, and never in the way."""

from __future__ import annotations

import io
import json
import threading
import types

import pytest
from msgspec import structs

from sluice.cli import drain_progress
from sluice.cli.drain_progress import with_progress
from sluice.cli.http_client import Given
from sluice.shuffle.taskmanager.replicas.copies_status import CopiesStatus
from tests.cli.rig import NOWHERE, run
from tests.support.http_servers import in_terminal, page_serving
from tools.docs.sample_status import STATUS

GIVEN = Given(None, None)


class Terminal(io.StringIO):
    """Standard error as a terminal that remembers what it shows."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal()
    # Not in `sys` itself, whose streams pytest replaces after this.
    monkeypatch.setattr("sluice.cli.drain_progress.sys", types.SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(drain_progress, "INTERVAL_SECONDS", 0.001)
    return terminal


def test_a_terminal_shows_how_many_have_moved(monkeypatch, terminal):
    ended = threading.Event()
    asked = iter([0, 3, 12])

    def fetch_status(url, token, timeout_seconds):
        moved = next(asked, None)
        if moved is None:
            ended.set()
        return {}, structs.replace(
            STATUS, copies=CopiesStatus(moved=12 if moved is None else moved)
        )

    monkeypatch.setattr(drain_progress, "fetch_status", fetch_status)
    assert with_progress("http://tm", GIVEN, lambda: ended.wait(60)) is True
    shown = terminal.getvalue()
    assert "moving map outputs" in shown
    assert "25%" in shown  # 3 of 12
    assert "100%" in shown


def test_a_pipe_shows_nothing_and_asks_nothing(monkeypatch, capsys):
    monkeypatch.setattr(drain_progress, "fetch_status", None)
    assert with_progress("http://tm", GIVEN, lambda: 7) == 7
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_work_is_raised(terminal):
    def fail():
        raise ValueError("the drain")

    with pytest.raises(ValueError, match="the drain"):
        with_progress(f"http://{NOWHERE}", GIVEN, fail)


def test_without_a_status_the_work_goes_on(terminal):
    ended = threading.Event()
    threading.Timer(0.05, ended.set).start()
    assert with_progress(f"http://{NOWHERE}", GIVEN, lambda: ended.wait(60))
    assert terminal.getvalue() == ""


ANSWER = {"state": "draining", "busy": False, "moved": 3, "staying": 0, "reason": "", "unread": []}


def test_a_terminal_gets_the_outcome_after_the_bar():
    with page_serving(json.dumps(ANSWER)) as port:
        shown = in_terminal(80, "drain", "--migrate", f"127.0.0.1:{port}")
    assert "drained: 3 map outputs have moved, nothing is written or read" in shown


@pytest.mark.parametrize(("staying", "exit_code"), [(0, 0), (2, 1)])
def test_the_outcome_is_json_whether_or_not_all_have_moved(staying, exit_code):
    answer = ANSWER | {"staying": staying, "reason": "full" if staying else ""}
    with page_serving(json.dumps(answer)) as port:
        result = run("drain", "--migrate", "--json", f"127.0.0.1:{port}")
    assert result.exit_code == exit_code
    assert json.loads(result.stdout) == answer


@pytest.mark.parametrize(("state", "exit_code"), [("ready", 0), ("stopped", 1)])
def test_undrain_prints_the_state_as_json(state, exit_code):
    with page_serving(json.dumps({"state": state})) as port:
        result = run("undrain", "--json", f"127.0.0.1:{port}")
    assert result.exit_code == exit_code
    assert json.loads(result.stdout) == {"state": state}
