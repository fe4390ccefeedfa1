"""Decides how long an application lives: while it has connections, and for a while after.

A driver or executor that is killed closes its connections without a message. When the last
connection of an application is gone, a deadline starts; when it has passed, everything of the
application is released. For an application that was adopted after a restart of the TaskManager the
deadline runs from the start.
"""

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class _Application:
    __slots__ = ("connections", "ended", "expires_at", "expiry")

    def __init__(self) -> None:
        self.connections = 0
        self.ended = False
        self.expiry: asyncio.TimerHandle | None = None
        self.expires_at = 0.0


class Applications:
    """Counts the connections of each application and expires those without any.

    Args:
        expiry_seconds: How long an application outlives its last connection.
        release: Frees all data of an application; returns the bytes freed.
    """

    def __init__(self, expiry_seconds: float, release: Callable[[str], int]) -> None:
        self._expiry_seconds = expiry_seconds
        self._release = release
        self._applications: dict[str, _Application] = {}
        self.expired_total = 0

    def adopt(self, application_id: str) -> None:
        """Register an application whose data was found at the start."""
        application = self._applications.setdefault(application_id, _Application())
        if application.connections == 0 and application.expiry is None:
            self._start_deadline(application_id, application)

    def knows(self, application_id: str) -> bool:
        """Return whether an application has connections, data, or its deadline before it."""
        return application_id in self._applications

    def connected(self, application_id: str) -> None:
        """Count a connection of the application."""
        application = self._applications.setdefault(application_id, _Application())
        application.connections += 1
        if application.expiry is not None:
            application.expiry.cancel()
            application.expiry = None

    def disconnected(self, application_id: str) -> None:
        """Uncount a connection; after the last one the deadline starts."""
        application = self._applications.get(application_id)
        if application is None:
            return
        application.connections -= 1
        if application.connections > 0:
            return
        if application.ended:
            del self._applications[application_id]
            self._release(application_id)  # data that an executor may have written after the end
        else:
            self._start_deadline(application_id, application)

    def release(self, application_id: str) -> int:
        """Release everything of an application that has announced its end.

        The application is forgotten with its last connection, without a deadline.

        Returns:
            Bytes freed.
        """
        application = self._applications.get(application_id)
        if application is not None:
            application.ended = True
        return self._release(application_id)

    def snapshot(self) -> list[tuple[str, int, float | None]]:
        """Return (application id, connections, seconds until expiry or None) of each."""
        now = asyncio.get_running_loop().time()
        return [
            (name, each.connections, None if each.expiry is None else each.expires_at - now)
            for name, each in self._applications.items()
        ]

    def close(self) -> None:
        """Stop all deadlines; the data stays for the next start."""
        for application in self._applications.values():
            if application.expiry is not None:
                application.expiry.cancel()
        self._applications.clear()

    def _start_deadline(self, application_id: str, application: _Application) -> None:
        loop = asyncio.get_running_loop()
        application.expires_at = loop.time() + self._expiry_seconds
        application.expiry = loop.call_at(application.expires_at, self._expire, application_id)

    def _expire(self, application_id: str) -> None:
        del self._applications[application_id]
        self.expired_total += 1
        freed = self._release(application_id)
        _log.info(
            "application %s had no connection for %g s: released, %d bytes freed",
            application_id,
            self._expiry_seconds,
            freed,
        )
