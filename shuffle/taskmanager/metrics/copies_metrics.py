"""Metrics of copies of map outputs on other TaskManagers, and of moves there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange_metrics import gauge, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ..status.status import TaskManagerStatus


def copies_metrics(status: TaskManagerStatus) -> Iterator[Metric]:
    """Yield the families of one snapshot."""
    counters, copies = status.counters, status.copies
    yield total(
        "copies_made", "Map outputs copied to other TaskManagers, moves included.",
        counters.copies_made,
    )  # fmt: skip
    yield total("copy_sent_bytes", "Bytes of these copies.", counters.copy_bytes_out)
    yield total(
        "copies_found",
        "Copies that were not made because the other TaskManager had them already.",
        counters.copies_found,
    )
    yield total(
        "copies_failed",
        "Attempts to copy a map output that failed, because of either side.",
        counters.copies_failed,
    )
    yield total(
        "commits_without_copies",
        "Map outputs whose producer was to wait for copies, and was answered without them.",
        counters.commits_without_copies,
    )
    yield gauge(
        "copies_waiting", "Map outputs that are being copied or wait for their turn.",
        copies.waiting,
    )  # fmt: skip
    yield gauge(
        "map_outputs_short_of_copies",
        "Map outputs with fewer copies than they shall have, which this TaskManager has to make.",
        copies.short,
    )
    yield total(
        "map_outputs_moved",
        "Map outputs that were moved to other TaskManagers.",
        counters.map_outputs_moved,
    )
    yield gauge("migrating", "1 while all map outputs are being moved.", copies.migrating)
    yield gauge(
        "map_outputs_staying",
        "Map outputs that no other TaskManager takes while all are being moved.",
        copies.staying,
    )
