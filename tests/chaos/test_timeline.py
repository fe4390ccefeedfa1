"""The time line turns Spark's events into entries, and counts them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.chaos.timeline import NO_REPAIRS, Entry, Timeline, merged, repairs, told


def task(index: int, attempt: int, reason: dict[str, Any], kind: str = "ShuffleMapTask"):
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": 3,
        "Stage Attempt ID": attempt,
        "Task Type": kind,
        "Task End Reason": reason,
        "Task Info": {"Index": index, "Executor ID": "7", "Finish Time": 12_500},
    }


SUCCESS = {"Reason": "Success"}
FETCH_FAILED = {"Reason": "FetchFailed", "Message": "gone\nat somewhere"}
LOST = {"Reason": "ExecutorLostFailure", "Loss Reason": "killed"}

EVENTS = [
    task(0, 0, SUCCESS),
    task(1, 0, LOST),
    task(1, 0, SUCCESS),
    task(0, 0, FETCH_FAILED, "ResultTask"),
    {
        "Event": "SparkListenerStageSubmitted",
        "Stage Info": {"Stage ID": 3, "Stage Attempt ID": 1, "Submission Time": 13_000},
    },
    task(0, 1, SUCCESS),
    task(0, 1, SUCCESS, "ResultTask"),
    {
        "Event": "SparkListenerExecutorRemoved",
        "Timestamp": 14_000,
        "Executor ID": "7",
        "Removed Reason": "killed",
    },
]


def test_what_spark_did_again_is_counted():
    found = repairs(EVENTS, Counter(flood=1))
    assert found.failed_tasks == {"ExecutorLostFailure": 1, "FetchFailed": 1}
    assert (found.stage_retries, found.map_reruns, found.executors_lost) == (1, {"flood": 1}, 1)
    assert NO_REPAIRS + found == found
    assert "map tasks run again: 1 (1 flood)" in str(found)
    assert repairs([task(0, 0, SUCCESS)], Counter()) == NO_REPAIRS
    assert "map tasks run again: 0 (none)" in str(NO_REPAIRS)


def test_trouble_is_told_with_its_time():
    assert [(entry.at, entry.text) for entry in told(EVENTS)] == [
        (12.5, "stage 3.0 on executor 7: ExecutorLostFailure killed"),
        (12.5, "stage 3.0 on executor 7: FetchFailed gone"),
        (13.0, "3.1 is tried again"),
        (14.0, "7 is lost: killed"),
    ]


def test_equal_neighbours_are_one_line():
    entries = [Entry(at, "task", text) for at, text in enumerate("aabba")]
    assert [(entry.at, entry.text, count) for entry, count in merged(entries)] == [
        (0, "a", 2),
        (2, "b", 2),
        (4, "a", 1),
    ]
    assert list(merged([])) == []


def test_entries_are_printed_in_order_of_time(capsys):
    timeline = Timeline()
    timeline.note("chaos", "second")
    timeline.add([Entry(0.0, "task", "first")])
    timeline.flush()
    timeline.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
