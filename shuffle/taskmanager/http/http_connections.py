"""The connections of the HTTP port: how many there may be, and how long each may take.

A connection waits for a request, or for the next one, or it is served. One that waits too long is
closed. When a new connection comes and there are as many as there may be, the one that has waited
longest makes room for it: half a request never keeps anybody out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiohttp import web

from ..status.reasons import ANSWER_UNREAD, IDLE, MADE_ROOM, NO_ROOM, REQUEST_LATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler, Middleware

    from ...counters import BoundedCounts

REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
"""The answer when no connection can make room."""


class HttpLimits(NamedTuple):
    """Limits of the connections of an HTTP port.

    Attributes:
        connections: Most of them at a time.
        request_seconds: Time in which a request must have come, and in which the client must take
            a piece of the answer.
        idle_seconds: Time for which a connection is kept for a next request.
    """

    connections: int
    request_seconds: float
    idle_seconds: float


class HttpConnections:
    """All connections of an HTTP port.

    Args:
        limits: How many, and for how long.
        new_handler: Makes the protocol that reads requests and writes answers.
        dropped: Counts those that their clients have not ended, by reason.
    """

    def __init__(
        self,
        limits: HttpLimits,
        new_handler: Callable[[], asyncio.Protocol],
        dropped: BoundedCounts,
    ) -> None:
        self.limits = limits
        self.dropped = dropped
        self._new_handler = new_handler
        self._open: dict[asyncio.BaseTransport, HttpConnection] = {}
        self._waiting: dict[HttpConnection, None] = {}
        """Idle connections, the longest idle first."""

    def __len__(self) -> int:
        return len(self._open)

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return HttpConnection(self, self._new_handler())

    def make_room(self) -> None:
        """Close the connection that has been idle longest, if any."""
        longest = next(iter(self._waiting), None)
        if longest is not None:
            longest.drop(MADE_ROOM)

    def drop_all(self) -> None:
        """Close all connections at once."""
        for connection in list(self._open.values()):
            connection.drop()

    def middleware(self) -> Middleware:
        """Return the application wrapped so that connections being served are known."""

        @web.middleware
        async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            connection = None if transport is None else self._open.get(transport)
            if connection is None:  # closed in the meantime: nobody gets the answer
                return web.Response(status=503)
            connection.begin_serving()
            try:
                return await handler(request)
            finally:
                connection.end_serving()

        return watch

    def admit(self, transport: asyncio.BaseTransport, connection: HttpConnection) -> bool:
        """Make room for a connection and count it; return whether there is room."""
        if len(self._open) >= self.limits.connections:
            self.make_room()
        if len(self._open) >= self.limits.connections:
            return False
        self._open[transport] = connection
        return True

    def closed(self, transport: asyncio.BaseTransport, connection: HttpConnection) -> None:
        """Forget a connection. Idempotent."""
        self._open.pop(transport, None)
        self._waiting.pop(connection, None)

    def waits(self, connection: HttpConnection) -> None:
        """Append a connection to the idle ones."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def is_served(self, connection: HttpConnection) -> None:
        """Remove a connection from the idle ones."""
        self._waiting.pop(connection, None)


class HttpConnection(asyncio.Protocol):
    """One connection: passes everything on to its handler, and keeps its deadlines.

    Args:
        all_connections: Those of the port.
        handler: Reads requests and writes answers.
    """

    def __init__(self, all_connections: HttpConnections, handler: asyncio.Protocol) -> None:
        self._all = all_connections
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._idle = True
        """Whether no byte of a next request has arrived."""
        self._ends = False
        """Whether the client has closed its sending half: no further request comes."""
        self._transport: asyncio.Transport | None = None

    def begin_serving(self) -> None:
        """Record that a request has arrived."""
        self._stop(self._timer)
        self._all.is_served(self)

    def end_serving(self) -> None:
        """Record that the request is answered, except for bytes the client has not read.

        The handler gives the answer to the transport in the same turn of the event loop.
        """
        if self._transport is not None:
            self._idle = True
            self._wait_for(self._all.limits.idle_seconds, IDLE)
            if self._ends:
                self._loop.call_soon(self._transport.close)  # after it has sent the answer

    def drop(self, reason: str | None = None) -> None:
        """Close at once; count it if there is a reason."""
        if self._transport is not None:
            if reason is not None and not self._transport.is_closing():
                self._all.dropped.bump(reason)
            self._all.closed(self._transport, self)
            self._transport.abort()

    # ---- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        made = cast("asyncio.Transport", transport)
        if not self._all.admit(transport, self):
            self._all.dropped.bump(NO_ROOM)
            made.write(REFUSAL)
            made.close()
            return
        self._transport = made
        self._wait_for(self._all.limits.request_seconds, REQUEST_LATE)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a request."""
        if self._transport is None:  # refused
            return
        if self._idle:
            self._idle = False
            self._wait_for(self._all.limits.request_seconds, REQUEST_LATE)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Answer the request that has arrived, then close; return whether there is one.

        One that has come in part keeps the connection until its deadline. Of several requests that
        were sent at once, the first without an answer gets one: a client has to expect that.
        """
        self._ends = True
        self._handler.eof_received()
        return not self._idle

    def pause_writing(self) -> None:
        """Start the deadline for the client to read what was sent."""
        seconds = self._all.limits.request_seconds
        self._unread_timer = self._loop.call_later(seconds, self.drop, ANSWER_UNREAD)
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Resume writing: the client has read enough."""
        self._stop(self._unread_timer)
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and forget the connection."""
        self._stop(self._timer)
        self._stop(self._unread_timer)
        if self._transport is not None:
            self._all.closed(self._transport, self)
            self._transport = None
            self._handler.connection_lost(exc)

    def _wait_for(self, seconds: float, reason: str) -> None:
        self._stop(self._timer)
        self._timer = self._loop.call_later(seconds, self.drop, reason)
        self._all.waits(self)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
