"""Counts tasks that ran again, from Spark's event log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks of an application.

    Attributes:
        map_tasks: Map tasks that there are.
        reruns: Map tasks that succeeded again after they had succeeded.
        failed: Attempts of any task that failed, except those that ended with their executor.
        lost: Attempts that ended with their executor.
        fetch_failures: Attempts of any task that could not read map outputs.
        stages_again: Stage attempts after the first ones.
    """

    map_tasks: int
    reruns: int
    failed: int
    lost: int
    fetch_failures: int
    stages_again: int

    def __str__(self) -> str:
        counts = f"{self.reruns} of {self.map_tasks} map tasks rerun"
        others = (
            (self.fetch_failures, "fetch failures"),
            (self.failed, "failed attempts"),
            (self.lost, "attempts lost with executors"),
        )
        return ", ".join([counts, *(f"{count} {what}" for count, what in others if count)])


def read_event_log(path: Path) -> TaskCounts:
    """Count the tasks of an event log that is neither compressed nor rolled."""
    with path.open(encoding="utf-8") as lines:
        return count_tasks(json.loads(line) for line in lines)


def count_tasks(events: Iterable[dict[str, Any]]) -> TaskCounts:
    """Count tasks by the ends of their attempts."""
    ends: Counter[tuple[int, int]] = Counter()
    reasons: Counter[str] = Counter()
    again = 0
    for event in events:
        if event["Event"] == "SparkListenerStageSubmitted":
            again += event["Stage Info"]["Stage Attempt ID"] > 0
        elif event["Event"] == "SparkListenerTaskEnd":
            reason = event["Task End Reason"]["Reason"]
            reasons[reason] += 1
            if reason == "Success" and event["Task Type"] == "ShuffleMapTask":
                ends[event["Stage ID"], event["Task Info"]["Index"]] += 1
    others = {"Success", "FetchFailed", "ExecutorLostFailure", "TaskKilled"}
    return TaskCounts(
        map_tasks=len(ends),
        reruns=sum(ends.values()) - len(ends),
        failed=sum(count for reason, count in reasons.items() if reason not in others),
        lost=reasons["ExecutorLostFailure"],
        fetch_failures=reasons["FetchFailed"],
        stages_again=again,
    )
