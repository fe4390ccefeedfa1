"""The TaskManagers of a benchmark have the data path that its result tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.taskmanager.status.status import data_path
from tests.support import taskmanagers
from tests.support.taskmanagers import TaskManagers

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


def test_a_lost_taskmanager_is_replaced_by_a_new_one(tmp_path: Path):
    with TaskManagers(tmp_path / "tm", memory_tier="16 MiB") as benchmark:
        host = benchmark.hosts[1]
        data = tmp_path / "tm" / f"data-{host}"
        before = [process.pid for process in benchmark.processes]
        identity = (data / "taskmanager-id").read_text()
        benchmark.lose(host)
        assert not any(data.iterdir())
        assert [process.running for process in benchmark.processes] == [True, False]
        benchmark.replace(host)
        assert benchmark.processes[0].pid == before[0]
        assert benchmark.processes[1].pid != before[1]
        assert (data / "taskmanager-id").read_text() != identity
        benchmark.moved()
