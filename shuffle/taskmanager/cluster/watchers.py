"""Notifies the TaskManagers that watch this one of losses here.

A connection that watches carries only pings. When this side closes it, the other TaskManager
connects again and asks for each map output that both have, which is how it finds what is lost. So
the first loss closes the connections at once. Further losses wait for a pause, which grows while
there are losses, and close the connections once for all of them.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ....protocol.schema import ROLE_COPIER
from ....transport.backoff import Backoff
from ....transport.connection import Connection

FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Maximum time until the connections are closed after a loss."""


class Watchers:
    """The connections with which other TaskManagers watch this one.

    Args:
        connections: Returns all accepted connections.
        pause: Pauses between two closings.
    """

    def __init__(
        self, connections: Callable[[], Iterable[Connection]], pause: Backoff | None = None
    ) -> None:
        self._connections: Final = connections
        self._pause: Final = pause or Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._pausing: asyncio.TimerHandle | None = None
        self._has_news = False
        self._closed = False

    def outputs_lost(self) -> None:
        """Make the others ask what is here: now, or for all losses together after a pause."""
        if self._pausing is None and not self._closed:
            self._reconnect()
        else:
            self._has_news = True

    def close(self) -> None:
        """Stop notifying the others. Idempotent."""
        self._closed = True
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None

    def _reconnect(self) -> None:
        self._has_news = False
        for connection in list(self._connections()):
            if connection.role == ROLE_COPIER and not connection.application_id:
                connection.close()
        loop = asyncio.get_running_loop()
        self._pausing = loop.call_later(self._pause.next_seconds(), self._pause_ended)

    def _pause_ended(self) -> None:
        self._pausing = None
        if self._has_news:
            self._reconnect()
        else:
            self._pause.reset()
