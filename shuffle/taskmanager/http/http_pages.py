"""The pages of the HTTP port and the server that answers with them, in the HTTP thread.

Importing them takes longer than anything else in a start. So only the HTTP thread imports this
module, after the data port has begun to serve.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from ....protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS
from ....transport.acceptor import Acceptor, InNeed, listen
from ..metrics.published_snapshot import DataLoopSilent, Pages, PublishedSnapshot
from ..status.snapshot import take_snapshot  # noqa: F401 - so that the data loop need not load it
from ..status.waits import waits_of  # noqa: F401
from . import openapi, static_pages
from .bad_requests import server_logger
from .cluster_members import ClusterMembers
from .event_streams import MAX_STREAMS, EventStreams
from .http_access import HttpAccess
from .http_audit import audit
from .http_connections import HttpConnections, HttpLimits
from .http_served import LISTEN_BACKLOG, MAX_DRAIN_WAIT_SECONDS
from .live_changes import LiveChanges
from .shuffle_pages import add_shuffles

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.typedefs import Handler

    from ..metrics.published_snapshot import Page
    from .http_served import Served

UNDRAIN_SECONDS: Final = 1.0
"""Time for a request that waits for nothing but its turn."""

ACCEPTED_A_TURN: Final = 4
"""Connections accepted at once: more would take descriptors before one makes room for another."""

CLOSE_TIMEOUT_SECONDS: Final = 1.0
"""Time that requests under way get when the server closes; each takes milliseconds."""

LINGERING_SECONDS: Final = 1.0
"""Time for which the body of a request is discarded: no request here needs one."""

RESERVED_DESCRIPTORS: Final = 2
"""Connections that are served while the process has no descriptors left, so that it can be seen to
live."""


@asynccontextmanager
async def serving(
    served: Served,
    sockets: list[socket.socket],
    name: str,
    most_connections: int,
    data_loop: asyncio.AbstractEventLoop,
    forgive: Callable[[float], None],
) -> AsyncIterator[PublishedSnapshot]:
    """Serve on sockets and close them at the end of the context; yield the snapshot.

    Args:
        served: The sources and limits of the pages.
        sockets: Bound sockets.
        name: The port, for the log.
        most_connections: How many may be open at a time.
        data_loop: The loop that is asked for snapshots.
        forgive: Excludes processor time, in seconds, from the thread's share.
    """
    config = served.config
    snapshot = PublishedSnapshot(
        data_loop,
        served.status,
        config.http_snapshot_interval_seconds,
        config.http_answer_timeout_seconds,
    )
    limits = HttpLimits(
        most_connections,
        config.http_request_timeout_seconds,
        config.http_idle_timeout_seconds,
    )

    def new_handler() -> asyncio.Protocol:
        if runner.server is None:
            raise RuntimeError("the runner has no server after its setup")
        return runner.server()

    connections = HttpConnections(limits, new_handler, served.dropped)
    access = HttpAccess() if served.access is None else served.access()
    pages = Pages(forgive)
    app = create_app(snapshot, pages, served.drain, access, connections)
    members = (
        ClusterMembers(()) if served.operations.members is None else served.operations.members()
    )
    _add_cluster(app, snapshot, pages, members, access)
    # Connections must be left for health checks and scrapes.
    most_streams = min(MAX_STREAMS, most_connections // 2)
    streams = EventStreams(snapshot, pages, access, most_streams)
    # Without HEAD: an answer to it would be a stream that nobody can read.
    events = web.get("/api/v1/events", streams.serve, allow_head=False)
    app.add_routes([events, *static_pages.routes()])
    app.on_shutdown.append(lambda _: streams.close())
    if served.operations.undrain is not None:
        _add_undrain(app, snapshot, served.operations.undrain, access)
    if served.operations.inspect is not None:
        add_shuffles(app, snapshot, served.operations.inspect, access)
    app.add_routes(openapi.routes())
    if served.operations.settings is not None:
        seconds = config.http_request_timeout_seconds
        app.add_routes(LiveChanges(snapshot, served.operations.settings, access, seconds).routes())
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=server_logger(access.refused),
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
        yield snapshot
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
        wait_seconds = min(max(wait_seconds, 0.0), MAX_DRAIN_WAIT_SECONDS)
        migrate = request.query.get("migrate", "false")
        if migrate not in ("true", "false"):
            return web.json_response({"error": "migrate is neither true nor false"}, status=400)
        drained = await snapshot.drain(lambda: drain(migrate == "true"), wait_seconds)
        answer = drained._asdict()
        if migrate == "false":
            answer = {name: answer[name] for name in ("state", "busy")}
        return web.json_response(answer)

    app = web.Application(middlewares=[connections.middleware(), audit, _tell_silence])
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


def _add_cluster(
    app: web.Application,
    snapshot: PublishedSnapshot,
    pages: Pages,
    members: ClusterMembers,
    access: HttpAccess,
) -> None:
    async def serve_cluster(request: web.Request) -> web.Response:
        access.require(request, SCOPE_STATUS)
        body = await members.encoded(snapshot, pages)
        return web.Response(body=body, headers={"Content-Type": "application/json; charset=utf-8"})

    app.add_routes([web.get("/api/v1/cluster", serve_cluster)])


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
