"""The HTTP port of a TaskManager: metrics, health, readiness, status.

========================= =========================================================================
``/``                     the status page; its script asks for an access token where one is needed
``/cluster``              the page of all members
``/metrics``              Prometheus text format; no label names an application
``/metrics/applications`` the same by application, with names: needs an access token where there
                          are any
``/healthz``              200 while the process serves: restart it when this fails
``/readyz``               200 while it should get new work, else 503 with the reason
``/api/v1/status``        the whole status as JSON, with names: needs an access token where there
                          are any
``/api/v1/events``        the same as server-sent events, about one a second
``/api/v1/cluster``       this TaskManager and the other members of its cluster, as
                          JSON: needs the same
``/api/v1/drain``         POST: drain; answers when nothing is written or read, or after
                          ``wait_seconds``; with ``migrate=true`` all map outputs move elsewhere;
                          needs an access token, or comes through the Unix socket
``/api/v1/shuffles/A/S``  map outputs and regions of shuffle S of application A as JSON, page by
                          page (``first``, ``limit``): needs an access token where there are any
``/api/v1/undrain``       POST: take new work again; needs the same
``/api/v1/log-level``     PUT: change the log level until SIGHUP or a start; needs the same
``/api/v1/quotas``        PUT: change quotas until SIGHUP or a start; needs the same
``/api/v1/openapi.json``  the description of all of them, see :mod:`openapi`
========================= =========================================================================

:mod:`http_access` has the rules of those that need a token. All of it runs in a thread of its own,
see :mod:`http_thread`, and shows what the data loop publishes, see :mod:`published_snapshot`. When
the data loop does not answer, every page is 503 and says so.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ....protocol.errors import ErrorCode, SluiceError
from ....transport.acceptor import bind, bind_remedy
from ....transport.address import host_ports
from ....transport.config import LOOPBACK
from ....transport.descriptors import http_connections
from ....transport.unix_socket import bind_unix, remove_made
from ...counters import BoundedCounts
from .http_served import LISTEN_BACKLOG, Operations, Served
from .http_thread import HttpThread

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ..config.http_config import HttpConfig
    from ..metrics.published_snapshot import PublishedSnapshot, StatusSource
    from .http_access import HttpAccess

logger = logging.getLogger(__name__)

_OWN_USER: Final = 0o600
"""Permissions of the Unix socket."""


class HttpServer:
    """Serves one TaskManager's HTTP port, in a thread of its own.

    Args:
        config: Where to listen, and the limits.
        status: Builds a snapshot; called on the event loop on which the server is started, as often
            as ``http_snapshot_interval_seconds`` allows.
        drain: Begins to drain, and returns when nothing is written or read; called there
            with whether to move all map outputs.
        access: Makes the rules of access, in the thread of the server; by default no token is
            checked, and only clients of the Unix socket may drain.
        dropped: Counts the connections that end otherwise than by their clients, by reason.
        operations: What else can be asked for.
    """

    def __init__(
        self,
        config: HttpConfig,
        status: StatusSource,
        drain: Callable[[bool], Awaitable[None]],
        access: Callable[[], HttpAccess] | None = None,
        dropped: BoundedCounts | None = None,
        operations: Operations = Operations(),  # noqa: B008 - a tuple of None
    ) -> None:
        counts = BoundedCounts() if dropped is None else dropped
        self._served = Served(config, status, drain, access, counts, operations)
        self._sockets: list[socket.socket] = []
        self._made: tuple[int, int] | None = None
        """The file of the Unix socket."""
        self._thread: HttpThread | None = None
        self._snapshot: PublishedSnapshot | None = None

    async def start(self) -> int:
        """Listen and return the port. Requests are answered as soon as the thread is ready.

        Cancelling leaves nothing open after `close`.

        Raises:
            CONFIGURATION: The port or the Unix socket is taken or not allowed, or the address is
                not this host's.
        """
        data_loop = asyncio.get_running_loop()
        config = self._served.config
        hosts, port = config.http_host or (LOOPBACK,), config.http_port
        path, where, remedy = config.http_socket_path, host_ports(hosts, port), ""
        try:
            self._sockets = await bind(hosts, port)
            port = int(self._sockets[0].getsockname()[1])
            for sock in self._sockets:  # requests wait there until the thread accepts them
                sock.listen(LISTEN_BACKLOG)
            if path is not None:
                where, remedy = f"the Unix socket {path}", "Set http_socket_path"
                sock, self._made = bind_unix(path, _OWN_USER)
                self._sockets.append(sock)
                sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            await self.close()
            raise SluiceError(
                f"HTTP cannot listen on {where}: {error.strerror or error}",
                code=ErrorCode.CONFIGURATION,
                remedy=remedy or bind_remedy(error, "http_host", "http_port"),
            ) from error
        name = f"the HTTP port {host_ports(hosts, port)}"
        # Now, and not when the thread is ready: data connections may have come by then.
        most = min(config.http_max_connections, http_connections())
        self._thread = HttpThread(lambda: self._serving(data_loop, name, most))
        try:
            self._thread.start().add_done_callback(functools.partial(self._begun, name))
        except BaseException:
            await self.close()
            raise
        return port

    def forget(self) -> None:
        """Invalidate the snapshot; call this when the state changes."""
        if self._thread is not None and self._snapshot is not None:
            self._thread.call_soon(self._snapshot.forget)

    async def close(self) -> None:
        """Stop listening and end requests under way. May be called at any time, and twice."""
        if self._thread is not None:
            await self._thread.close()
        for sock in self._sockets:
            sock.close()
        made, self._made = self._made, None
        if self._served.config.http_socket_path is not None:
            remove_made(self._served.config.http_socket_path, made)

    def _begun(self, name: str, thread: asyncio.Future[None]) -> None:
        if not thread.cancelled() and (error := thread.exception()) is not None:
            logger.error("%s does not answer: %s: %s", name, type(error).__name__, error)
            for sock in self._sockets:
                sock.close()

    @asynccontextmanager
    async def _serving(
        self, data_loop: asyncio.AbstractEventLoop, name: str, most_connections: int
    ) -> AsyncIterator[None]:
        """Serve, in the HTTP thread."""
        from . import http_pages  # its import takes time

        if self._thread is None:
            raise RuntimeError("the thread serves before it was made")
        forgive = self._thread.forgive
        async with http_pages.serving(
            self._served, self._sockets, name, most_connections, data_loop, forgive
        ) as self._snapshot:
            yield
