"""Metrics of admission: whether anybody is served, and which connections were refused why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..status.reasons import DROP_REASONS, HTTP_REASONS, REFUSAL_REASONS
from .exchange_metrics import gauge, totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ..status.status import TaskManagerStatus


def access_metrics(status: TaskManagerStatus) -> Iterator[Metric]:
    """Yield the families of one snapshot."""
    counters = status.counters
    yield gauge(
        "anonymous_allowed",
        "1 if whoever reaches a port is served without a credential.",
        status.serves == "anonymous",
    )
    yield totals(
        "connections_refused",
        "Connections that ended in their handshake, or later asked for what they may not do.",
        ("reason",),
        _by_reason(REFUSAL_REASONS, counters.refused_connections),
    )
    yield totals(
        "http_refused",
        "Requests to the HTTP port that were refused: not HTTP, without a token that allows them, "
        "or from another host.",
        ("reason",),
        _by_reason(HTTP_REASONS, counters.http_refused),
    )
    yield totals(
        "http_connections_dropped",
        "Connections to the HTTP port that their clients did not end: no request in time, none "
        "after the last, an answer not taken, room for a new one; `no room`: refused.",
        ("reason",),
        _by_reason(DROP_REASONS, counters.http_dropped),
    )


def _by_reason(reasons: tuple[str, ...], counts: dict[str, int]) -> dict[tuple[str, ...], float]:
    """Return every reason, also those that have not been seen."""
    return {(reason,): count for reason, count in (dict.fromkeys(reasons, 0) | counts).items()}
