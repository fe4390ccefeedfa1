"""Decides which log records are written, and which are only counted.

Clients without a credential can cause any number of lines: 1,344 a second have been seen, 40 GB a
day. So in each period

- of records about a connection, the first of each kind and source is written. The others are
  counted, and one line for each kind has their number by source;
- other records of one kind are written up to a number of bytes, and then counted.

Records about connections name their kind and source, see
:func:`sluice.transport.errors.counted`. The kind of other records is their format string,
or the logger for other libraries. Records below INFO are all written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ....transport.errors import one_line

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

PERIOD_SECONDS: Final = 60.0

KIND_BYTES: Final = 16 * 1024
"""Bytes that are written of one kind in a period: a hundred lines, or a few tracebacks."""

MAX_SOURCES: Final = 32
"""Pairs of kind and source that are counted separately; more count as one source."""

MAX_KINDS: Final = 256
"""Kinds that are counted separately in a period; more count by the name of their logger."""

MAX_NAMED_SOURCES: Final = 8
"""Sources that a line names, beginning with those that have most records."""

OTHER_SOURCES: Final = "other addresses"
_OWN_LOGGERS: Final = f"{__name__.partition('.')[0]}."


class _Kind(NamedTuple):
    """The key of records of one kind.

    Attributes:
        logger: Name of the logger.
        level: Severity.
        what: The kind that the record names, or its format string.
    """

    logger: str
    level: int
    what: str


class Summary(NamedTuple):
    """A line about records that were counted.

    Attributes:
        logger: Name of their logger.
        level: Their severity.
        text: The line.
    """

    logger: str
    level: int
    text: str


class RecordBudget:
    """Records of one kind, and one source if they have one, in this period."""

    __slots__ = ("budget_bytes", "counted", "example")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.counted = 0
        self.example = ""

    @property
    def is_open(self) -> bool:
        """Whether the next record is written."""
        return self.budget_bytes > 0

    def written(self, text: str) -> None:
        """Subtract the size of a written record from the budget."""
        self.budget_bytes -= len(text)


class Repeats:
    """The records of the current period, by kind and source. Used under the handler's lock.

    Args:
        clock: Returns seconds.
        period_seconds: Length of a period.
    """

    def __init__(self, clock: Callable[[], float], period_seconds: float = PERIOD_SECONDS) -> None:
        self._clock = clock
        self._period_seconds = period_seconds
        self._began = clock()
        self._entries: dict[tuple[_Kind, str | None], RecordBudget] = {}
        self._sources = 0
        self.has_counted = False
        """Whether records were counted in this period."""

    def remaining_seconds(self) -> float:
        """Return the time until the end of the period; 0 or less: it is over."""
        return self._began + self._period_seconds - self._clock()

    def entry(self, record: logging.LogRecord) -> RecordBudget:
        """Return the budget of a record in a period that is not over."""
        source: str | None = getattr(record, "source", None)
        if source is None:
            is_own = record.name.startswith(_OWN_LOGGERS)
            kind = _Kind(record.name, record.levelno, str(record.msg) if is_own else "")
            if (kind, None) not in self._entries and len(self._entries) >= MAX_KINDS:
                kind = kind._replace(what="")
            return self._entries.setdefault((kind, None), RecordBudget(KIND_BYTES))
        kind = _Kind(record.name, record.levelno, getattr(record, "kind", ""))
        found = self._entries.get((kind, source))
        if found is not None:
            return found
        if self._sources >= MAX_SOURCES:
            return self._entries.setdefault((kind, OTHER_SOURCES), RecordBudget(0))
        self._sources += 1
        return self._entries.setdefault((kind, source), RecordBudget(1))

    def count(self, entry: RecordBudget, record: logging.LogRecord) -> None:
        """Count a record that is not written."""
        if not entry.counted:
            entry.example = one_line(record.getMessage())
        entry.counted += 1
        self.has_counted = True

    def end(self) -> Iterator[Summary]:
        """End the period and begin the next; yield the lines about counted records."""
        entries, self._entries = self._entries, {}
        now = self._clock()
        seconds, self._began = now - self._began, now
        self.has_counted = False
        self._sources = 0
        sources: dict[_Kind, dict[str, int]] = {}
        for (kind, source), entry in entries.items():
            if not entry.counted:
                continue
            if source is not None:
                sources.setdefault(kind, {})[source] = entry.counted
                continue
            text = f"{entry.counted} more in {seconds:.0f} s of this kind: {entry.example}"
            yield Summary(kind.logger, kind.level, text)
        for kind, counts in sources.items():
            text = f"{sum(counts.values())} more in {seconds:.0f} s: {kind.what}: {_named(counts)}"
            yield Summary(kind.logger, kind.level, text)


def _named(counts: dict[str, int]) -> str:
    """Return the numbers by source, the largest first, and the sum of the small ones."""
    known = sorted(
        (source for source in counts if source != OTHER_SOURCES), key=lambda source: -counts[source]
    )
    named = [f"{counts[source]} from {source}" for source in known[:MAX_NAMED_SOURCES]]
    rest = sum(counts.values()) - sum(counts[source] for source in known[:MAX_NAMED_SOURCES])
    return ", ".join([*named, f"{rest} from {OTHER_SOURCES}"] if rest else named)
