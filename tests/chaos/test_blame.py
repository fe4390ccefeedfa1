"""Which trouble explains a fetch failure, and a map task that ran again."""

from __future__ import annotations

from typing import Any

from tests.chaos.blame import SPECULATION, UNKNOWN, MapRuns, Trouble, wrong_blame

SUCCESS = {"Reason": "Success"}
FETCH_FAILED = {"Reason": "FetchFailed", "Message": "gone\nat somewhere"}
LOST = {"Reason": "ExecutorLostFailure", "Loss Reason": "killed"}


def task_end(
    reason: dict[str, Any], kind: str = "ShuffleMapTask", *, stage: int = 3, attempt: int = 0
) -> dict[str, Any]:
    """The end of a task of partition 5, which lasted from 11.5 to 12.5."""
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Stage Attempt ID": attempt,
        "Task Type": kind,
        "Task End Reason": reason,
        "Task Info": {
            "Index": 0,
            "Partition ID": 5,
            "Executor ID": "7",
            "Launch Time": 11_500,
            "Finish Time": 12_500,
        },
    }


def fetch_failure(host: str | None, message: str = "gone\nat somewhere") -> dict[str, Any]:
    source = None if host is None else {"Executor ID": "sluice-1", "Host": host, "Port": 1}
    reason = {
        "Reason": "FetchFailed",
        "Message": message,
        "Block Manager Address": source,
        "Shuffle ID": 4,
    }
    return task_end(reason, "ResultTask")


def stage_submitted(stage: int, *data_sets: int) -> dict[str, Any]:
    return {
        "Event": "SparkListenerStageSubmitted",
        "Stage Info": {
            "Stage ID": stage,
            "Stage Attempt ID": 0,
            "RDD Info": [{"RDD ID": number} for number in data_sets],
        },
    }


def blames(event: dict[str, Any], *troubles: Trouble) -> list[str]:
    return list(wrong_blame([event], troubles, patience_seconds=10.0))


def test_a_fetch_failure_names_a_host_that_was_in_trouble():
    troubles = [Trouble("a", 1.0, 2.0), Trouble("b", 10.0), Trouble("c", 13.0)]
    assert blames(fetch_failure("b"), *troubles) == []
    assert blames(fetch_failure("a"), *troubles) == ["a was well and is blamed: gone"]  # long ago
    assert blames(fetch_failure("c"), *troubles) == ["c was well and is blamed: gone"]  # not yet
    assert blames(fetch_failure(None), *troubles) == ["a map output is missing or damaged: gone"]
    assert blames(task_end(LOST)) == []


def test_a_fetch_failure_may_tell_that_a_directory_is_lost():
    lost = "Map attempt 3 of shuffle 1 was lost with its storage directory"
    assert blames(fetch_failure(None, lost), Trouble("a", 10.0)) == []
    assert blames(fetch_failure(None, lost), Trouble("a", 1.0, 2.0)) == [
        f"a map output is missing or damaged: {lost}"
    ]


def test_a_host_that_spark_does_not_know_is_named_by_the_message():
    away = "CONNECT_FAILED: nobody answers (TaskManager 9d at 127.0.0.1:7337)"
    failure = fetch_failure("sluice-9d.invalid", away)
    assert blames(failure, Trouble("127.0.0.1", 10.0)) == []
    assert blames(failure, Trouble("127.0.0.2", 10.0)) == [
        f"127.0.0.1 was well and is blamed: {away}"
    ]


def test_a_task_that_begins_late_finds_no_map_output():
    late = fetch_failure(None, "Missing an output location for shuffle 4 partition 2")
    trouble = [Trouble("b", 10.0)]
    assert list(wrong_blame([fetch_failure("b"), late], trouble, 10.0)) == []
    assert len(list(wrong_blame([fetch_failure("a"), late], trouble, 10.0))) == 2
    assert len(blames(late, *trouble)) == 1


def test_damage_is_found_out_any_time_later():
    source = "(TaskManager tm-1 at 127.0.0.2:7337, map attempt 9)"
    damaged = f"CHECKSUM_MISMATCH: block of other bytes {source}"
    missing = f"PARTITION_NOT_FOUND: nobody registered it {source}"
    away = f"CONNECT_FAILED: nobody answers {source}"
    lasting = Trouble("127.0.0.2", 1.0, 2.0, lasting=True)
    assert blames(fetch_failure(None, damaged), lasting) == []
    assert blames(fetch_failure("127.0.0.2", missing), lasting) == []
    # But not on another host, not before, not for a connection, and not without damage.
    assert blames(fetch_failure(None, damaged), Trouble("127.0.0.1", 1.0, 2.0, lasting=True))
    assert blames(fetch_failure(None, damaged), Trouble("127.0.0.2", 13.0, 14.0, lasting=True))
    assert blames(fetch_failure("127.0.0.2", away), lasting)
    assert blames(fetch_failure(None, damaged), Trouble("127.0.0.2", 1.0))


def test_map_tasks_run_again_have_a_cause():
    troubles = [Trouble("a", 1.0, 2.0, "first"), Trouble("b", 10.0, 11.0, "second")]
    runs = MapRuns(troubles)
    assert not runs.add([stage_submitted(3, 7, 9), task_end(SUCCESS), task_end(LOST)])
    assert runs.add([task_end(SUCCESS)]) == {SPECULATION: 1}
    assert runs.add([task_end(SUCCESS, attempt=1)]) == {"second": 1}
    # A host that is blamed tells which trouble it was.
    again = [fetch_failure("a"), task_end(SUCCESS, attempt=2)]
    assert runs.add(again) == {"second": 1}  # it failed after the task had begun
    again[0]["Task Info"]["Finish Time"] = 11_000
    assert runs.add([again[0], task_end(SUCCESS, attempt=3)]) == {"first": 1}
    # One that says that data are damaged is of what damages data.
    troubles[:1] = [Trouble("a", 1.0, 2.0, "flip", lasting=True), Trouble("a", 5.0, 6.0, "reset")]
    again[0]["Task End Reason"]["Message"] = "CHECKSUM_MISMATCH: other bytes"
    assert runs.add([again[0], task_end(SUCCESS, attempt=4)]) == {"flip": 1}
    assert MapRuns().add([task_end(SUCCESS), task_end(SUCCESS, attempt=1)]) == {UNKNOWN: 1}


def test_a_map_task_may_run_again_in_another_job():
    runs = MapRuns([Trouble("a", 1.0, 2.0, "first")])
    assert not runs.add([stage_submitted(3, 7, 9), task_end(SUCCESS)])
    assert not runs.add([stage_submitted(4, 8), task_end(SUCCESS, stage=4)])
    assert runs.add([stage_submitted(5, 9, 7), task_end(SUCCESS, stage=5)]) == {"first": 1}
