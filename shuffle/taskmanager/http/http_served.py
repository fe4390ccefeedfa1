"""The settings and callbacks of the HTTP server, shared by its two threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ...counters import BoundedCounts
    from ..config.http_config import HttpConfig
    from ..config.taskmanager_config import TaskManagerConfig
    from ..metrics.published_snapshot import StatusSource
    from ..store.shuffle_page import ShufflePage, ShuffleQuery
    from .cluster_members import ClusterMembers
    from .http_access import HttpAccess

LISTEN_BACKLOG: Final = 128
"""Requests that may wait to be accepted: those of a scraper or two, and of people."""

MAX_DRAIN_WAIT_SECONDS: Final = 3600.0
"""Longest time for which a request to drain waits until transfers have ended."""


class LiveSettings(NamedTuple):
    """The settings that requests change.

    Attributes:
        config: Returns the configuration as it is now. Thread safe.
        change: Changes ``log_level`` or ``quotas``, given by name; called on the data loop. Raises
            SluiceError if the change does not hold everywhere.
    """

    config: Callable[[], TaskManagerConfig]
    change: Callable[[Mapping[str, object]], Awaitable[None]]


class Operations(NamedTuple):
    """Operations that requests may ask for besides the status and a drain; None: not this one.

    Attributes:
        undrain: Takes new work again; called on the data loop.
        inspect: Returns map outputs of a shuffle; called on the data loop.
        members: Makes what asks the other members of the cluster, in the thread of the server.
        settings: Those that requests change.
    """

    undrain: Callable[[], Awaitable[None]] | None = None
    inspect: Callable[[ShuffleQuery], Awaitable[ShufflePage]] | None = None
    members: Callable[[], ClusterMembers] | None = None
    settings: LiveSettings | None = None


class Served(NamedTuple):
    """The arguments of :class:`~.http_server.HttpServer`."""

    config: HttpConfig
    status: StatusSource
    drain: Callable[[bool], Awaitable[None]]
    access: Callable[[], HttpAccess] | None
    dropped: BoundedCounts
    operations: Operations
