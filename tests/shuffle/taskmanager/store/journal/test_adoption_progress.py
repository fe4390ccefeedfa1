"""The progress of an adoption is logged for a terminal only."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from sluice.shuffle.taskmanager.store.journal import adoption_progress
from sluice.shuffle.taskmanager.store.journal.adoption_progress import with_progress
from tests.shuffle.taskmanager.store.journal.rig import damage, filled, kept_attempts


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
            assert [*with_progress("abcd", "verifying /data/1", 4)] == [*"abcd"]
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


async def test_each_step_of_an_adoption_shows_its_progress(tmp_path, caplog, monkeypatch):
    journal = await filled(tmp_path, memory_tier_bytes=0)
    damage(journal, -1)  # the row of the fourth map output; regions are verified now
    size = journal.stat().st_size
    monkeypatch.setattr(adoption_progress, "INTERVAL_SECONDS", 0.0)
    caplog.set_level(logging.INFO, adoption_progress.__name__)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Stream(is_terminal=True))
        assert await kept_attempts(tmp_path, memory_tier_bytes=0) == [0, 1, 2]
    ends = {}
    for record in caplog.records:
        if record.name == adoption_progress.__name__:
            label, _, rest = record.getMessage().partition(": ")
            ends[label] = rest.partition("] ")[2]
    data = tmp_path / "data"
    done, _, total = ends.pop(f"reading bytes of {journal}").partition(" of ")
    assert 0 < int(done) < int(total) == size
    assert ends == {
        "replaying rows of journals": "3 of 3",
        f"adopting regions in {data}": "3 of 3",
        f"verifying map outputs in {data}": "3 of 3",
        "adding map outputs to the index": "3 of 3",
    }
