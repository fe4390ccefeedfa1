"""Closes connections that hold nothing and send nothing but Pings.

Two kinds of connections are never closed, because they keep an application alive: its only driver,
and if it has no driver, its last connection while it has data here.
"""

import logging
from collections import Counter as Multiset
from collections.abc import Iterator, Mapping
from typing import Protocol

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.remote_error import error_response
from ....protocol.schema import ROLE_DRIVER
from ....transport.connection import Connection
from ....transport.errors import counted
from ...counters import Counters
from .accounts import Accounts, Resource
from .progress import OURS, Mark, ProgressWatch

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """The part of a connection's handler that is used here."""

    @property
    def holds_anything(self) -> bool:
        """Whether anything is open on the connection."""


class IdleConnections:
    """Watches the accepted connections of a TaskManager.

    Args:
        handlers: The connections that have finished the handshake.
        accounts: The accounts of their applications.
        counters: The TaskManager's counters.
        timeout_seconds: Time after which an idle connection is closed; None: never.
    """

    def __init__(
        self,
        handlers: Mapping[Connection, Holder],
        accounts: Accounts,
        counters: Counters,
        timeout_seconds: float | None,
    ) -> None:
        self._handlers = handlers
        self._accounts = accounts
        self._counters = counters
        self._open: Multiset[str] = Multiset()
        """Connections by application at the last check, without those closed since."""
        self._drivers: Multiset[str] = Multiset()
        self._watch: ProgressWatch[Connection] = ProgressWatch(
            timeout_seconds, self._marks, self._late
        )

    def accepted(self) -> None:
        """Watch a new connection."""
        self._watch.watch()

    def gone(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._watch.forget(connection)

    def look(self) -> None:
        """Close connections idle since the last check; the timer calls this."""
        self._watch.look()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._watch.close()

    def _marks(self) -> Iterator[tuple[Connection, Mark]]:
        self._open.clear()
        self._drivers.clear()
        for connection, handler in self._handlers.items():
            if connection.closing:
                continue
            self._open[connection.application_id] += 1
            if connection.role == ROLE_DRIVER:
                self._drivers[connection.application_id] += 1
            if handler.holds_anything:
                yield connection, OURS
            else:
                traffic = connection.traffic
                yield connection, traffic.messages_in - traffic.pings_in

    def _late(self, connection: Connection) -> None:
        if connection.closing or self._keeps_alive(connection):
            return
        self._open[connection.application_id] -= 1
        if connection.role == ROLE_DRIVER:
            self._drivers[connection.application_id] -= 1
        self._counters.progress_deadlines.bump("connection")
        error = SluiceError(
            "The connection was idle: it held nothing and sent only Pings",
            code=ErrorCode.DEADLINE_EXCEEDED,
            value=f"{connection.traffic.pings_in} pings",
            limit=f"{self._watch.timeout_seconds} s",
            remedy="Connect again when it is needed; idle_connection_timeout_seconds is the limit",
        )
        # Not an error in the log or the metrics: clients that keep connections see it often.
        extra = counted("idle connections closed", connection.remote)
        extra |= {"application": connection.application_id, "peer": connection.remote}
        logger.info("closing connection %s: it is idle", connection.remote, extra=extra)
        connection.send(error_response(None, error))
        connection.close()

    def _keeps_alive(self, connection: Connection) -> bool:
        application_id = connection.application_id
        if not application_id:
            return False  # another TaskManager's
        if connection.role == ROLE_DRIVER:
            return self._drivers[application_id] == 1
        if self._drivers[application_id] or self._open[application_id] > 1:
            return False
        held = self._accounts.of(application_id).held
        return any(
            amount
            for resource, amount in zip(Resource, held, strict=True)
            if resource is not Resource.CONNECTIONS
        )
