"""One wait of a TaskManager, as its owner reports it and as the status has it.

A wait leads from a waiter to a resource. The resource of one wait is the waiter of another if kind,
name and application are the same, so all waits of a TaskManager together are a forest::

    map output ─▶ network memory ─▶ application that holds segments ─▶ its gate ─▶ the reader

Nothing is recorded for it while data moves: the owners look at their state when the status is
taken. Times are those of events that have one anyway, such as the begin of a wait for credit.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from .names import MapAttemptKey, ShuffleKey, SubpartitionRange

WAIT_KINDS: Final = (
    "application",
    "channel",
    "channels",
    "copies",
    "copy",
    "directory",
    "drain",
    "driver",
    "event_loop",
    "gate",
    "map_output",
    "missing_reader",
    "network_memory",
    "pipelined_partition",
    "rate",
    "read",
    "reader",
    "remote_tier",
    "request",
    "storage",
    "subpartition",
    "taskmanager",
    "taskmanagers",
    "writer",
)
"""The kinds of waiters and resources."""


_WORDS: Final = {
    "application": "application",
    "directory": "directory",
    "driver": "driver",
    "reader": "reader",
    "taskmanager": "TaskManager",
    "writer": "map task",
}
"""Words before the names of some kinds, whose names alone do not tell the kind."""

MAX_WAITS: Final = 200
"""Waits that a status has: those that have lasted longest."""


class WaitParty(msgspec.Struct, frozen=True, gc=False):
    """A waiter or a resource; kind, name and application together identify it."""

    kind: str = ""
    """One of ``WAIT_KINDS``."""
    name: str = ""
    application_id: str = ""
    """The application that it belongs to; empty if it belongs to none, or to several."""

    def __str__(self) -> str:
        word = _WORDS.get(self.kind, "")
        text = f"{word} {self.name}" if word else self.name
        is_named = self.kind == "application" or not self.application_id
        return text if is_named else f"{text} of {self.application_id}"


class WaitStatus(msgspec.Struct, frozen=True):
    """One wait of this moment."""

    waiter: WaitParty = WaitParty()
    resource: WaitParty = WaitParty()
    seconds: float | None = None
    """Time since when it has lasted, at least; None if that is not known."""
    text: str = ""
    """What the waiter waits for, as a sentence."""
    remedy: str = ""
    """What to do if it lasts."""
    taskmanager_id: str = ""
    """The TaskManager, or its data process: names are those of this one."""


def merged_waits(waits: Sequence[WaitStatus], omitted: int) -> tuple[tuple[WaitStatus, ...], int]:
    """Return the longest waits of several data processes, and the number of the others."""
    ranked = sorted(waits, key=lambda each: (each.seconds is None, -(each.seconds or 0.0)))
    return tuple(ranked[:MAX_WAITS]), omitted + len(ranked[MAX_WAITS:])


class Wait(NamedTuple):
    """One wait as its owner tells it.

    Attributes:
        waiter: What waits.
        resource: What it waits for.
        text: The wait as a sentence.
        remedy: What to do if it lasts.
        began_at: Since when it has lasted, at least, as of ``time.monotonic()``; None: not known.
    """

    waiter: WaitParty
    resource: WaitParty
    text: str
    remedy: str
    began_at: float | None = None


NETWORK_MEMORY: Final = WaitParty("network_memory", "network memory")
REMOTE_TIER: Final = WaitParty("remote_tier", "remote tier")
EVENT_LOOP: Final = WaitParty("event_loop", "event loop")


def application(application_id: str) -> WaitParty:
    """Return the party of an application, or of a tenant."""
    return WaitParty("application", application_id, application_id)


def map_output(key: ShuffleKey, map_attempt_id: int) -> WaitParty:
    """Return the party of a map output."""
    name = f"map output {map_attempt_id} of shuffle {key.shuffle_id}"
    return WaitParty("map_output", name, key.application_id)


def copy_of(attempt: MapAttemptKey) -> WaitParty:
    """Return the party of the copies of a map output."""
    output = map_output(*attempt)
    return WaitParty("copy", f"copy of {output.name}", output.application_id)


def pipelined_partition(key: ShuffleKey, map_attempt_id: int) -> WaitParty:
    """Return the party of a pipelined partition."""
    name = f"pipelined partition {map_attempt_id} of shuffle {key.shuffle_id}"
    return WaitParty("pipelined_partition", name, key.application_id)


def subpartition(key: ShuffleKey, map_attempt_id: int, index: int) -> WaitParty:
    """Return the party of a subpartition of a pipelined partition."""
    partition = pipelined_partition(key, map_attempt_id)
    name = f"subpartition {index} of {partition.name}"
    return WaitParty("subpartition", name, partition.application_id)


def request(wanted: SubpartitionRange) -> WaitParty:
    """Return the party of a request for subpartitions that are not found yet."""
    key, start, end = wanted
    some = f"subpartition {start}" if end - start == 1 else f"subpartitions {start} to {end - 1}"
    name = f"request for {some} of shuffle {key.shuffle_id}"
    return WaitParty("request", name, key.application_id)


def place(name: str) -> WaitParty:
    """Return the party of a directory, or of the remote tier if the name is a URL."""
    return WaitParty("remote_tier" if "://" in name else "directory", name)
