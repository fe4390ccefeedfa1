"""Combines the statuses of several data processes into one.

How the values of a field become one follows from its type and its annotations
(``shuffle/metric.py``):

- Numbers are added. None, which stands for no limit, stays None. The ``combine`` of the metric, or
  ``Combined``, may ask for the largest or the smallest instead.
- A flag is set if one process sets it. Of texts the first that is not empty counts.
- Structs are combined field by field. Lists are joined, and structs in them that agree in the
  ``key_fields`` of their class become one.
- The buckets of histograms are added, and the percentiles of all are computed from them.

Prometheus takes a total that falls for a restart, and computes a wrong rate. So the totals of data
processes that have ended stay part of the whole: the fields with a metric of kind ``counter``, and
histograms.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import typing
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ...counters import BoundedCounts
from ...histogram_status import HistogramStatus
from ...metric import Combined, Metric
from ..status.process_status import ProcessStatus
from ..status.status import TaskManagerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

UNITS_PER_SECOND: Final = 1 << 20
"""Floats are added in whole units of this size, because rounding must not let a total fall."""


def combine(
    processes: Sequence[TaskManagerStatus], ended: Sequence[TaskManagerStatus] = ()
) -> TaskManagerStatus:
    """Return the status of several data processes as that of one TaskManager.

    Its counters are a copy, which the caller may change. State and uptime are those of the
    TaskManager, so the caller sets them.

    Args:
        processes: The statuses of those that run.
        ended: Those of which only the totals count, as :func:`remains` returns them.
    """
    whole: TaskManagerStatus = _combined(TaskManagerStatus, processes, ended)
    return whole


def remains(status: TaskManagerStatus) -> TaskManagerStatus:
    """Return what is left of a data process that has ended: its totals, and nothing else.

    ``combine((left, remains(status)))`` adds it to what is left of earlier ones.
    """
    return combine((), (status,))


def process_status(
    index: int,
    pid: int,
    restarts: int,
    status: TaskManagerStatus,
    reason: str = "",
    *,
    is_silent: bool = False,
) -> ProcessStatus:
    """Return the status of one data process among the others.

    Args:
        index: Its number, from 0.
        pid: Its process id; 0 if it does not run.
        restarts: How often it was started again.
        status: Its last status.
        reason: How its last run ended; ignored while it runs.
        is_silent: Whether it runs and does not answer.
    """
    if not pid:
        return ProcessStatus(
            index,
            status.taskmanager_id,
            status.address,
            state="ended",
            reason=reason,
            restarts=restarts,
        )
    return ProcessStatus(
        index,
        status.taskmanager_id,
        status.address,
        pid,
        "silent" if is_silent else status.state,
        restarts=restarts,
        uptime_seconds=status.uptime_seconds,
        cpu_seconds=status.cpu_seconds,
        max_lag_seconds=status.event_loop.max_lag_seconds,
        connections=len(status.connections),
        bytes_in=sum(each.bytes_in for each in status.traffic),
        bytes_out=sum(each.bytes_out for each in status.traffic),
    )


class _Field(NamedTuple):
    """A field of a struct, and how its values are combined.

    Attributes:
        name: Its name.
        outlasts: Whether its values in processes that have ended count.
        combined: Combines the values in those that run and in those that have ended.
    """

    name: str
    outlasts: bool
    combined: Callable[[Sequence[Any], Sequence[Any]], Any]


def _combined(kind: Any, parts: Sequence[Any], ended: Sequence[Any]) -> Any:
    """Combine structs of a type field by field."""
    return kind(
        **{
            name: combined(
                [getattr(part, name) for part in parts],
                [getattr(part, name) for part in ended] if outlasts else (),
            )
            for name, outlasts, combined in _fields(kind)
        }
    )


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    """Return the fields of a struct or dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    else:
        names = tuple(each.name for each in dataclasses.fields(kind))
    empty = kind()
    return tuple(_field(kind, name, hints[name], getattr(empty, name)) for name in names)


