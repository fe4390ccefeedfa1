"""A journal of a few rows, written and read back."""

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.journal.journal import HEAD, Entry, Journal
from sluice.shuffle.taskmanager.store.journal.journal_reader import open_journal
from sluice.shuffle.taskmanager.store.journal.rows import pack_release_shuffle

ARENA = bytes(range(8))
ROWS = [Entry(1, n, pack_release_shuffle(ShuffleKey("app", n))) for n in range(5)]
RECORDS = [HEAD.size + len(entry.row) for entry in ROWS]


def written(directory, rows=ROWS, releases=()):
    journal = Journal.create(directory, ARENA, 1, [])
    for row in rows:
        journal.append([row], [])
    for row in releases:
        journal.append([], [row])
    journal.close()
    return journal.path


def reread(directory, arena=ARENA):
    found = open_journal(directory, arena)
    assert found is not None
    found.journal.close()
    return found
