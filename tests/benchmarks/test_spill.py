"""bench-spill: its figures, and what it says where it cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory_cgroup
from benchmarks.memory_cgroup import CgroupUnavailable, MemoryCgroup
from benchmarks.spill import disk_use, percentile, report_of


def run(number: int, side: str, **values: float) -> dict[str, Any]:
    return {
        "round": number,
        "job": "sort",
        "side": side,
        "readyz_p99_ms": 0.0,
        "innocent_p99": 0.0,
        **values,
    }


def test_figures_are_medians_of_ratios_and_the_worst_of_all_jobs():
    runs = []
    for number, seconds in enumerate((2.0, 4.0, 30.0)):
        own = {"seconds": 4.0, "cpu_seconds": 10.0, "shuffle_bytes": 0}
        disk = {"disk_written_bytes": 200.0, "disk_read_bytes": 100.0}
        runs.append(run(number, "own", **own, **disk))
        ours = {"seconds": seconds, "cpu_seconds": 5.0, "shuffle_bytes": 100.0}
        disk = {"disk_written_bytes": 110.0, "disk_read_bytes": 220.0}
        late = {"readyz_p99_ms": seconds, "innocent_p99": seconds / 10}
        runs.append({**run(number, "sluice", **ours, **disk), **late})
    report = report_of([*runs, *({**each, "job": "other", "seconds": 1.0} for each in runs)])
    assert report.figures == {
        "time": 1.0,
        "cpu": 0.5,
        "written_over_shuffle": 1.1,
        "read_over_written": 2.0,
        "readyz_p99_ms": 30.0,
        "innocent_p99": 3.0,
    } | {
        f"{job}_{key}": value
        for job in ("sort", "other")
        for key, value in {
            "time": 1.0,
            "cpu": 0.5,
            "written_over_shuffle": 1.1,
            "read_over_written": 2.0,
            "own_written_over_shuffle": 2.0,
            "own_read_over_written": 0.5,
        }.items()
    }
    assert report.spread["sort_time"] == (0.5, 7.5)


def test_a_directory_in_memory_is_refused():
    with pytest.raises(RuntimeError, match="set TMPDIR to a directory that is"):
        disk_use(Path("/dev/shm"))


def test_without_permission_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_cgroup, "_ROOT", tmp_path / "missing")
    with pytest.raises(CgroupUnavailable, match="as a user who may"), MemoryCgroup(1 << 30):
        raise AssertionError("there is no such cgroup")


def test_a_cgroup_that_takes_no_limit_is_removed(tmp_path, monkeypatch):
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(memory_cgroup, "_ROOT", tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(CgroupUnavailable, match=r"cgroup\.subtree_control"), MemoryCgroup(1 << 30):
        raise AssertionError("it has no limit")
    assert list((tmp_path / "memory").iterdir()) == []


def test_the_99th_percentile():
    assert percentile([float(number) for number in range(100)]) == 99.0
    assert percentile([]) == 0.0