def _field(kind: Any, name: str, hint: Any, default: object) -> _Field:
    """Return how a field with a type hint is combined."""
    bare, *notes = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    if name in getattr(kind, "key_fields", ()):
        return _Field(name, True, functools.partial(_leaves, _first, default))
    if bare is HistogramStatus:
        return _Field(name, True, functools.partial(_leaves, _histogram, default))
    if _is_struct(bare):
        return _Field(name, _has_totals(bare), functools.partial(_combined, bare))
    if typing.get_origin(bare) is tuple:
        item = typing.get_args(bare)[0]
        keys = getattr(item, "key_fields", ())
        if keys:
            join = functools.partial(_grouped, item, attrgetter(*keys))
            return _Field(name, _has_totals(item), join)
        return _Field(name, False, _joined)
    is_total = any(isinstance(note, Metric) and note.kind == "counter" for note in notes)
    return _Field(name, is_total, functools.partial(_leaves, _rule(bare, notes), default))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    )


def _has_totals(kind: Any) -> bool:
    keys = getattr(kind, "key_fields", ())
    return any(each.outlasts and each.name not in keys for each in _fields(kind))


def _rule(kind: Any, notes: Sequence[object]) -> Callable[[Sequence[Any]], Any]:
    """Return how values without fields of their own are combined, at least one of them."""
    for note in notes[:1]:  # further metrics of a field show the same values in another way
        how = note.how if isinstance(note, Combined) else getattr(note, "combine", "sum")
        if how != "sum":
            return _RULES[how]
    if kind is BoundedCounts:
        return _counts
    if kind is bool:
        return any
    kinds = typing.get_args(kind) or (kind,)
    return _added if int in kinds or float in kinds else _first_of_all


def _leaves(
    rule: Callable[[Sequence[Any]], Any],
    default: object,
    values: Sequence[Any],
    of_ended: Sequence[Any],
) -> Any:
    """Combine values without fields of their own."""
    if not values and not of_ended:
        return copy.copy(default)
    return rule([*values, *of_ended])


def _joined(lists: Sequence[tuple[Any, ...]], _of_ended: Sequence[object]) -> tuple[Any, ...]:
    return tuple(itertools.chain.from_iterable(lists))


def _grouped(
    kind: Any,
    key: Callable[[Any], object],
    lists: Sequence[tuple[Any, ...]],
    of_ended: Sequence[tuple[Any, ...]],
) -> tuple[Any, ...]:
    """Join lists of structs, and combine those with the same key."""
    groups: dict[object, tuple[list[Any], list[Any]]] = {}
    for side, given in enumerate((lists, of_ended)):
        for each in itertools.chain.from_iterable(given):
            groups.setdefault(key(each), ([], []))[side].append(each)
    return tuple(_combined(kind, *group) for group in groups.values())


def _added(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    if any(isinstance(number, float) for number in numbers):
        return sum(math.floor(each * UNITS_PER_SECOND) for each in numbers) / UNITS_PER_SECOND
    return sum(numbers)


def _histogram(values: Sequence[HistogramStatus]) -> HistogramStatus:
    counts = itertools.zip_longest(*(each.bucket_counts for each in values), fillvalue=0)
    return HistogramStatus.of(
        [sum(each) for each in counts],
        _added([each.sum_seconds for each in values]) or 0.0,
        max(each.max_seconds for each in values),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return max(numbers) if len(numbers) == len(values) else None


def _smallest(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _first_of_all(values: Sequence[Any]) -> Any:
    return next(filter(None, values), values[0])


def _every(values: Sequence[Any]) -> Any:
    return values[0] if all(values) else None


def _counts(values: Iterable[BoundedCounts]) -> BoundedCounts:
    added = BoundedCounts()
    for counts in values:
        for key, count in counts.items():
            added.bump(key, count)
    return added


_RULES: Final = {"max": _largest, "min": _smallest, "every": _every}
