"""Tasks that ran again, counted from Spark's events."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.event_log import TaskCounts, count_tasks


def end(index: int, reason: str = "Success", kind: str = "ShuffleMapTask") -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": 3,
        "Task Type": kind,
        "Task End Reason": {"Reason": reason},
        "Task Info": {"Index": index},
    }


def submitted(attempt: int) -> dict[str, Any]:
    return {"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage Attempt ID": attempt}}


def test_a_map_task_that_succeeds_twice_is_a_rerun():
    counts = count_tasks([submitted(0), end(0), end(1), submitted(1), end(1)])
    assert (counts.map_tasks, counts.reruns, counts.stages_again) == (2, 1, 1)


def test_a_failed_attempt_is_not_a_rerun():
    failed = [end(0, reason) for reason in ("ExceptionFailure", "ExecutorLostFailure")]
    counts = count_tasks([*failed, end(0), end(0, "FetchFailed", "ResultTask")])
    assert counts == TaskCounts(1, 0, failed=1, lost=1, fetch_failures=1, stages_again=0)


def test_reduce_tasks_are_not_counted():
    assert count_tasks([end(0, kind="ResultTask")] * 2).map_tasks == 0


def test_counts_read_as_a_sentence():
    assert str(TaskCounts(8, 0, 0, 0, 0, 0)) == "0 of 8 map tasks rerun"
    assert str(TaskCounts(8, 1, 0, 2, 3, 1)) == (
        "1 of 8 map tasks rerun, 3 fetch failures, 2 attempts lost with executors"
    )
