"""The TaskManagers of a benchmark have the data path that its result tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import taskmanagers
from benchmarks.taskmanagers import TaskManagers
from sluice.shuffle.taskmanager.watch.status import data_path

if TYPE_CHECKING:
    from pathlib import Path


def test_another_data_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(taskmanagers, "data_path", lambda: "other")
    benchmark = TaskManagers(tmp_path / "tm", memory_tier="16 MiB")
    with (
        pytest.raises(RuntimeError, match=f"TaskManager is {data_path()}, that of the benchmark"),
        benchmark,
    ):
        pass
    assert len(benchmark.processes) == len(benchmark.hosts)
    assert not any(process.running for process in benchmark.processes)
