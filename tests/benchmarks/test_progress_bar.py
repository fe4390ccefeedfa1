"""The progress bar of benchmarks: drawn on a terminal, and nowhere else."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from tests.support.progress_bar import progress_bar, with_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console_on(file: io.StringIO) -> Console:
    return Console(
        file=file, force_terminal=True, width=80, highlight=False, _environ={"TERM": "xterm"}
    )


def test_a_terminal_shows_how_many_steps_have_ended():
    terminal = Terminal()
    console = console_on(terminal)
    for each in with_bar(range(3), "rounds", console):
        console.print(f"round {each}")
    shown = terminal.getvalue()
    assert "rounds" in shown
    assert all(f"{ended}/3" in shown for ended in range(4))
    assert all(f"round {each}" in shown for each in range(3))


def test_a_pipe_gets_only_what_is_printed():
    """Even if FORCE_COLOR makes rich call it a terminal."""
    pipe = io.StringIO()
    console = console_on(pipe)
    for each in with_bar(range(3), "rounds", console):
        console.print(f"round {each}")
    assert pipe.getvalue() == "round 0\nround 1\nround 2\n"


def test_no_thread_draws_the_bar():
    threads = threading.active_count()
    with progress_bar(2, "rounds", console_on(Terminal())) as advance:
        advance()
        assert threading.active_count() == threads


def test_the_terminal_shows_its_cursor_after_an_error():
    terminal = Terminal()
    with (
        pytest.raises(ValueError, match="a step failed"),
        progress_bar(2, "rounds", console_on(terminal)),
    ):
        raise ValueError("a step failed")
    shown = terminal.getvalue()
    assert shown.count("\x1b[?25h") == shown.count("\x1b[?25l") == 1
