"""Waits of copies and moves: for another TaskManager, the rate, a stream, or the drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...wait_status import (
    REMOTE_TIER,
    Wait,
    WaitParty,
    copy_of,
    map_output,
)
from .target import RemoteTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .application_copies import ApplicationCopies
    from .copies import Copies

MAX_NAMED: Final = 256
"""Map outputs of an application that are named, of those whose producers wait."""

TAKES_TIME: Final = "Check that TaskManager, its disks and the network between the hosts"
REMOTE_ACCEPTS: Final = "Check that the remote store is reachable and accepts writes"
RATE: Final = WaitParty("rate", "restore_bytes_per_second")
RAISE_RATE: Final = "Wait, or raise restore_bytes_per_second"
STREAMS: Final = WaitParty("rate", "copy_streams")
RAISE_STREAMS: Final = "Wait, or raise copy_streams"
MORE_TASKMANAGERS: Final = (
    "Start a TaskManager on another host, free space there, or name it to the driver"
)
MIGRATE_LATER: Final = "Free space at the other TaskManagers; repeat sluice drain --migrate later"


def waits_of_copies(copies: Copies) -> Iterator[Wait]:
    """Yield the waits of copies that are made, and of producers that wait for them."""
    for each in copies.replication.applications:
        yield from _of_application(each)
    streams = copies.services.streams
    for application_id, requests in streams.waiting.items():
        text = f"{len(requests)} copies or moves wait for a stream; {streams.held} are in use"
        yield Wait(_copies_of(application_id), STREAMS, text, RAISE_STREAMS)
    progress = copies.migration.progress
    if progress.staying:
        text = f"{progress.staying} map outputs stay here: {progress.reason}"
        resource = WaitParty("taskmanagers", "TaskManagers that take moved map outputs")
        yield Wait(WaitParty("drain", "migration"), resource, text, MIGRATE_LATER)


def _copies_of(application_id: str) -> WaitParty:
    return WaitParty("copies", f"copies of {application_id}", application_id)


def _of_application(copies: ApplicationCopies) -> Iterator[Wait]:
    for attempt, running in copies.running.items():
        if running.waits_for_rate:
            text = "The copy waits until the rate allows its next region"
            yield Wait(copy_of(attempt), RATE, text, RAISE_RATE, running.began_at)
        elif running.target == RemoteTarget.name:
            text = "The copy is being written to the remote tier"
            yield Wait(copy_of(attempt), REMOTE_TIER, text, REMOTE_ACCEPTS, running.began_at)
        elif running.target:
            resource = WaitParty("taskmanager", running.target)
            text = "The copy is being written there"
            yield Wait(copy_of(attempt), resource, text, TAKES_TIME, running.began_at)
    party = _copies_of(copies.application_id)
    targets = (
        (WaitParty("taskmanagers", "TaskManagers that take copies"), MORE_TASKMANAGERS),
        (REMOTE_TIER, REMOTE_ACCEPTS),
    )
    for stalled, (resource, remedy) in zip(copies.stalled, targets, strict=True):
        if len(stalled):
            text = f"{len(stalled)} map outputs lack a copy: {stalled.reason or stalled.cause}"
            yield Wait(party, resource, text, remedy, stalled.stalled_at)
    for attempt in copies.producers[:MAX_NAMED]:
        is_running = attempt in copies.running
        resource = copy_of(attempt) if is_running else party
        text = "It is committed, and its producer waits for the copy"
        yield Wait(map_output(*attempt), resource, text, TAKES_TIME)
