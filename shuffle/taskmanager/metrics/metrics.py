"""Prometheus metrics, made from one status snapshot when a scraper asks.

The fields of the status declare them (``shuffle/metric.py``). Units are base units, and counters
end in ``_total``. The number of series depends on the configuration and on the wire protocol, never
on the load: no label names an application, a shuffle, a peer or a pool. Seconds of waiting include
waits that still last.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from ...metric import Metric, Part
from ..status.reasons import DROP_REASONS, HTTP_REASONS, REFUSAL_REASONS
from ..status.status import TaskManagerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric as Family

    from ...histogram_status import HistogramStatus

_FAMILIES: Final = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "info": InfoMetricFamily,
    "histogram": HistogramMetricFamily,
}

_REASONS: Final = {
    "connections_refused": REFUSAL_REASONS,
    "http_refused": HTTP_REASONS,
    "http_connections_dropped": DROP_REASONS,
}
"""Keys that always have a series, of families whose fields lie below those who know them."""


def registry(status: Callable[[], TaskManagerStatus]) -> CollectorRegistry:
    """Return a registry with the metrics of one TaskManager and those of its process."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    made.register(TaskManagerCollector(status))
    return made


class TaskManagerCollector(Collector):
    """Turns a snapshot into metric families.

    Args:
        status: Called once per scrape, in the thread of the scrape.
    """

    def __init__(self, status: Callable[[], TaskManagerStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registering needs no snapshot of a starting daemon."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield every family of one snapshot, in the order of their names."""
        parts = _Parts(self._status())
        for sources in _sources_by_family():
            first = sources[0]
            metric, labels = first.metric, _label_names(first)
            family = _FAMILIES[metric.kind](f"sluice_{first.family}", metric.text, labels=labels)
            if metric.kind == "info":
                texts = {each.name: getattr(parts.status, each.name) for each in sources}
                family.add_metric((), texts)
            elif metric.kind == "histogram":
                for source in sources:
                    for values, histogram in _histograms(parts, source):
                        family.add_metric(
                            (*source.labels.values(), *values),
                            _buckets(histogram),
                            histogram.sum_seconds,
                        )
            else:
                for source in sources:
                    for values, number in _samples(parts, source):
                        family.add_metric((*source.labels.values(), *values), number)
            if family.samples or labels:
                yield family


class _Source(NamedTuple):
    """A field that adds series to a family.

    Attributes:
        path: Fields that lead from the status to the structs that have it.
        name: Its name.
        family: The name of the family.
        metric: The declaration.
        labels: Labels of all its series.
        zeros: Values of the other labels that always have a series.
    """

    path: tuple[str, ...]
    name: str
    family: str
    metric: Metric
    labels: dict[str, str]
    zeros: tuple[tuple[str, ...], ...]


class _Parts:
    """Finds the structs of a status by the path to them, and groups them by their labels."""

    def __init__(self, status: TaskManagerStatus) -> None:
        self.status = status
        self._found: dict[tuple[str, ...], list[Any]] = {(): [status]}
        self._grouped: dict[object, dict[tuple[str, ...], list[Any]]] = {}

    def at(self, path: tuple[str, ...]) -> list[Any]:
        """Return the structs at the end of a path."""
        if path not in self._found:
            values = [getattr(each, path[-1]) for each in self.at(path[:-1])]
            in_lists = (each if isinstance(each, tuple) else (each,) for each in values)
            self._found[path] = [item for each in in_lists for item in each]
        return self._found[path]

    def groups(self, source: _Source) -> dict[tuple[str, ...], list[Any]]:
        """Return the structs that have a field, by their own labels."""
        key = (source.path, source.metric.by, source.zeros)
        if key not in self._grouped:
            groups: dict[tuple[str, ...], list[Any]] = {each: [] for each in source.zeros}
            others = groups.get(("other",))
            parts = self.at(source.path)
            columns = [map(attrgetter(name), parts) for name in source.metric.by]
            all_labels = zip(*columns, strict=True) if columns else repeat((), len(parts))
            for part, labels in zip(parts, all_labels, strict=True):
                if labels in groups or not source.zeros:
                    groups.setdefault(labels, []).append(part)
                elif others is not None:
                    others.append(part)
            self._grouped[key] = groups
        return self._grouped[key]


def _samples(parts: _Parts, source: _Source) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the labels and the value of each series of a field."""
    if source.metric.key:
        counts = dict.fromkeys(source.zeros, 0)
        for part in parts.at(source.path):
            counts.update({(key,): count for key, count in getattr(part, source.name).items()})
        yield from counts.items()
        return
    read = attrgetter(source.name)
    for labels, group in parts.groups(source).items():
        values = list(map(read, group))
        if not values:
            yield labels, 0.0
        elif isinstance(values[0], str):
            yield labels, len(values)
        elif isinstance(values[0], tuple):
            yield labels, sum(map(len, values))
        elif values[0] is not None:
            yield labels, _combined(source.metric, values)


def _histograms(
    parts: _Parts, source: _Source
) -> Iterator[tuple[tuple[str, ...], HistogramStatus]]:
    """Yield the labels and the value of each histogram of a field."""
    for labels, group in parts.groups(source).items():
        (only,) = group
        yield labels, getattr(only, source.name)


def _buckets(histogram: HistogramStatus) -> list[tuple[str, float]]:
    return [
        ("+Inf" if bound == math.inf else repr(bound), count)
        for bound, count in histogram.cumulative()
    ]


def _combined(metric: Metric, values: list[float]) -> float:
    match metric.combine:
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "mean":
            return sum(values) / len(values)
    return sum(values)


def _label_names(source: _Source) -> tuple[str, ...]:
    metric = source.metric
    return (*source.labels, *metric.by, *((metric.key,) if metric.key else ()))


@functools.cache
def _sources_by_family() -> list[list[_Source]]:
    """Return the fields that make up each family, in the order of their names."""
    families: dict[str, list[_Source]] = {}
    for source in _sources(TaskManagerStatus, (), Part()):
        families.setdefault(source.family, []).append(source)
    return [families[name] for name in sorted(families)]


def _sources(kind: type, path: tuple[str, ...], part: Part) -> Iterator[_Source]:
    """Yield the fields with metrics of a struct, and of the structs in it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    hints |= {
        name: typing.get_type_hints(each.fget, include_extras=True)["return"]
        for name, each in vars(kind).items()
        if isinstance(each, property)
    }
    for name, hint in hints.items():
        bare, *notes = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        inside = Part()
        for note in notes:
            if isinstance(note, Part):
                inside = note
            elif isinstance(note, Metric):
                family = note.name or getattr(kind, "metric_prefix", "") + name
                zeros = note.zeros or tuple((key,) for key in _REASONS.get(family, ()))
                if not (zeros or note.by or note.key):
                    zeros = ((),)
                yield _Source(path, name, family, note, {**part.labels, **note.labels}, zeros)
        for each in (bare, *typing.get_args(bare)):
            if isinstance(each, type) and (
                issubclass(each, msgspec.Struct) or dataclasses.is_dataclass(each)
            ):
                yield from _sources(each, (*path, name), inside)
