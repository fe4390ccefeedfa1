"""The HTTP port of a TaskManager: metrics, health, readiness, status.

========================= =========================================================================
``/metrics``              Prometheus text format; no label names an application
``/metrics/applications`` the same by application, with names: needs an access token where there
                          are any
``/healthz``              200 while the process serves: restart it when this fails
``/readyz``               200 while it should get new work, else 503 with the reason
``/api/v1/status``        the whole status as JSON, with names: needs an access token where there
                          are any
``/api/v1/drain``         POST: drain; answers when nothing is written or read any more, or after
                          ``wait_seconds``; with ``migrate=true`` all map outputs move elsewhere;
                          needs an access token, or comes from this host
``/api/v1/undrain``       POST: take new work again; needs the same
========================= =========================================================================

:mod:`http_access` has the rules of those that need a token. All of it runs in a thread of its own,
see :mod:`http_thread`, and shows what the data loop publishes, see :mod:`published_snapshot`. When
the data loop does not answer, every page is 503 and says so.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from aiohttp import web

from ....protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS
from ....protocol.errors import ErrorCode, SluiceError
from ....transport.acceptor import Acceptor, InNeed, bind, listen
from ....transport.config import LOOPBACK
from ....transport.descriptors import http_connections
from ...counters import BoundedCounts
from .http_access import HttpAccess
from .http_connections import HttpConnections, HttpLimits
from .http_thread import HttpThread
from .published_snapshot import DataLoopSilent, Pages, PublishedSnapshot

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.typedefs import Handler

    from ..config import HttpConfig
    from .published_snapshot import Page
    from .status import TaskManagerStatus

MOST_DRAIN_WAIT_SECONDS: Final = 3600.0
"""Longest time for which a request to drain waits until transfers have ended."""

UNDRAIN_SECONDS: Final = 1.0
"""Time for a request that waits for nothing but its turn."""

LISTEN_BACKLOG: Final = 128
"""Requests that may wait to be accepted: those of a scraper or two, and of people."""

ACCEPTED_A_TURN: Final = 4
"""Connections accepted at once: more would take descriptors before one makes room for another."""

CLOSE_TIMEOUT_SECONDS: Final = 1.0
"""Time that requests under way get when the server closes; each takes milliseconds."""

LINGERING_SECONDS: Final = 1.0
"""Time for which the body of a request is discarded: no request here needs one."""

RESERVED_DESCRIPTORS: Final = 2
"""Connections that are served while the process has no descriptors left, so that it can be seen to
live."""


class HttpAddressUnavailable(SluiceError):
    """The HTTP server cannot listen on its address."""

    code: ClassVar[ErrorCode] = ErrorCode.CONFIGURATION


class HttpServer:
    """Serves one TaskManager's HTTP port, in a thread of its own.

    Args:
        config: Where to listen, and the limits.
        status: Builds a snapshot; called on the event loop on which the server is started, as often
            as ``http_snapshot_interval_seconds`` allows.
        drain: Begins to drain, and returns when nothing is written or read any more; called there
            with whether to move all map outputs.
        access: Who may ask for what; by default there are no tokens, and this host drains.
        dropped: Counts the connections that end otherwise than by their clients, by reason.
        undrain: Takes new work again; called there. None: that cannot be asked for.
    """

    def __init__(
        self,
        config: HttpConfig,
        status: Callable[[], TaskManagerStatus],
        drain: Callable[[bool], Awaitable[None]],
        access: HttpAccess | None = None,
        dropped: BoundedCounts | None = None,
        undrain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._config = config
        self._status = status
        self._drain = drain
        self._undrain = undrain
        self._access = access or HttpAccess()
        self._dropped = BoundedCounts() if dropped is None else dropped
        self._thread: HttpThread | None = None
        self._snapshot: PublishedSnapshot | None = None

    async def start(self) -> int:
        """Start to listen and return the port. Cancelling leaves nothing open after `close`.

        Raises:
            HttpAddressUnavailable: The port is taken, or the address is not this host's.
        """
        data_loop = asyncio.get_running_loop()
        host, port = self._config.http_host or LOOPBACK, self._config.http_port
        try:
            sockets = await bind(host, port)
            port = int(sockets[0].getsockname()[1])
            name = f"the HTTP port {host}:{port}"
            try:
                self._thread = thread = HttpThread(
                    lambda: self._serving(thread, data_loop, sockets, name)
                )
                await thread.start()
            except BaseException:
                await self.close()
                for sock in sockets:
                    sock.close()
                raise
        except OSError as error:
            raise HttpAddressUnavailable(
                f"HTTP cannot listen on {host}:{port}: {error.strerror or error}",
                remedy="Choose another with http_host and http_port, or 0 for a free port",
            ) from error
        return port

    def forget(self) -> None:
        """Let the next request see the state of its moment: call this when the state changes."""
        if self._thread is not None and self._snapshot is not None:
            self._thread.call_soon(self._snapshot.forget)

    async def close(self) -> None:
        """Stop listening and end requests under way. May be called at any time, and twice."""
        if self._thread is not None:
            await self._thread.close()

    @asynccontextmanager
    async def _serving(
        self,
        thread: HttpThread,
        data_loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        name: str,
    ) -> AsyncIterator[None]:
        """Serve, in the HTTP thread."""
        config = self._config
        snapshot = self._snapshot = PublishedSnapshot(
            data_loop,
            self._status,
            config.http_snapshot_interval_seconds,
            config.http_answer_timeout_seconds,
        )
        limits = HttpLimits(
            min(config.http_max_connections, http_connections()),
            config.http_request_timeout_seconds,
            config.http_idle_timeout_seconds,
        )

        def new_handler() -> asyncio.Protocol:
            if runner.server is None:
                raise RuntimeError("the runner has no server after its setup")
            return runner.server()

        connections = HttpConnections(limits, new_handler, self._dropped)
        pages = Pages(thread.forgive)
        app = create_app(snapshot, pages, self._drain, self._access, connections)
        if self._undrain is not None:
            _add_undrain(app, snapshot, self._undrain, self._access)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=CLOSE_TIMEOUT_SECONDS,
            lingering_time=LINGERING_SECONDS,
        )
        await runner.setup()
        in_need = InNeed(reserve=RESERVED_DESCRIPTORS, make_room=connections.make_room)
        acceptors: list[Acceptor] = []
        try:
            acceptors += listen(
                sockets, connections.accept, LISTEN_BACKLOG, name, in_need, ACCEPTED_A_TURN
            )
            yield
        finally:
            for acceptor in acceptors:
                acceptor.close()
                await acceptor.wait_started()
            await runner.cleanup()
            connections.drop_all()
            await asyncio.sleep(0)  # the transports close in the next turn


def create_app(
    snapshot: PublishedSnapshot,
    pages: Pages,
    drain: Callable[[bool], Awaitable[None]],
    access: HttpAccess,
    connections: HttpConnections,
) -> web.Application:
    """Return the application that shows snapshots; ``drain`` is called on request."""

    async def serve_metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        return _response(await pages.metrics(await snapshot.latest(), accept))

    async def serve_applications(request: web.Request) -> web.Response:
        access.require(request, SCOPE_STATUS)
        accept = request.headers.get("Accept", "")
        return _response(await pages.applications(await snapshot.latest(), accept))

    async def serve_health(request: web.Request) -> web.Response:
        try:
            state: str = (await snapshot.latest()).status.state
        except DataLoopSilent as silent:
            return web.json_response({"state": "unresponsive", "reason": str(silent)}, status=503)
        return web.json_response({"state": state}, status=503 if state == "stopped" else 200)

    async def serve_readiness(request: web.Request) -> web.Response:
        try:
            reason = (await snapshot.latest()).status.not_ready_because
        except DataLoopSilent as silent:
            reason = str(silent)
        body = {"ready": reason is None, "reason": reason}
        return web.json_response(body, status=200 if reason is None else 503)

    async def serve_status(request: web.Request) -> web.Response:
        access.require(request, SCOPE_STATUS)
        return _response(await pages.status(await snapshot.latest()))

    async def serve_drain(request: web.Request) -> web.Response:
        access.require(request, SCOPE_ADMIN)
        try:
            wait_seconds = float(request.query.get("wait_seconds", "0"))
        except ValueError:
            wait_seconds = math.nan
        if math.isnan(wait_seconds):
            return web.json_response({"error": "wait_seconds is not a number"}, status=400)
        wait_seconds = min(max(wait_seconds, 0.0), MOST_DRAIN_WAIT_SECONDS)
        migrate = request.query.get("migrate", "false")
        if migrate not in ("true", "false"):
            return web.json_response({"error": "migrate is neither true nor false"}, status=400)
        drained = await snapshot.drain(lambda: drain(migrate == "true"), wait_seconds)
        answer = drained._asdict()
        if migrate == "false":
            answer = {name: answer[name] for name in ("state", "busy")}
        return web.json_response(answer)

    app = web.Application(middlewares=[connections.middleware(), _tell_silence])
    app.add_routes(
        [
            web.get("/metrics", serve_metrics),
            web.get("/metrics/applications", serve_applications),
            web.get("/healthz", serve_health),
            web.get("/readyz", serve_readiness),
            web.get("/api/v1/status", serve_status),
            web.post("/api/v1/drain", serve_drain),
        ]
    )
    return app


def _add_undrain(
    app: web.Application,
    snapshot: PublishedSnapshot,
    undrain: Callable[[], Awaitable[None]],
    access: HttpAccess,
) -> None:
    async def serve_undrain(request: web.Request) -> web.Response:
        access.require(request, SCOPE_ADMIN)
        undrained = await snapshot.drain(undrain, UNDRAIN_SECONDS)
        return web.json_response({"state": undrained.state})

    app.add_routes([web.post("/api/v1/undrain", serve_undrain)])


@web.middleware
async def _tell_silence(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except DataLoopSilent as silent:
        return web.json_response({"error": str(silent)}, status=503)


def _response(page: Page) -> web.Response:
    return web.Response(body=page.body, headers={"Content-Type": page.content_type})
