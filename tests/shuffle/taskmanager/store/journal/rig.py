"""Stores that are filled, damaged, and opened again."""

from sluice.shuffle.taskmanager.store.journal.journal import Entry
from sluice.shuffle.taskmanager.store.journal.journal_reader import open_journal
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import (
    KEY,
    config,
    content,
    fetch,
    put,
)


async def filled(directory, attempts=4, length=400_000, **changes):
    """A store with some outputs, closed; returns the path of the last directory's journal.

    With a memory tier the first two outputs lie there, and the others on disk.
    """
    store = ShuffleStore.open(config(directory, **changes))
    for attempt in range(attempts):
        await put(store, attempt, length)
    await store.close()
    return list(store._journal.files.journals.values())[-1].path


def damage(path, position):
    """Flip a bit."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    return bytes(content)


def journal_in(directory):
    (path,) = directory.glob("journal-*")
    return path


def append(path, *rows):
    """Append rows as the run of the journal would have."""
    found = open_journal(path.parent, bytes(8))
    assert found is not None
    run = found.journal.run
    last = max((entry.number for entry in found.entries), default=0)
    found.journal.append([Entry(run, last + n, row) for n, row in enumerate(rows, 1)], [])
    found.journal.close()


async def kept_attempts(directory, **changes):
    """Attempts that a new store finds, after checking their bytes."""
    store = ShuffleStore.open(config(directory, **changes))
    outputs = store.map_outputs(KEY)
    for attempt, output in outputs.items():
        assert await fetch(store, output) == content(attempt, output.total_bytes)
    attempts = sorted(outputs)
    await store.close()
    return attempts
