"""Streams of server-sent events: the status again, each time there is a new snapshot.

One timer of the loop serves all streams, and there is none without streams. A snapshot is encoded
once for all of them. A stream keeps only the newest event, so that a client that reads slowly gets
fewer of them; one that reads nothing is closed by the deadline of its connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Final

from aiohttp import web

from ....protocol.access_token import SCOPE_STATUS
from ....transport.loop import start_task
from ..metrics.published_snapshot import DataLoopSilent

if TYPE_CHECKING:
    from ..metrics.published_snapshot import Pages, Published, PublishedSnapshot
    from .http_access import HttpAccess

MAX_STREAMS: Final = 16
"""Streams at a time: a page that is open takes one."""

EVENT_SECONDS: Final = 1.0
"""Time between two events."""

KEEP_ALIVE: Final = b":\n\n"
"""A comment, sent if there is no new snapshot: it finds out whether the client is still there."""

logger = logging.getLogger(__name__)


class EventStreams:
    """All event streams of an HTTP port.

    Args:
        snapshot: Is asked for a snapshot at intervals; it decides whether there is a new one.
        pages: Encodes snapshots.
        access: Checks each request, and again before each event: a token may expire meanwhile.
        max_streams: Streams at a time; more are refused.
        event_seconds: Time between two events.
    """

    def __init__(
        self,
        snapshot: PublishedSnapshot,
        pages: Pages,
        access: HttpAccess,
        max_streams: int = MAX_STREAMS,
        event_seconds: float = EVENT_SECONDS,
    ) -> None:
        self._snapshot = snapshot
        self._pages = pages
        self._access = access
        self._max_streams = max_streams
        self._event_seconds = event_seconds
        self._streams: set[_EventStream] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._failed = False
        """Whether the last snapshot failed: each second of it is not a line of the log."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send events until the client is gone or too slow, or its token expires.

        Raises:
            web.HTTPException: The request may not read the status, or there are too many streams.

        Cancellation: ends the stream.
        """
        self._access.require(request, SCOPE_STATUS)
        if self._closed or len(self._streams) >= self._max_streams:
            raise web.HTTPServiceUnavailable(
                text=json.dumps({"error": self._refusal()}),
                content_type="application/json",
                headers={"Retry-After": "5"},
            )
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"  # a proxy must not collect events
        stream = _EventStream()
        self._streams.add(stream)
        try:
            await response.prepare(request)
            self._ask()  # it gets the present status at once
            while (event := await stream.next()) is not None:
                self._access.require(request, SCOPE_STATUS)
                await response.write(event)
        except (ConnectionError, web.HTTPException):
            pass  # the client is gone, or its token is no longer accepted
        finally:
            self._streams.discard(stream)
            self._stop_if_unused()
        return response

    async def close(self) -> None:
        """End all streams. Idempotent."""
        self._closed = True
        for stream in self._streams:
            stream.end()
        asking = self._asking
        if asking is not None:
            asking.cancel()
            await asyncio.wait((asking,))
        self._stop_timer()

    def _refusal(self) -> str:
        if self._closed:
            return "this TaskManager is stopping"
        return (
            f"{self._max_streams} event streams are open, the most at a time: close a status page, "
            "or read /api/v1/status"
        )

    def _ask(self) -> None:
        """Ask for a snapshot now, and at intervals after it."""
        self._stop_timer()
        if self._streams and not self._closed and self._asking is None:
            self._asking = start_task(self._send())

    async def _send(self) -> None:
        """Hand the newest snapshot to all streams that have not got it, or say why there is none.

        Whatever fails, the next one is asked for: the streams stay open.
        """
        try:
            published, event = await self._newest()
            for stream in self._streams:
                stream.put(event, published)
        finally:
            self._asking = None
            if self._streams and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._event_seconds, self._ask)

    async def _newest(self) -> tuple[Published | None, bytes]:
        try:
            published = await self._snapshot.latest()
            event = (await self._pages.event(published)).body
        except DataLoopSilent as silent:
            return None, _silent(str(silent))
        except Exception as error:
            if not self._failed:
                logger.exception("no status for the event streams")
            self._failed = True
            return None, _silent(f"the status failed ({type(error).__name__}): see the log")
        self._failed = False
        return published, event

    def _stop_if_unused(self) -> None:
        if not self._streams:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _silent(reason: str) -> bytes:
    document = json.dumps({"error": reason})
    return f"event: silent\ndata: {document}\n\n".encode()


class _EventStream:
    """The newest event of one stream, until it is sent."""

    def __init__(self) -> None:
        self._event = b""
        self._got: Published | None = None
        self._ended = False
        self._put = asyncio.Event()

    def put(self, event: bytes, published: Published | None) -> None:
        """Replace the event that waits; a snapshot that was put before is not sent again."""
        if published is None or published is not self._got:
            self._event, self._got = event, published
        elif not self._put.is_set():
            self._event = KEEP_ALIVE
        self._put.set()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._put.set()

    async def next(self) -> bytes | None:
        """Wait for an event; None: the stream ends."""
        await self._put.wait()
        self._put.clear()
        return None if self._ended else self._event
