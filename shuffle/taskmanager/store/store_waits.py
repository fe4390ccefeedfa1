"""What waits for the storage directories: reads and writes of applications, and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...wait_status import Wait, application, map_output, place
from .journal.rows import is_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .files.directory_threads import StorageThreads
    from .files.io_threads import WaitingCall
    from .journal.journal_writer import JournalWriter

SLOW_DISK: Final = "Check the disk and what else uses it; add a data directory, or raise io_threads"
SLOW_JOURNAL: Final = "Check the disk: reads and writes of bulk data do not delay its journal"


def waits_of_calls(threads: StorageThreads) -> Iterator[Wait]:
    """Yield a wait for each application with reads or writes at a directory."""
    for each in threads.directories():
        by_application: dict[str, list[WaitingCall]] = {}
        for call in each.data.calls():
            by_application.setdefault(call.application_id, []).append(call)
        resource = place(str(each.directory))
        for application_id, calls in by_application.items():
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
