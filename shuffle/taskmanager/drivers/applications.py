"""Decides how long an application lives: while it has connections, and for a while after.

A driver or executor that is killed closes its connections without a message. When the last
connection of an application is gone, a deadline starts; when it has passed, everything of the
application is released. For an application that was adopted after a restart of the TaskManager the
deadline runs from the start.

TaskManagers with copies keep an application alive for each other, by their copiers' connections.
If these counted like a client's, two TaskManagers with copies of each other's map outputs would
keep them forever after the driver was killed. So the deadline starts when the last client is gone,
and no copier prolongs it. When it has passed, this TaskManager no longer keeps the application
alive elsewhere. It keeps its own data as long as another TaskManager keeps the application alive
here, and for one more deadline after its last copier.

A TaskManager that was away may not know that an application has ended, and copy its map outputs
again. It says so if it has no client of the application. Its copies are then refused while the end
is remembered here, which is longer than it keeps an application without clients. If it has started
meanwhile, its copies are also refused unless the application is known here.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.limits import COPIER_ADOPTED, COPIER_IDLE

logger = logging.getLogger(__name__)

END_REMEMBERED: Final = 4
"""Time for which the end of an application is remembered, in times of its expiry. A TaskManager
notices within one or two that its last client is gone, and keeps the application for one."""


MAX_ENDED: Final = 10_000
"""Maximum number of ends that are remembered; the oldest is forgotten first."""


class _ApplicationClients:
    __slots__ = (
        "clients",
        "copiers",
        "ended",
        "expires_at",
        "expiry",
        "is_adopted",
        "is_copied",
        "lives",
    )

    def __init__(self) -> None:
        self.clients = 0
        self.copiers = 0
        self.ended = False
        self.is_adopted = False
        """Whether it was found at the start, and has not had a client since."""
        self.is_copied = False
        """Whether another TaskManager has sent copies since the deadline started."""
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
        self._ended: dict[str, asyncio.TimerHandle] = {}
        """When to forget the end of each application that has ended."""
        self.expired_total = 0

    def adopt(self, application_id: str) -> None:
        """Register an application whose data was found at the start."""
        application = self._applications.setdefault(application_id, _ApplicationClients())
        application.lives = application.is_adopted = True
        if application.connections == 0 and application.expiry is None:
            self._start_deadline(application_id, application)

    def knows(self, application_id: str) -> bool:
        """Return whether an application has connections, data, or a running deadline."""
        return application_id in self._applications

    def lives(self, application_id: str) -> bool:
        """Return whether an application has a client, or a running deadline after its last one."""
        application = self._applications.get(application_id)
        return application is not None and application.lives and not application.ended

    def vouching(self, application_id: str) -> int:
        """Return the features that a copier of the application says in its Hello."""
        application = self._applications.get(application_id)
        if application is not None and application.clients:
            return 0
        is_adopted = application is not None and application.is_adopted
        return COPIER_IDLE | (COPIER_ADOPTED if is_adopted else 0)

    def require_unended(self, application_id: str, features: int) -> None:
        """Check that an application has not ended, as far as is known here and to a copier.

        Args:
            application_id: The application.
            features: What the copier says in its Hello: :meth:`vouching`.

        Raises:
            PARTITION_RELEASED: It has ended, or neither side knows of a client.
        """
        has_ended = application_id in self._ended
        is_known = application_id in self._applications
        if (features & COPIER_IDLE and has_ended) or (features & COPIER_ADOPTED and not is_known):
            raise SluiceError(
                f"application {application_id} has ended, or no client of it is connected",
                code=ErrorCode.PARTITION_RELEASED,
                remedy="Nothing to do: its copies are made when a client connects",
            )

    def connected(self, application_id: str, *, copier: bool = False) -> None:
        """Count a connection of the application: of a client, or of another TaskManager."""
        application = self._applications.setdefault(application_id, _ApplicationClients())
        if copier:
            application.copiers += 1
            return
        application.clients += 1
        application.lives = True
        application.is_adopted = False
        self._forget_end(application_id)
        application.is_copied = False
        if application.expiry is not None:
            application.expiry.cancel()
            application.expiry = None

    def disconnected(
        self, application_id: str, *, copier: bool = False, idle: bool = False
    ) -> None:
        """Uncount a connection; after the last one, or the last client, the deadline starts.

        Args:
            application_id: The application.
            copier: Whether it was of another TaskManager.
            idle: Whether that one had no client of the application: it prolongs no deadline, or
                two TaskManagers that try to copy in vain would keep each other's data forever.
        """
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
                self._remember_end(application_id)
                # Data that an executor may have written after the end.
                self._release(application_id)
        elif copier and application.lives and application.expiry is not None:
            application.is_copied = True
        elif application.clients == 0 and (
            not copier
            or (application.connections == 0 and not (idle and application.expiry is not None))
        ):
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
        self._remember_end(application_id)
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
        for application_id in list(self._ended):
            self._forget_end(application_id)

    def _remember_end(self, application_id: str) -> None:
        self._forget_end(application_id)
        if len(self._ended) >= MAX_ENDED:
            self._forget_end(next(iter(self._ended)))
        self._ended[application_id] = asyncio.get_running_loop().call_later(
            END_REMEMBERED * self._expiry_seconds, self._ended.pop, application_id, None
        )

    def _forget_end(self, application_id: str) -> None:
        timer = self._ended.pop(application_id, None)
        if timer is not None:
            timer.cancel()

    def _start_deadline(self, application_id: str, application: _ApplicationClients) -> None:
        if application.expiry is not None:
            application.expiry.cancel()
        loop = asyncio.get_running_loop()
        application.expires_at = loop.time() + self._expiry_seconds
        application.expiry = loop.call_at(application.expires_at, self._expire, application_id)

    def _expire(self, application_id: str) -> None:
        application = self._applications[application_id]
        application.expiry = None
        if application.copiers or application.is_copied:
            application.lives = application.is_copied = False
            self._on_abandoned(application_id)
            if not application.copiers:
                self._start_deadline(application_id, application)
            return
        del self._applications[application_id]
        self._remember_end(application_id)
        self.expired_total += 1
        freed = self._release(application_id)
        logger.info(
            "application %s had no connection for %g s: released, %d bytes freed",
            application_id,
            self._expiry_seconds,
            freed,
            extra={"application": application_id},
        )
