"""Percentiles of measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .reports import Latency

if TYPE_CHECKING:
    from collections.abc import Sequence


def latency(seconds: Sequence[float]) -> Latency:
    """Return the percentiles of times; all 0 without any."""
    if not seconds:
        return Latency(0, 0.0, 0.0, 0.0)
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return Latency(len(ordered), ordered[last // 2], ordered[last * 99 // 100], ordered[-1])


def milliseconds(found: Latency) -> str:
    """Return times for people."""
    p50, p99, most = (
        f"{1000 * each:.3g}" for each in (found.p50_seconds, found.p99_seconds, found.max_seconds)
    )
    return f"p50 {p50} ms, p99 {p99} ms, at most {most} ms"
