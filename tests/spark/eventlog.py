"""Reads Spark's event log while the application still runs."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.eventlog import ShuffleUse, summarize, total

if TYPE_CHECKING:
    from pathlib import Path

MAP_TASK = "ShuffleMapTask"
RESULT_TASK = "ResultTask"


class Events:
    """Events of one application, or of a part of its time.

    Args:
        events: As Spark writes them, parsed.
    """

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events

    def shuffle_use(self) -> ShuffleUse:
        """Sum up what all tasks wrote to and read from shuffles."""
        return total(summarize(self.events).values())

    def successes(self) -> Events:
        """Without the ends of tasks that failed or were killed."""
        failed = [event for event in self._task_ends() if _reason(event) != "Success"]
        return Events([event for event in self.events if event not in failed])

    def map_runs(self) -> Counter[int]:
        """How often each map task ran to whatever end, by its index in its stage.

        Of use for jobs with one shuffle only.
        """
        return Counter(event["Task Info"]["Index"] for event in self._task_ends(MAP_TASK))

    def map_executors(self) -> set[str]:
        """Ids of the executors whose map tasks succeeded."""
        return self._executors(MAP_TASK)

    def reduce_executors(self) -> set[str]:
        """Ids of the executors whose reduce tasks succeeded, in jobs that collect."""
        return self._executors(RESULT_TASK)

    def task_ends(self) -> Counter[str]:
        """How tasks of all kinds ended: ``Success``, ``FetchFailed``, ``ExceptionFailure``..."""
        return Counter(_reason(event) for event in self._task_ends())

    def attempts_ended_by(self, reason: str) -> set[tuple[int, int]]:
        """Stages and their attempts with tasks that ended so, as :meth:`task_ends` names it."""
        return {
            (event["Stage ID"], event["Stage Attempt ID"])
            for event in self._task_ends()
            if _reason(event) == reason
        }

    def failures(self) -> list[str]:
        """Return the reason that Spark gives for each failed task."""
        reasons = [event["Task End Reason"] for event in self._task_ends()]
        return [
            f"{reason.get('Class Name', reason['Reason'])}: {reason.get('Description', '')}"
            for reason in reasons
            if reason["Reason"] != "Success"
        ]

    def task_starts(self) -> Counter[tuple[int, int]]:
        """How often each task began, whatever became of it, by stage and its index there."""
        return Counter(
            (event["Stage ID"], event["Task Info"]["Index"]) for event in self._task_starts()
        )

    def speculative_tasks(self) -> int:
        """How many tasks that began were copies of slow ones."""
        return sum(event["Task Info"]["Speculative"] for event in self._task_starts())

    def placements(self) -> list[tuple[str, str]]:
        """Host and locality of each reduce task of a job that collects."""
        return [
            (event["Task Info"]["Host"], event["Task Info"]["Locality"])
            for event in self._task_ends(RESULT_TASK)
        ]

    def executors_added(self) -> list[str]:
        """Ids of the executors that came."""
        return [
            event["Executor ID"]
            for event in self.events
            if event["Event"] == "SparkListenerExecutorAdded"
        ]

    def executors_removed(self) -> int:
        """How many executors were lost; Spark says so twice of one that was decommissioned."""
        return len(self.removed())

    def removed(self) -> set[str]:
        """Ids of the executors that were lost or released."""
        return {
            event["Executor ID"]
            for event in self.events
            if event["Event"] == "SparkListenerExecutorRemoved"
        }

    def _task_starts(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["Event"] == "SparkListenerTaskStart"]

    def _executors(self, kind: str) -> set[str]:
        return {event["Task Info"]["Executor ID"] for event in self.successes()._task_ends(kind)}

    def _task_ends(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["Event"] == "SparkListenerTaskEnd" and kind in (None, event["Task Type"])
        ]


def _reason(task_end: dict[str, Any]) -> str:
    return str(task_end["Task End Reason"]["Reason"])


class EventLog:
    """Follows the event log of an application.

    Args:
        path: Where it is when the application has ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> Events:
        """The events since the last call; all of a job's when its answer has come."""
        running = self._path.with_name(self._path.name + ".inprogress")
        with (running if running.exists() else self._path).open("rb") as log:
            log.seek(self._offset)
            complete = log.read().rpartition(b"\n")
        self._offset += len(complete[0]) + len(complete[1])
        return Events([json.loads(line) for line in complete[0].splitlines()])
