"""Sums over Spark's event log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.eventlog import NO_GROUP, ShuffleUse, read_event_log, summarize, total

if TYPE_CHECKING:
    from pathlib import Path


def stage(stage_id: int, group: str | None, attempt: int = 0) -> dict[str, Any]:
    properties = {} if group is None else {"spark.jobGroup.id": group}
    return {
        "Event": "SparkListenerStageSubmitted",
        "Stage Info": {"Stage ID": stage_id, "Stage Attempt ID": attempt},
        "Properties": properties,
    }


def task(
    stage_id: int,
    kind: str = "ShuffleMapTask",
    *,
    attempt: int = 0,
    reason: str = "Success",
    written: int = 0,
    local: int = 0,
    remote: int = 0,
) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage_id,
        "Stage Attempt ID": attempt,
        "Task Type": kind,
        "Task End Reason": {"Reason": reason},
        "Task Metrics": {
            "Executor Run Time": 1500,
            "Executor CPU Time": 500_000_000,
            "Shuffle Write Metrics": {
                "Shuffle Bytes Written": written,
                "Shuffle Records Written": written // 10,
                "Shuffle Write Time": 2_000_000,
            },
            "Shuffle Read Metrics": {
                "Local Bytes Read": local,
                "Remote Bytes Read": remote,
                "Total Records Read": (local + remote) // 10,
                "Local Blocks Fetched": 1,
                "Remote Blocks Fetched": 2,
                "Fetch Wait Time": 7,
            },
        },
    }


def test_tasks_are_summed_under_the_job_group_of_their_stage():
    uses = summarize(
        [
            stage(0, "a"),
            stage(1, "b"),
            task(0, written=100),
            task(1, written=40),
            task(0, written=50),
            task(1, "ResultTask", local=30, remote=10),
        ]
    )
    assert list(uses) == ["a", "b"]
    assert uses["a"].bytes_written == 150
    assert uses["a"].map_tasks == 2
    assert uses["b"].map_tasks == 1
    assert uses["b"].bytes_read == 40
    assert uses["b"].local_bytes_read == 30
    assert uses["a"].run_seconds == 3.0
    assert uses["a"].cpu_seconds == 1.0
    assert uses["b"].fetch_wait_seconds == 0.014


def test_a_failed_attempt_is_no_map_task_but_its_bytes_count():
    uses = summarize(
        [stage(0, "a"), task(0, reason="ExceptionFailure", written=5), task(0, written=9)]
    )
    assert (uses["a"].map_tasks, uses["a"].failed_tasks, uses["a"].tasks) == (1, 1, 2)
    assert uses["a"].bytes_written == 14


def test_a_task_of_a_lost_executor_has_no_metrics():
    lost = task(0, reason="ExecutorLostFailure") | {"Task Metrics": None}
    assert summarize([stage(0, "a"), lost])["a"] == ShuffleUse(tasks=1, failed_tasks=1)


def test_stage_attempts_have_groups_of_their_own_and_no_group_is_not_lost():
    uses = summarize(
        [
            stage(3, "a", attempt=0),
            stage(3, "b", attempt=1),
            stage(4, None),
            task(3, attempt=1, written=7),
            task(4, written=2),
        ]
    )
    assert uses["a"] == ShuffleUse()
    assert uses["b"].bytes_written == 7
    assert uses[NO_GROUP].bytes_written == 2
    assert total(uses.values()).bytes_written == 9


def test_a_log_file_is_one_event_a_line(tmp_path: Path):
    log = tmp_path / "app-1"
    events = [{"Event": "SparkListenerLogStart"}, stage(0, "a"), task(0, written=3)]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert read_event_log(log)["a"].bytes_written == 3
