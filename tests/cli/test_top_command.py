"""``sluice top``: live in a terminal, plain in a pipe, JSON for programs."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest

from sluice.cli import top_command
from tests.cli.rig import NOWHERE, run, taskmanager_serving
from tests.support.http_servers import in_terminal
from tools.docs.sample_status import STATUS

ONCE = ("--interval", "0.2", "--count", "1")


def test_a_pipe_gets_one_refresh_as_a_table():
    with taskmanager_serving(STATUS) as port:
        result = run("top", f"127.0.0.1:{port}", "--interval", "0.2")
    assert result.exit_code == 0, result.output
    head, columns, *rows = result.stdout.splitlines()
    assert head.startswith("1 of 1 TaskManagers, in ")
    assert columns.split()[:2] == ["kind", "application"]
    assert len(rows) == len(STATUS.gates) + len(STATUS.pipelined_partitions) + len(
        STATUS.partitions
    )
    assert "\x1b" not in result.stdout


def test_json_is_a_document_on_a_line_for_each_refresh():
    with taskmanager_serving(STATUS) as port:
        result = run(
            "top", f"127.0.0.1:{port}", NOWHERE, "--json", "--interval", "0.2",
            "--count", "2", "--rows", "1", "--sort", "memory",
        )  # fmt: skip
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["schema"] for each in documents] == ["sluice.top/1"] * 2
    assert list(documents[0]["unreachable"]) == [f"http://{NOWHERE}"]
    assert len(documents[0]["rows"]) == 1
    assert documents[0]["rows"][0]["memory_bytes"] > 0


def test_nobody_that_answers_is_one_line():
    result = run("top", NOWHERE)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no TaskManager answers: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_shows_the_view_and_gives_the_screen_back(monkeypatch, no_color):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with taskmanager_serving(STATUS) as port:
        shown = in_terminal(80, "top", f"127.0.0.1:{port}", *ONCE)
    assert "\x1b[?1049h" in shown
    assert shown.rstrip().endswith(("\x1b[?1049l\x1b[?25h", "\x1b[?1049l", "\x1b[?25h"))
    assert "sort: w wait, r rate, m memory" in shown
    assert ("\x1b[33m" in shown or "\x1b[1;31m" in shown) <= (not no_color)


def test_without_rich_the_live_view_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with taskmanager_serving(STATUS) as port:
        monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
        result = run("top", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    assert "pip install 'sluice-shuffle[top]'" in result.stderr


def test_keys_are_read_at_once_and_the_terminal_is_as_before(monkeypatch):
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "r") as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            with top_command._single_keys() as reads_keys:
                assert reads_keys
                os.write(leader, b"mq")
                assert top_command._keys(10, reads_keys=True) == "mq"
                assert top_command._keys(0, reads_keys=True) == ""
    finally:
        os.close(leader)
