"""Hands a journal over from the thread that writes it, or removes it if nothing waits for it."""

import errno
import os
import threading

from .journal import Journal


class WrittenJournal:
    """The new generation that a thread writes; the thread removes it if it is late."""

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._is_given_up = False
        self._lock = threading.Lock()

    def keep(self, journal: Journal) -> Journal:
        """Hand over a complete journal. Runs in the thread.

        Raises:
            OSError: Nothing waits for it; it is removed.
        """
        with self._lock:
            if not self._is_given_up:
                self._journal = journal
                return journal
        journal.remove()
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    def is_wanted(self) -> bool:
        """Return whether something waits for the journal. Runs in the thread."""
        return not self._is_given_up

    def retain(self) -> None:
        """Record that nothing waits for the journal."""
        with self._lock:
            self._is_given_up = True

    def release(self) -> None:
        """Close it if it was complete before it was given up; the next start removes it."""
        if self._journal is not None:
            self._journal.close()
