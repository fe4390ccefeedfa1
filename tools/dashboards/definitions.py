"""The metrics as the TaskManager declares them: name, kind, help, labels and unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector

from sluice.shuffle.taskmanager.metrics.application_metrics import ApplicationCollector
from sluice.shuffle.taskmanager.metrics.metrics import TaskManagerCollector
from tools.docs.sample_status import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

NAME: Final = re.compile(r"\b(?:sluice|process)_[a-z_]+\b(?!\()")
"""A metric in an expression."""

_SUFFIXES: Final = {"counter": "_total", "info": "_info"}
_SERIES_OF_HISTOGRAMS: Final = re.compile("_(bucket|sum|count)$")
_UNITS: Final = {
    "bytes": "bytes",
    "seconds": "s",
    "ratio": "percentunit",
    "segments": "suffix: segments",
    "buffers": "suffix: buffers",
}
"""Grafana's unit by the last word of a name. The names end in their base units."""
_RATE_UNITS: Final = {"bytes": "binBps", "seconds": "short"}
"""The unit of a rate. Seconds in a second are a number: of cores, or of those that wait."""

COUNT: Final = "short"
"""The unit of a plain number."""
YES_OR_NO: Final = "bool_yes_no"
PER_SECOND: Final = "cps"


class UnknownMetric(ValueError):
    """An expression names a metric that no TaskManager has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No field of the status declares the metric {name}; correct the panel")


@dataclass(frozen=True)
class Definition:
    """A metric.

    Attributes:
        name: Its name in expressions; that of a histogram without ``_bucket`` and the like.
        kind: ``"gauge"``, ``"counter"``, ``"info"`` or ``"histogram"``.
        text: Its help.
        series: Labels of its series, for a sample of the status.
    """

    name: str
    kind: str
    text: str
    series: tuple[dict[str, str], ...] = field(default=(), compare=False)

    @property
    def unit(self) -> str:
        """Grafana's unit of its values; of a counter, that of its increases."""
        if self.kind == "gauge" and self.text.startswith("1 "):
            return YES_OR_NO
        return _UNITS.get(self._noun, COUNT)

    @property
    def rate_unit(self) -> str:
        """Grafana's unit of its increase in a second."""
        return _RATE_UNITS.get(self._noun, PER_SECOND)

    @property
    def title(self) -> str:
        """Its name as a title, without prefix and unit."""
        words = self.name.removeprefix("sluice_").removesuffix("_total")
        return words.removesuffix(f"_{self._noun}").replace("_", " ").capitalize()

    @property
    def _noun(self) -> str:
        return self.name.removesuffix("_total").rpartition("_")[2]


class Definitions:
    """All metrics by name.

    Args:
        families: As collectors yield them.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._by_name: Final = {each.name: each for each in map(_definition, families)}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Definition:
        """Return a metric by its name in an expression.

        Raises:
            UnknownMetric: There is none.
        """
        found = self._by_name.get(name) or self._by_name.get(_SERIES_OF_HISTOGRAMS.sub("", name))
        if found is None:
            raise UnknownMetric(name)
        return found

    def sum_of(self, name: str) -> str:
        """Return the name of the sum of something that is a histogram, or a counter alone."""
        found = self._by_name.get(name)
        return f"{name}_{'total' if found is None else 'sum'}"

    def of_kind(self, kind: str) -> list[Definition]:
        """Return all metrics of a kind, in the order of their names."""
        return [each for each in self if each.kind == kind]

    def named_in(self, expression: str) -> list[Definition]:
        """Return the metrics that an expression names, each once.

        Raises:
            UnknownMetric: No TaskManager has one of them.
        """
        return list(dict.fromkeys(self[name] for name in NAME.findall(expression)))


def declared() -> Definitions:
    """Return the metrics of a TaskManager, of its applications and of its process."""
    return Definitions(
        chain(
            TaskManagerCollector(lambda: STATUS).collect(),
            ApplicationCollector(lambda: STATUS).collect(),
            ProcessCollector(registry=CollectorRegistry()).collect(),
        )
    )


def _definition(family: Metric) -> Definition:
    name = family.name + _SUFFIXES.get(family.type, "")
    series = tuple(dict(sample.labels) for sample in family.samples)
    return Definition(name, family.type, family.documentation, series)
