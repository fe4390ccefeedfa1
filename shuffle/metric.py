"""Metrics, as fields of a status declare them: in the annotation of the field, or of a property.

::

    SEGMENTS = gauge("Segments of the network buffer pool.", "network_memory_segments")


    class NetworkPoolStatus(msgspec.Struct):
        metric_prefix: ClassVar[str] = "network_memory_"

        available_segments: Annotated[int, SEGMENTS.at(state="free")] = 0
        lent_segments: Annotated[int, SEGMENTS.at(state="lent")] = 0
        waiting_requests: Annotated[int, gauge("Channels that wait for their segments.")] = 0

The name of a metric is by default that of the field, with the prefix of the struct. A number stands
for itself, a list for its length and a text for 1, so that structs are counted by it. If there are
several structs, as in a list of pools, their values are added up. A field of a ``histogram`` is a
``HistogramStatus``.

The same annotations say how the statuses of several data processes become one
(``taskmanager/processes/combined_status.py``). Numbers are added, unless the metric of a field has
another ``combine`` or a field without a metric is ``Combined``. Structs of a list become one if
their class has ``key_fields`` and they agree in these.
``taskmanager/metrics/metrics.py`` makes the metrics page of these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Combine: TypeAlias = Literal["sum", "min", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family, and the labels of the series that a field adds to it.

    Args:
        kind: Its type, as Prometheus has it.
        text: Its help.
        name: Its name, without ``sluice_`` and ``_total``; it ends in the unit. Empty: that of the
            field with the prefix of its struct.
        by: Fields of the struct whose texts are labels of the same names.
        key: Label of the keys, if the field is a dict.
        zeros: Values of ``by``, or of ``key``, that have a series when no struct has them. Structs
            with other values of ``by`` count as ``"other"`` if that is one of them, else not.
        combine: How the values of several structs become one, and those of several processes.
        labels: Further labels of the field.
    """

    kind: Literal["gauge", "counter", "info", "histogram"]
    text: str
    name: str = ""
    by: tuple[str, ...] = ()
    key: str = ""
    zeros: tuple[tuple[str, ...], ...] = ()
    combine: Combine = "sum"
    labels: Mapping[str, str] = field(default_factory=dict)

    def at(self, **labels: str) -> Metric:
        """Return the same family for a field with labels of its own."""
        return replace(self, labels=labels)


@dataclass(frozen=True, slots=True)
class Part:
    """Annotation of a field that is a struct: labels of all its metrics."""

    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Combined:
    """Annotation of a field without a metric: how the values of several processes become one.

    Args:
        how: ``"max"``: the largest. ``"every"``: the first if every process has one, else None.
    """

    how: Literal["max", "every"]


def gauge(
    text: str,
    name: str = "",
    *,
    by: str = "",
    zeros: Sequence[str | tuple[str, ...]] = (),
    combine: Combine = "sum",
) -> Metric:
    """Return a metric that goes up and down; ``by`` is split at its blanks."""
    return Metric("gauge", text, name, tuple(by.split()), "", _tuples(zeros), combine)


def total(
    text: str,
    name: str = "",
    *,
    by: str = "",
    key: str = "",
    zeros: Sequence[str | tuple[str, ...]] = (),
) -> Metric:
    """Return a metric that only grows while the daemon lives."""
    return Metric("counter", text, name, tuple(by.split()), key, _tuples(zeros))


def histogram(text: str, name: str = "", *, by: str = "") -> Metric:
    """Return a metric of a ``HistogramStatus``; ``by`` is split at its blanks.

    No two structs of a status have the same values of ``by``.
    """
    return Metric("histogram", text, name, tuple(by.split()))


def _tuples(values: Sequence[str | tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple((each,) if isinstance(each, str) else each for each in values)
