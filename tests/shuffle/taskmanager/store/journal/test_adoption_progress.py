"""The progress of an adoption is logged for a terminal only."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from sluice.shuffle.taskmanager.store.journal import adoption_progress
from sluice.shuffle.taskmanager.store.journal.adoption_progress import with_progress


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def logged(caplog, monkeypatch):
    """Run four steps with this standard error; return what is logged."""

    def run(stream: Stream | None) -> list[str]:
        caplog.set_level(logging.INFO, adoption_progress.__name__)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            assert [*with_progress("abcd", "verifying /data/1")] == [*"abcd"]
        return [record.getMessage() for record in caplog.records]

    return run


def test_a_terminal_shows_a_bar(logged, monkeypatch):
    monkeypatch.setattr(adoption_progress, "INTERVAL_SECONDS", 0.0)
    lines = logged(Stream(is_terminal=True))
    assert lines[0] == "verifying /data/1: [#####...............] 1 of 4"
    assert lines[-1] == "verifying /data/1: [####################] 4 of 4"
    assert len(lines) == 4


def test_a_short_adoption_logs_nothing(logged, monkeypatch):
    monkeypatch.setattr(adoption_progress, "INTERVAL_SECONDS", 3600.0)
    assert logged(Stream(is_terminal=True)) == []


@pytest.mark.parametrize("stream", [Stream(is_terminal=False), None])
def test_without_a_terminal_nothing_is_logged(logged, monkeypatch, stream):
    monkeypatch.setattr(adoption_progress, "INTERVAL_SECONDS", 0.0)
    assert logged(stream) == []
