"""Metrics by application, for those who may read names: what each holds, and its quotas.

They have a page of their own, so that the page that anybody may read has no names. The number of
series is bounded whatever the load: of each resource the largest holders have series, and the
others are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from ..bounds.accounts import HoldingStatus
    from ..status.status import TaskManagerStatus

LARGEST: Final = 20
"""Holders of each resource with series of their own. With eight resources and two families that is
at most 328 series, about as many as the page without names has. Shares of more than a twentieth are
never hidden in the sum."""

OTHER: Final = "other"
"""The application that stands for all others. One of that name is always among them."""


def registry(status: Callable[[], TaskManagerStatus]) -> CollectorRegistry:
    """Return a registry with the metrics of all applications of one TaskManager."""
    made = CollectorRegistry()
    made.register(ApplicationCollector(status))
    return made


class ApplicationCollector(Collector):
    """Turns a snapshot into the metric families of its applications.

    Args:
        status: Called once per scrape, in the thread of the scrape.
    """

    def __init__(self, status: Callable[[], TaskManagerStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering needs no snapshot of a starting daemon."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield both families of one snapshot."""
        held = GaugeMetricFamily(
            "sluice_application_held",
            "What an application holds; `other` is the sum of all but the largest.",
            labels=("application", "resource"),
        )
        quota = GaugeMetricFamily(
            "sluice_application_quota",
            "The lower quota of an application and its subject, if there is one.",
            labels=("application", "resource"),
        )
        for resource, holders in _holders(self._status()).items():
            named, others = _largest(holders)
            for application_id, holding in named:
                held.add_metric((application_id, resource), holding.held)
                if holding.quota is not None:
                    quota.add_metric((application_id, resource), holding.quota)
            held.add_metric((OTHER, resource), others)
        yield held
        yield quota


def _holders(status: TaskManagerStatus) -> dict[str, list[tuple[str, HoldingStatus]]]:
    """Return the applications that hold anything of each resource."""
    found: dict[str, list[tuple[str, HoldingStatus]]] = {}
    for application in status.applications:
        for holding in application.holdings:
            holders = found.setdefault(holding.resource, [])
            if holding.held:
                holders.append((application.application_id, holding))
    return found


def _largest(
    holders: list[tuple[str, HoldingStatus]],
) -> tuple[list[tuple[str, HoldingStatus]], int]:
    """Return the applications with series of their own, and the sum of the others."""
    ordered = sorted(holders, key=lambda each: (each[0] == OTHER, -each[1].held, each[0]))
    named = [each for each in ordered[:LARGEST] if each[0] != OTHER]
    return named, sum(holding.held for _, holding in ordered[len(named) :])
