"""Decides how long an application lives: while it has connections, and for a while after.

A driver or executor that is killed closes its connections without a message. When the last
connection of an application is gone, a deadline starts; when it has passed, everything of the
application is released. For an application that was adopted after a restart of the TaskManager the
deadline runs from the start.

TaskManagers with copies keep an application alive for each other, by their copiers' connections.
If these counted like a client's, two TaskManagers with copies of each other's map outputs would
keep them forever after the driver was killed. So the deadline starts when the last client is gone.
When it has passed, this TaskManager no longer keeps the application alive elsewhere. It keeps its
own data as long as another TaskManager keeps the application alive here.
"""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class _ApplicationClients:
    __slots__ = ("clients", "copiers", "ended", "expires_at", "expiry", "lives")

    def __init__(self) -> None:
        self.clients = 0
        self.copiers = 0
        self.ended = False
        self.lives = False
        """Whether it has clients, or the deadline after the last one has not passed."""
        self.expiry: asyncio.TimerHandle | None = None
        self.expires_at = 0.0

    @property
    def connections(self) -> int:
        return self.clients + self.copiers


class Applications:
    """Counts the connections of each application and expires those without any.

    Args:
        expiry_seconds: How long an application outlives its last connection.
        release: Frees all data of an application; returns the bytes freed.
        on_abandoned: Called with an application that had no client for that long, and that only
            other TaskManagers keep alive here: this one must not keep it alive there.
    """

    def __init__(
        self,
        expiry_seconds: float,
        release: Callable[[str], int],
        on_abandoned: Callable[[str], None],
    ) -> None:
        self._expiry_seconds = expiry_seconds
        self._release = release
        self._on_abandoned = on_abandoned
        self._applications: dict[str, _ApplicationClients] = {}
        self.expired_total = 0

    def adopt(self, application_id: str) -> None:
        """Register an application whose data was found at the start."""
        application = self._applications.setdefault(application_id, _ApplicationClients())
        application.lives = True
        if application.connections == 0 and application.expiry is None:
            self._start_deadline(application_id, application)

    def knows(self, application_id: str) -> bool:
        """Return whether an application has connections, data, or a running deadline."""
        return application_id in self._applications

    def lives(self, application_id: str) -> bool:
        """Return whether an application has a client, or a running deadline after its last one."""
        application = self._applications.get(application_id)
        return application is not None and application.lives and not application.ended

    def connected(self, application_id: str, *, copier: bool = False) -> None:
        """Count a connection of the application: of a client, or of another TaskManager."""
        application = self._applications.setdefault(application_id, _ApplicationClients())
        if copier:
            application.copiers += 1
            return
        application.clients += 1
        application.lives = True
        if application.expiry is not None:
            application.expiry.cancel()
            application.expiry = None

    def disconnected(self, application_id: str, *, copier: bool = False) -> None:
        """Uncount a connection; after the last one, or the last client, the deadline starts."""
        application = self._applications.get(application_id)
        if application is None:
            return
        if copier:
            application.copiers -= 1
        else:
            application.clients -= 1
        if application.ended:
            if application.connections == 0:
                del self._applications[application_id]
                # Data that an executor may have written after the end.
                self._release(application_id)
        elif application.clients == 0 and (not copier or application.connections == 0):
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

    def _start_deadline(self, application_id: str, application: _ApplicationClients) -> None:
        if application.expiry is not None:
            application.expiry.cancel()
        loop = asyncio.get_running_loop()
        application.expires_at = loop.time() + self._expiry_seconds
        application.expiry = loop.call_at(application.expires_at, self._expire, application_id)

    def _expire(self, application_id: str) -> None:
        application = self._applications[application_id]
        application.expiry = None
        if application.copiers:
            application.lives = False
            self._on_abandoned(application_id)
            return
        del self._applications[application_id]
        self.expired_total += 1
        freed = self._release(application_id)
        logger.info(
            "application %s had no connection for %g s: released, %d bytes freed",
            application_id,
            self._expiry_seconds,
            freed,
        )
