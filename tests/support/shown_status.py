"""HTTP ports of TaskManagers that show the statuses of a test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.cluster_members import ClusterMembers
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_served import Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from tests.support.fakes import no_drain
from tests.support.http_servers import serving
from tests.support.statuses import busy_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from sluice.protocol.identity import ClusterSecrets
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from sluice.shuffle.taskmanager.store.shuffle_page import ShufflePage, ShuffleQuery

    Source = Callable[[], TaskManagerStatus]


def moving(**settings: int) -> Source:
    """Return a source of statuses whose counters grow with the time."""
    began = time.monotonic()
    return lambda: busy_status(time.monotonic() - began, **settings)


def port_showing(
    source: Source,
    *,
    secrets: ClusterSecrets | None = None,
    urls: tuple[str, ...] = (),
    inspect: Callable[[ShuffleQuery], Awaitable[ShufflePage]] | None = None,
) -> AbstractContextManager[int]:
    """Serve the statuses of a source; yield the port.

    Args:
        source: Returns a status.
        secrets: Those whose tokens are required; None: no token is.
        urls: HTTP ports of the other members of the cluster.
        inspect: Returns map outputs of a shuffle; None: they cannot be asked for.
    """

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        server = HttpServer(
            HttpConfig(http_host=("127.0.0.1",), http_port=0),
            source,
            no_drain,
            lambda: HttpAccess(secrets),
            operations=Operations(
                inspect=inspect,
                members=lambda: ClusterMembers(urls, secrets, shared_seconds=0.1),
            ),
        )
        return await server.start(), server.close

    return serving(start)
