"""Spark's event log: the shuffle bytes and rows of each job group, as Spark counted them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NO_GROUP = ""
"""Group of the tasks of jobs that were run under no job group."""

StageAttempt: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class ShuffleUse:
    """Sums over all task attempts of a job group, including failed and killed ones."""

    bytes_written: int = 0
    records_written: int = 0
    write_seconds: float = 0.0
    local_bytes_read: int = 0
    remote_bytes_read: int = 0
    records_read: int = 0
    local_blocks_fetched: int = 0
    remote_blocks_fetched: int = 0
    fetch_wait_seconds: float = 0.0
    map_tasks: int = 0
    """Shuffle map task attempts that succeeded."""
    failed_tasks: int = 0
    """Attempts of any kind that failed or were killed."""
    tasks: int = 0
    """Attempts of any kind."""
    run_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def bytes_read(self) -> int:
        """Shuffle bytes read, local and remote."""
        return self.local_bytes_read + self.remote_bytes_read

    def __add__(self, other: ShuffleUse) -> ShuffleUse:
        """Field by field."""
        return ShuffleUse(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in fields(self)
            }
        )


def read_event_log(path: Path) -> dict[str, ShuffleUse]:
    """Shuffle use by job group, groups in the order in which their first stage began.

    Args:
        path: An event log that is neither compressed nor rolled.
    """
    with path.open(encoding="utf-8") as lines:
        return summarize(json.loads(line) for line in lines)


def summarize(events: Iterable[dict[str, Any]]) -> dict[str, ShuffleUse]:
    """Shuffle use by job group; the group of a task is that of its stage attempt."""
    groups: dict[StageAttempt, str] = {}
    uses: dict[str, ShuffleUse] = {}
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerStageSubmitted":
            stage = event["Stage Info"]
            properties = event.get("Properties") or {}
            group = properties.get("spark.jobGroup.id", NO_GROUP)
            groups[stage["Stage ID"], stage["Stage Attempt ID"]] = group
            uses.setdefault(group, ShuffleUse())
        elif kind == "SparkListenerTaskEnd":
            attempt = (event["Stage ID"], event["Stage Attempt ID"])
            _add_task(uses.setdefault(groups.get(attempt, NO_GROUP), ShuffleUse()), event)
    return uses


def total(uses: Iterable[ShuffleUse]) -> ShuffleUse:
    """Sum over groups."""
    return sum(uses, ShuffleUse())


def _add_task(use: ShuffleUse, event: dict[str, Any]) -> None:
    use.tasks += 1
    if event["Task End Reason"]["Reason"] != "Success":
        use.failed_tasks += 1
    elif event["Task Type"] == "ShuffleMapTask":
        use.map_tasks += 1
    metrics = event.get("Task Metrics")
    if not metrics:  # an executor that was lost reports nothing
        return
    use.run_seconds += metrics["Executor Run Time"] / 1e3
    use.cpu_seconds += metrics["Executor CPU Time"] / 1e9
    write = metrics["Shuffle Write Metrics"]
    use.bytes_written += write["Shuffle Bytes Written"]
    use.records_written += write["Shuffle Records Written"]
    use.write_seconds += write["Shuffle Write Time"] / 1e9
    read = metrics["Shuffle Read Metrics"]
    use.local_bytes_read += read["Local Bytes Read"]
    use.remote_bytes_read += read["Remote Bytes Read"]
    use.records_read += read["Total Records Read"]
    use.local_blocks_fetched += read["Local Blocks Fetched"]
    use.remote_blocks_fetched += read["Remote Blocks Fetched"]
    use.fetch_wait_seconds += read["Fetch Wait Time"] / 1e3
