"""Tells which trouble explains a fetch failure, and a map task that ran again."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.chaos.timeline import message_of
from tests.spark.eventlog import MAP_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNREGISTERED = "Missing an output location for shuffle"
"""The error of a task that begins after the failed fetch of another one of its stage attempt."""

LOST_WITH_DIRECTORY = "was lost with its storage directory"

_OF_LOST_DATA = re.compile(
    r"\b(PARTITION_NOT_FOUND|TASKMANAGER_MISMATCH|STORAGE_CORRUPT|CHECKSUM_MISMATCH"
    r"|SEQUENCE_GAP|END_OF_PARTITION_MISMATCH|was damaged in storage)\b"
)
"""Errors of a TaskManager that is well and has lost or damaged data."""

_SOURCE = re.compile(r"TaskManager \S+ at ([\w.]+):\d+")
NO_HOST = ".invalid"
"""Suffix of the host name that Spark gets for a TaskManager on no executor's host."""

SPECULATION = "a speculative copy"
UNKNOWN = "unknown"


@dataclass(slots=True)
class Trouble:
    """A time in which a host's TaskManager or its links were not well."""

    host: str
    began: float
    """Seconds since the epoch."""
    ended: float = float("inf")
    what: str = ""
    lasting: bool = False
    """Whether it lost or damaged data, which a task may find out any time later."""

    def explains(self, at: float, patience_seconds: float, *, lost_data: bool) -> bool:
        """Tell whether a failure may have come of it.

        Args:
            at: When, in seconds since the epoch.
            patience_seconds: How long after its end a task may fail for it.
            lost_data: Whether the failure says that data are missing or damaged.
        """
        if at < self.began:
            return False
        return at <= self.ended + patience_seconds or (self.lasting and lost_data)


def wrong_blame(
    events: Iterable[dict[str, Any]], troubles: Iterable[Trouble], patience_seconds: float
) -> Iterator[str]:
    """Fetch failures that no trouble explains.

    Args:
        events: Of Spark's log.
        troubles: All that there was.
        patience_seconds: How long after the end of a trouble a task may fail for it.
    """
    troubles = list(troubles)
    explained: set[int] = set()
    """Shuffles of which Spark has forgotten map outputs, after a failure that has its trouble."""
    for event in events:
        reason = event.get("Task End Reason", {})
        if reason.get("Reason") != "FetchFailed":
            continue
        at = event["Task Info"]["Finish Time"] / 1e3
        text = str(reason)
        lost_data = _OF_LOST_DATA.search(text) is not None
        explaining = [
            trouble
            for trouble in troubles
            if trouble.explains(at, patience_seconds, lost_data=lost_data)
        ]
        if UNREGISTERED in text and reason["Shuffle ID"] in explained:
            continue
        if reason.get("Block Manager Address") is None:
            damaged = lost_data and _source_of(reason) in {
                trouble.host for trouble in explaining if trouble.lasting
            }
            if not damaged and (LOST_WITH_DIRECTORY not in text or not explaining):
                yield f"a map output is missing or damaged: {message_of(reason)}"
                continue
        elif (host := _source_of(reason)) not in {trouble.host for trouble in explaining}:
            yield f"{host} was well and is blamed: {message_of(reason)}"
            continue
        explained.add(reason["Shuffle ID"])


class MapRuns:
    """Counts map tasks that ran again, by cause, over all jobs of an application.

    A map task is a partition of the data set that its stage computes. Another job may run it
    again in a stage of its own.

    Args:
        troubles: All that there was; may grow while this counts.
    """

    def __init__(self, troubles: Sequence[Trouble] = ()) -> None:
        self.troubles = troubles
        self._data_sets: dict[int, int] = {}
        """The data set of each stage, by its number."""
        self._done: dict[tuple[int, int], tuple[int, int]] = {}
        """The stage attempt in which each map task was done last."""
        self._failure: dict[str, Any] = {}
        """The reason of the last failed fetch."""
        self._failed_at = 0.0

    def add(self, events: Iterable[dict[str, Any]]) -> Counter[str]:
        """Take in events of Spark's log; return how many map tasks ran again, by cause."""
        again: Counter[str] = Counter()
        for event in events:
            match event["Event"]:
                case "SparkListenerStageSubmitted":
                    stage = event["Stage Info"]
                    data_sets = [each["RDD ID"] for each in stage.get("RDD Info", ())]
                    # The one that the stage computes comes last of those that it is made of.
                    self._data_sets[stage["Stage ID"]] = max(data_sets, default=-1)
                case "SparkListenerTaskEnd":
                    if cause := self._ended(event):
                        again[cause] += 1
        return again

    def _ended(self, event: dict[str, Any]) -> str | None:
        info, reason = event["Task Info"], event["Task End Reason"]
        if reason["Reason"] == "FetchFailed":
            self._failed_at, self._failure = info["Finish Time"] / 1e3, reason
        if reason["Reason"] != "Success" or event["Task Type"] != MAP_TASK:
            return None
        stage = event["Stage ID"]
        partition = info.get("Partition ID", info["Index"])
        key = self._data_sets.get(stage, -1 - stage), partition
        attempt = stage, event["Stage Attempt ID"]
        before = self._done.get(key)
        self._done[key] = attempt
        if before is None:
            return None
        if before == attempt:
            return SPECULATION
        return self._cause(info.get("Launch Time", info["Finish Time"]) / 1e3)

    def _cause(self, at: float) -> str:
        found = [trouble for trouble in self.troubles if trouble.began <= at]
        if self._failed_at <= at:
            host = _source_of(self._failure)
            found = [trouble for trouble in found if trouble.host == host] or found
            if _OF_LOST_DATA.search(str(self._failure)):
                found = [trouble for trouble in found if trouble.lasting] or found
        return found[-1].what if found else UNKNOWN


def _source_of(reason: dict[str, Any]) -> str | None:
    """Return the host whose TaskManager a fetch failure names."""
    address = reason.get("Block Manager Address")
    if address is not None and not str(address["Host"]).endswith(NO_HOST):
        return str(address["Host"])
    named = _SOURCE.search(str(reason))
    return None if named is None else named[1]
