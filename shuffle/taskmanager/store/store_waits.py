"""Waits for storage: reads and writes at directories, commits, requests to the remote tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...wait_status import Wait, WaitParty, application, map_output, place
from .journal.rows import is_commit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .files.directory_threads import StorageThreads
    from .files.io_threads import WaitingCall
    from .journal.journal_writer import JournalWriter
    from .remote.remote_outputs import RemoteOutputs

SLOW_DISK: Final = "Check the disk and what else uses it; add a data directory, or raise io_threads"
SLOW_JOURNAL: Final = "Check the disk: reads and writes of bulk data do not delay its journal"

SLOW_REMOTE: Final = (
    "Check that the remote store answers, and the network to it; or raise remote_requests"
)
UPLOAD_MEMORY: Final = WaitParty("rate", "remote_upload_bytes")
MORE_UPLOAD_MEMORY: Final = "Wait until other uploads end, or raise remote_upload_bytes"
SLOW_UPLOADS: Final = "Check that the remote store answers, and the network to it"


def waits_of_calls(threads: StorageThreads) -> Iterator[Wait]:
    """Yield a wait for each application with reads or writes at a directory."""
    for each in threads.directories():
        resource = place(str(each.directory))
        for application_id, calls in _by_application(each.data.calls()).items():
            running = sum(call.is_running for call in calls)
            yield Wait(
                application(application_id),
                resource,
                f"{running} reads and writes are under way, {len(calls) - running} wait for the "
                "application's turn at the threads of the directory",
                SLOW_DISK,
                min(call.began_at for call in calls),
            )


def waits_of_rows(journal: JournalWriter) -> Iterator[Wait]:
    """Yield a wait for each journal that does not have the row of a map output yet."""
    for row in journal.rows:
        if row.is_over:
            continue
        what = "commit" if is_commit(row.entry.row) else "secured regions"
        for arena in row.arenas:
            directory = journal.directory_of(arena)
            if directory is not None:
                yield Wait(
                    map_output(*row.attempt),
                    place(str(directory)),
                    f"The {what} must be written to the journal of the directory",
                    SLOW_JOURNAL,
                    row.queued_at,
                )


def waits_of_remote(remote: RemoteOutputs) -> Iterator[Wait]:
    """Yield the waits of applications for requests to the remote tier and for upload memory.

    The uploads under way hold the memory for which other uploads wait.
    """
    tier = remote.tier
    resource = place(str(tier.place))
    for application_id, calls in _by_application(remote.requests()).items():
        running = sum(call.is_running for call in calls)
        text = (
            f"{running} reads and lookups are under way, {len(calls) - running} wait for the "
            "application's turn"
        )
        began_at = min(call.began_at for call in calls)
        yield Wait(application(application_id), resource, text, SLOW_REMOTE, began_at)
    waiting = _by_application(tier.budget.calls())
    for application_id, calls in waiting.items():
        text = f"{len(calls)} uploads wait for memory"
        began_at = min(call.began_at for call in calls)
        waiter = application(application_id)
        yield Wait(waiter, UPLOAD_MEMORY, text, MORE_UPLOAD_MEMORY, began_at)
    if waiting:
        text = f"Uploads under way hold {tier.budget.used_bytes} bytes of memory"
        yield Wait(UPLOAD_MEMORY, resource, text, SLOW_UPLOADS)


def _by_application(calls: Iterable[WaitingCall]) -> dict[str, list[WaitingCall]]:
    found: dict[str, list[WaitingCall]] = {}
    for call in calls:
        found.setdefault(call.application_id, []).append(call)
    return found
