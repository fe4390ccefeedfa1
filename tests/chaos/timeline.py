"""One list of what was done to a job and what Spark did about it, in order of time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MESSAGE_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Entry:
    """Something happened."""

    at: float
    """Seconds since the epoch."""
    source: str
    text: str


class Timeline:
    """Collects entries from several threads and prints them with seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.time()
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def note(self, source: str, text: str) -> None:
        """Add what happens now."""
        self.add([Entry(time.time(), source, text)])

    def add(self, entries: Iterable[Entry]) -> None:
        """Add what happened at known times."""
        with self._lock:
            self._entries.extend(entries)

    def flush(self) -> None:
        """Print what has come since the last time, in order, equal neighbours as one."""
        with self._lock:
            entries, self._entries = sorted(self._entries, key=lambda entry: entry.at), []
        for entry, count in merged(entries):
            times = f"  (x{count})" if count > 1 else ""
            print(f"{entry.at - self._began:7.1f}  {entry.source:<6} {entry.text}{times}")


def merged(entries: Iterable[Entry]) -> Iterator[tuple[Entry, int]]:
    """Each first of equal entries that follow each other, and how many there are."""
    first: Entry | None = None
    count = 0
    for entry in entries:
        if first is not None and (entry.source, entry.text) == (first.source, first.text):
            count += 1
            continue
        if first is not None:
            yield first, count
        first, count = entry, 1
    if first is not None:
        yield first, count


@dataclass(frozen=True, slots=True)
class Repairs:
    """How much Spark had to do again."""

    failed_tasks: Counter[str]
    """By reason."""
    stage_retries: int
    map_reruns: Counter[str]
    """Successful runs of map tasks beyond the first of each, by cause."""
    executors_lost: int

    def __add__(self, other: Repairs) -> Repairs:
        """Field by field."""
        return Repairs(
            self.failed_tasks + other.failed_tasks,
            self.stage_retries + other.stage_retries,
            self.map_reruns + other.map_reruns,
            self.executors_lost + other.executors_lost,
        )

    def __str__(self) -> str:
        return (
            f"tasks that failed: {_listed(self.failed_tasks)};"
            f" stages tried again: {self.stage_retries};"
            f" map tasks run again: {self.map_reruns.total()} ({_listed(self.map_reruns)});"
            f" executors lost: {self.executors_lost}"
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items()) or "none"


NO_REPAIRS = Repairs(Counter(), 0, Counter(), 0)


def repairs(events: Iterable[dict[str, Any]], map_reruns: Counter[str]) -> Repairs:
    """Count them in events of Spark's log, from which ``map_reruns`` were counted before."""
    failed: Counter[str] = Counter()
    retries = lost = 0
    for event in events:
        match event["Event"]:
            case "SparkListenerTaskEnd":
                reason = event["Task End Reason"]["Reason"]
                if reason != "Success":
                    failed[reason] += 1
            case "SparkListenerStageSubmitted":
                retries += event["Stage Info"]["Stage Attempt ID"] > 0
            case "SparkListenerExecutorRemoved":
                lost += 1
    return Repairs(failed, retries, map_reruns, lost)


def told(events: Iterable[dict[str, Any]]) -> Iterator[Entry]:
    """Turn the warnings and errors of Spark's log into entries."""
    for event in events:
        match event["Event"]:
            case "SparkListenerTaskEnd":
                info, reason = event["Task Info"], event["Task End Reason"]
                if reason["Reason"] != "Success":
                    place = f"stage {event['Stage ID']}.{event['Stage Attempt ID']}"
                    where = f"on executor {info['Executor ID']}"
                    yield Entry(
                        info["Finish Time"] / 1e3,
                        "task",
                        f"{place} {where}: {reason['Reason']} {message_of(reason)}",
                    )
            case "SparkListenerStageSubmitted":
                stage = event["Stage Info"]
                if stage["Stage Attempt ID"] > 0:
                    yield Entry(
                        stage.get("Submission Time", 0) / 1e3,
                        "stage",
                        f"{stage['Stage ID']}.{stage['Stage Attempt ID']} is tried again",
                    )
            case "SparkListenerExecutorAdded":
                host = event["Executor Info"]["Host"]
                yield Entry(event["Timestamp"] / 1e3, "exec", f"{event['Executor ID']} on {host}")
            case "SparkListenerExecutorRemoved":
                text = f"{event['Executor ID']} is lost: {_first_line(event['Removed Reason'])}"
                yield Entry(event["Timestamp"] / 1e3, "exec", text)
            case "SparkListenerJobEnd":
                if event["Job Result"]["Result"] != "JobSucceeded":
                    text = _first_line(str(event["Job Result"].get("Exception", {})))
                    yield Entry(event["Completion Time"] / 1e3, "job", f"failed: {text}")


def message_of(reason: dict[str, Any]) -> str:
    """Return the first line of what a task that failed says."""
    for key in ("Message", "Description", "Loss Reason", "Kill Reason"):
        if reason.get(key):
            return _first_line(f"{reason.get('Class Name', '')} {reason[key]}")
    return ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:MESSAGE_LENGTH]
