"""Short ways to write metric families, and the extremes of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from prometheus_client import Metric


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return GaugeMetricFamily(f"sluice_{name}", text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(f"sluice_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def total(name: str, text: str, value: float) -> CounterMetricFamily:
    """Return a counter without labels."""
    return CounterMetricFamily(f"sluice_{name}", text, value=value)


def totals(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    """Return a counter with labels."""
    family = CounterMetricFamily(f"sluice_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def lengths(
    name: str, what: str, label: str, queues: Mapping[str, Collection[int]]
) -> Iterator[Metric]:
    """Yield the sum, least, mean and greatest length of queues, each by one label."""

    def of(kind: str, text: str, values: Mapping[str, float]) -> Metric:
        return gauges(f"{name}{kind}", text, label, values)

    yield of("", f"{what}.", {key: sum(each) for key, each in queues.items()})
    yield of(
        "_min", f"{what}: the shortest.", {k: min(each, default=0) for k, each in queues.items()}
    )
    yield of(
        "_avg",
        f"{what}: the mean.",
        {key: sum(each) / len(each) if each else 0.0 for key, each in queues.items()},
    )
    yield of(
        "_max", f"{what}: the longest.", {k: max(each, default=0) for k, each in queues.items()}
    )
