"""The settings and callbacks of the HTTP server, shared by its two threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...counters import BoundedCounts
    from ..config.http_config import HttpConfig
    from ..metrics.published_snapshot import StatusSource
    from ..store.shuffle_page import ShufflePage, ShuffleQuery
    from .cluster_members import ClusterMembers
    from .http_access import HttpAccess

LISTEN_BACKLOG: Final = 128
"""Requests that may wait to be accepted: those of a scraper or two, and of people."""

MAX_DRAIN_WAIT_SECONDS: Final = 3600.0
"""Longest time for which a request to drain waits until transfers have ended."""


class Served(NamedTuple):
    """The arguments of :class:`~.http.HttpServer`."""

    config: HttpConfig
    status: StatusSource
    drain: Callable[[bool], Awaitable[None]]
    undrain: Callable[[], Awaitable[None]] | None
    access: Callable[[], HttpAccess] | None
    dropped: BoundedCounts
    inspect: Callable[[ShuffleQuery], Awaitable[ShufflePage]] | None = None
    members: Callable[[], ClusterMembers] | None = None
