"""The HTTP port of a TaskManager: metrics, health, readiness, status.

=================  =================================================================
``/metrics``       Prometheus text format; no label names an application
``/healthz``       200 while the process serves: restart it when this fails
``/readyz``        200 while it should get new work, else 503 with the reason
``/api/v1/status`` the whole status as JSON, with names: needs an access token where there are
                   any
``/api/v1/drain``  POST: drain; answers when nothing is written or read any more, or after
                   ``wait_seconds``; needs an access token, or comes from this host
=================  =================================================================

:mod:`http_access` has the rules of the last two.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from ....protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS
from ....protocol.errors import ErrorCode, SluiceError
from ....transport.acceptor import Acceptor, bind, listen
from ....transport.config import LOOPBACK
from .http_access import HttpAccess
from .metrics import registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from ..config import HttpConfig
    from .status import TaskManagerStatus

MOST_DRAIN_WAIT_SECONDS: Final = 3600.0
"""Longest time for which a request to drain waits until transfers have ended."""

LISTEN_BACKLOG: Final = 128
"""Requests that may wait to be accepted: those of a scraper or two, and of people."""

CLOSE_TIMEOUT_SECONDS: Final = 1.0
"""Time that requests under way get when the server closes; each takes milliseconds."""


class HttpAddressUnavailable(SluiceError):
    """The HTTP server cannot listen on its address."""

    code: ClassVar[ErrorCode] = ErrorCode.CONFIGURATION


class HttpServer:
    """Serves one TaskManager's HTTP port on the running event loop.

    Args:
        config: Where to listen.
        status: Builds a snapshot; called on the event-loop thread, once per request.
        drain: Begins to drain, and returns when nothing is written or read any more.
        access: Who may ask for what; by default there are no tokens, and this host drains.
    """

    def __init__(
        self,
        config: HttpConfig,
        status: Callable[[], TaskManagerStatus],
        drain: Callable[[], Awaitable[None]],
        access: HttpAccess | None = None,
    ) -> None:
        self._config = config
        self._runner = web.AppRunner(
            create_app(status, drain, access or HttpAccess()),
            access_log=None,
            shutdown_timeout=CLOSE_TIMEOUT_SECONDS,
        )
        self._acceptors: list[Acceptor] = []

    async def start(self) -> int:
        """Start to listen and return the port. Cancelling leaves nothing open after `close`.

        Raises:
            HttpAddressUnavailable: The port is taken, or the address is not this host's.
        """
        await self._runner.setup()
        factory = self._runner.server
        if factory is None:
            raise RuntimeError("the runner has no server after its setup")
        host, port = self._config.http_host or LOOPBACK, self._config.http_port
        try:
            sockets = await bind(host, port)
            port = int(sockets[0].getsockname()[1])
            name = f"the HTTP port {host}:{port}"
            self._acceptors += listen(sockets, factory, LISTEN_BACKLOG, name)
        except OSError as error:
            await self.close()
            raise HttpAddressUnavailable(
                f"HTTP cannot listen on {host}:{port}: {error.strerror or error}",
                remedy="Choose another with http_host and http_port, or 0 for a free port",
            ) from error
        return port

    async def close(self) -> None:
        """Stop listening and end requests under way. May be called at any time, and twice."""
        for acceptor in self._acceptors:
            acceptor.close()
            await acceptor.wait_started()
        await self._runner.cleanup()


def create_app(
    status: Callable[[], TaskManagerStatus],
    drain: Callable[[], Awaitable[None]],
    access: HttpAccess,
) -> web.Application:
    """Return the application; ``status`` is called for every request, ``drain`` on request."""
    metrics = registry(status)

    async def serve_metrics(request: web.Request) -> web.Response:
        return _metrics(metrics, request.headers.get("Accept", ""))

    async def serve_health(request: web.Request) -> web.Response:
        state = status().state
        return web.json_response({"state": state}, status=503 if state == "stopped" else 200)

    async def serve_readiness(request: web.Request) -> web.Response:
        reason = status().not_ready_because
        body = {"ready": reason is None, "reason": reason}
        return web.json_response(body, status=200 if reason is None else 503)

    async def serve_status(request: web.Request) -> web.Response:
        access.require(request, SCOPE_STATUS)
        return web.json_response(status().to_json())

    async def serve_drain(request: web.Request) -> web.Response:
        access.require(request, SCOPE_ADMIN)
        try:
            wait_seconds = float(request.query.get("wait_seconds", "0"))
        except ValueError:
            return web.json_response({"error": "wait_seconds is not a number"}, status=400)
        busy = False
        try:
            async with asyncio.timeout(min(max(wait_seconds, 0.0), MOST_DRAIN_WAIT_SECONDS)):
                await drain()
        except TimeoutError:
            busy = True
        return web.json_response({"state": status().state, "busy": busy})

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", serve_metrics),
            web.get("/healthz", serve_health),
            web.get("/readyz", serve_readiness),
            web.get("/api/v1/status", serve_status),
            web.post("/api/v1/drain", serve_drain),
        ]
    )
    return app


def _metrics(metrics: CollectorRegistry, accept: str) -> web.Response:
    """Encode in the format that the scraper prefers."""
    encode, content_type = choose_encoder(accept)
    return web.Response(body=encode(metrics), headers={"Content-Type": content_type})
