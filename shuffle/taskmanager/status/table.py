"""The status of a TaskManager as text: aligned columns, for terminals and for pipes.

Columns stand at least two blanks apart and no cell has two blanks in a row, so that a program can
split a line. In a terminal a table that is wider than the terminal becomes one paragraph for each
row, with the name of the column before each value; only a word that is wider than the terminal is
left to it.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....protocol.identity import plain_name
from ....transport.settings import approximate_size
from .waits_table import rows, tree_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...histogram_status import HistogramStatus
    from ...partition_status import PipelinedPartitionStatus
    from ..bounds.accounts import ApplicationStatus
    from ..serve.serving_status import ChannelStatus, GateStatus
    from .latencies_status import LatenciesStatus
    from .status import TaskManagerStatus

ANONYMOUS: Final = "ANONYMOUS: everyone who reaches a port can read and remove data"

_SERVES: Final = {
    "authenticated": "authenticated: applications need a credential",
    "this host": "this host only: there is no cluster secret",
    "anonymous": ANONYMOUS,
}
_OF_SEVERAL: Final = frozenset(
    {
        "Network memory",
        "Storage",
        "Partitions",
        "Copies and moves",
        "Stored data verified",
        "Applications",
        "Traffic since start",
    }
)
"""Titles of the tables without ids that only one TaskManager knows."""
_GAP: Final = "  "
_INDENT: Final = "    "

MIN_WIDTH: Final = 20
"""Columns that the text of a wait has, however deep it lies in the tree."""


class Table:
    """A titled table of texts.

    Args:
        title: Stands above the table.
        columns: Names of the columns as words, with ``_`` for a blank.
        numeric: Those columns that are aligned to the right.
    """

    __slots__ = ("_columns", "_numeric", "_rows", "title")

    def __init__(self, title: str, columns: str, numeric: str = "") -> None:
        self.title = title
        self._columns = [column.replace("_", " ") for column in columns.split()]
        self._numeric = [column in numeric.split() for column in columns.split()]
        self._rows: list[list[str]] = []

    @property
    def row_count(self) -> int:
        """Rows so far."""
        return len(self._rows)

    def add(self, *cells: object) -> None:
        """Add a row."""
        self._rows.append([_clean(str(cell)) for cell in cells])

    def lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines below the title.

        Args:
            width: Columns of the terminal; None: lines may have any length.
        """
        table = [self._columns, *self._rows]
        widths = [max(map(_columns_of, cells)) for cells in zip(*table, strict=True)]
        if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            for row in self._rows:
                yield from _paragraph(self._columns, row, width)
            return
        for row in table:
            cells = (
                _padded(cell, size, to_the_right=right)
                for cell, size, right in zip(row, widths, self._numeric, strict=True)
            )
            yield _GAP.join(cells).rstrip()


def render(status: TaskManagerStatus, width: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield title and lines of each part: the head, and each table that has rows.

    Args:
        status: A snapshot.
        width: Columns of the terminal; None: lines are not wrapped.
    """
    head = [_clean(_head(status)), *([_SERVES[status.serves]] if status.serves else [])]
    if width is not None:
        head = [line for text in head for line in _wrapped(text, width)]
    yield "", head
    warnings = _table("Warnings", status.warnings, "severity text remedy")
    if warnings.row_count:
        yield warnings.title, list(warnings.lines(width))
    if status.waits:
        yield "Waits", list(_waits(status, width))
    for table in _tables(status):
        if table.row_count:
            yield table.title, list(table.lines(width))


def render_sum(
    status: TaskManagerStatus, width: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield title and lines of the tables that mean something for several TaskManagers together.

    Args:
        status: Their combined status.
        width: Columns of the terminal; None: lines are not wrapped.
    """
    for table in _tables(status):
        if table.row_count and table.title in _OF_SEVERAL:
            yield table.title, list(table.lines(width))


def render_application(
    status: TaskManagerStatus, name: str, width: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield title and lines of the holdings of each application of a name.

    Args:
        status: A snapshot.
        name: The name, with or without the namespace that the TaskManager adds to it.
        width: Columns of the terminal; None: lines are not wrapped.
    """
    for application in status.applications:
        if name in (application.application_id, plain_name(application.application_id)):
            table = _holdings(application)
            yield table.title, list(table.lines(width))


def approximate_time(seconds: float) -> str:
    """Return a time to about two digits: ``"1.5 ms"``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            number = seconds / factor
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _waits(status: TaskManagerStatus, width: int | None) -> Iterator[str]:
    """Yield the lines of the waits: a table in a pipe, a tree in a terminal."""
    if width is None:
        table = Table("Waits", "waiter waits_for for reason remedy", "for")
        for row in rows(status.waits):
            table.add(*row)
        yield from table.lines(width)
        return
    for indent, text in tree_lines(status.waits, status.waits_omitted):
        for line in _wrapped(_clean(text), max(MIN_WIDTH, width - len(indent))):
            yield indent + line


def _clean(text: str) -> str:
    """Replace control characters, and runs of blanks: names come from the network."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return " ".join(printable.split()) or "-"


def _columns_of(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(character)
        else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def _padded(cell: str, size: int, *, to_the_right: bool) -> str:
    padding = " " * (size - _columns_of(cell))
    return padding + cell if to_the_right else cell + padding


def _paragraph(columns: list[str], row: list[str], width: int) -> Iterator[str]:
    """Write a row as name and value, over as many lines as it needs."""
    line = ""
    for part in itertools.starmap("{} {}".format, zip(columns, row, strict=True)):
        if line and _columns_of(line) + len(_GAP) + _columns_of(part) > width:
            yield line
            line = _INDENT + part
        else:
            line = f"{line}{_GAP}{part}" if line else part
        *full, line = _wrapped(line, width, _INDENT)
        yield from full
    yield line


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text at its blanks into lines; those behind the first one are indented."""
    lines: list[str] = []
    line, *words = text.split(" ") if _columns_of(text) > width else [text]
    for word in words:
        if line.strip() and _columns_of(line) + 1 + _columns_of(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}"
    return [*lines, line]


def _head(status: TaskManagerStatus) -> str:
    socket = f", socket {status.socket_path}" if status.socket_path else ""
    return (
        f"TaskManager {status.taskmanager_id} is {status.state} on {status.address}{socket}; "
        f"version {status.version}, data path {status.data_path}, "
        f"up {status.uptime_seconds:.0f} s, "
        f"event loop at most {status.event_loop.max_lag_seconds * 1000:.0f} ms late"
    )


def _tables(status: TaskManagerStatus) -> Iterator[Table]:
    counters, copies = status.counters, status.copies
    yield _table(
        "Data processes",
        status.processes,
        "process state=condition pid> up>uptime_seconds restarts> cpu>cpu_seconds late> "
        "connections> bytes_in> bytes_out> address taskmanager=taskmanager_id",
        pid=lambda process: process.pid or "-",
        late=lambda process: f"{process.max_lag_seconds * 1000:.0f} ms",
    )
    yield _table(
        "Network memory",
        [status.network_pool],
        "segments>total_segments size>segment_size_bytes free>available_segments "
        "lent>lent_segments in_flight>in_flight_segments wanted>wanted_segments "
        "waiting>waiting_requests refused> pools>local_pools",
        refused=lambda pool: pool.refused_requests + pool.expired_requests,
    )
    yield _table(
        "Storage",
        status.storage,
        "tier directory used>used_bytes capacity>capacity_bytes free>free_bytes state",
        state=lambda tier: "healthy" if tier.healthy else f"out of use: {tier.reason}",
    )
    yield _table(
        "Partitions",
        status.partitions,
        "application=application_id shuffle>shuffle_id committed>committed_map_outputs "
        "open>open_map_outputs regions> bytes>stored_bytes",
    )
    some = counters.copies_made, copies.waiting, copies.short, copies.watched, copies.moved
    yield _table(
        "Copies and moves",
        [status] if any(some) else [],
        "waiting>copies.waiting short>copies.short watched>copies.watched "
        "made>counters.copies_made bytes>counters.copy_bytes_out failed>counters.copies_failed "
        "moved>copies.moved staying>copies.staying reason=copies.reason",
    )
    found = sum(counters.damage_reports.values()), counters.damaged_map_outputs_dropped
    yield _table(
        "Stored data verified",
        [status] if any(found) or status.scrub.passes else [],
        "scrubbed>scrub.read_bytes passes>scrub.passes last_pass> reported> "
        "damaged>counters.damaged_map_outputs_dropped "
        "repaired>counters.damaged_map_outputs_repaired",
        last_pass=lambda each: (
            "-" if each.scrub.pass_age_seconds is None else f"{each.scrub.pass_age_seconds:.0f} s"
        ),
        reported=lambda each: sum(each.counters.damage_reports.values()),
    )
    yield _table(
        "Pipelined partitions",
        status.pipelined_partitions,
        "application=application_id shuffle>shuffle_id attempt>map_attempt_id type=partition_type "
        "state parts>subpartitions queued>queued_buffers longest>longest_queue "
        "used>used_segments limit>limit_segments overdraft>overdraft_segments back-pressured "
        "bytes_out>",
        **{"back-pressured": _waited},
    )
    yield _table(
        "Gates",
        status.gates,
        "gate>gate_id reader=remote application=application_id shuffle>shuffle_id channels> "
        "exclusive> floating> queued> longest> idle>idle_seconds busy>busy_seconds "
        "back-pressured>back_pressured_seconds",
        channels=lambda gate: len(gate.channels),
        exclusive=lambda gate: f"{gate.exclusive_used}/{gate.exclusive_buffers}",
        floating=lambda gate: f"{gate.floating_used}/{gate.floating_limit}",
        queued=lambda gate: sum(channel.queued_buffers for channel in gate.channels),
        longest=lambda gate: max((each.queued_buffers for each in gate.channels), default=0),
    )
    yield _table(
        "Channels of gates",
        [_GateChannel(gate, channel) for gate in status.gates for channel in gate.channels],
        "gate>gate.gate_id channel>at.channel kind=at.kind source=at.source "
        "queued>at.queued_buffers credit>at.available_credit unannounced>at.unannounced_credit "
        "backlog>at.backlog_buffers bytes_in>at.bytes_in buffers_in>at.buffers_in",
    )
    yield _table(
        "Local pools",
        status.pools,
        "pool=name application=application_id kind size>size_segments "
        "required>required_segments most>maximum_segments lent>lent_segments "
        "overdraft>overdraft_segments full_channels> waiting>waiting_listeners",
    )
    yield _table(
        "Connections",
        status.connections,
        "remote leg role flow_control channels> bytes_in> bytes_out> "
        "unsent>write_buffer_bytes writable",
    )
    yield _table(
        "Applications",
        status.applications,
        "application=application_id connections> bytes>stored_bytes expires",
        expires=_expiry,
    )
    yield _table(
        "Latencies since start",
        [each for each in _latencies(status.latencies) if each.times.count],
        "of p50> p90> p99> longest> count>times.count",
        p50=lambda each: approximate_time(each.times.p50_seconds),
        p90=lambda each: approximate_time(each.times.p90_seconds),
        p99=lambda each: approximate_time(each.times.p99_seconds),
        longest=lambda each: approximate_time(each.times.max_seconds),
    )
    yield _table(
        "Traffic since start",
        [
            _Leg("from map tasks", counters.producer_bytes_in, counters.producer_buffers_in),
            _Leg("to other TaskManagers", counters.peer_bytes_out, counters.peer_buffers_out),
            _Leg("from other TaskManagers", counters.peer_bytes_in, counters.peer_buffers_in),
            _Leg(
                "to reduce tasks, local",
                counters.consumer_bytes_out_local,
                counters.consumer_buffers_out_local,
            ),
            _Leg(
                "to reduce tasks, remote",
                counters.consumer_bytes_out_remote,
                counters.consumer_buffers_out_remote,
            ),
        ],
        "leg bytes>size_bytes buffers>",
    )


class _GateChannel(NamedTuple):
    gate: GateStatus
    at: ChannelStatus


class _Latency(NamedTuple):
    of: str
    times: HistogramStatus


def _latencies(latencies: LatenciesStatus) -> Iterator[_Latency]:
    yield _Latency("commit", latencies.commit)
    for each in latencies.region_reads:
        yield _Latency(f"read from {each.tier} {each.directory}", each.read)
    yield _Latency("credit wait of map tasks", latencies.map_output_credit_wait)
    yield _Latency("credit wait of pipelined tasks", latencies.pipelined_credit_wait)
    yield _Latency("credit wait for TaskManagers", latencies.peer_credit_wait)
    yield _Latency("credit wait for reduce tasks", latencies.consumer_credit_wait)
    yield _Latency("partition request", latencies.partition_request_wait)
    yield _Latency("connect to a TaskManager", latencies.connect)
    yield _Latency("event loop lag", latencies.event_loop_lag)


class _Leg(NamedTuple):
    leg: str
    size_bytes: int
    buffers: int


def _waited(partition: PipelinedPartitionStatus) -> str:
    return f"{partition.back_pressured_seconds:.1f} s{', now' if partition.back_pressured else ''}"


def _expiry(application: ApplicationStatus) -> str:
    left = application.expires_in_seconds
    return "-" if left is None else f"in {left:.0f} s"


def _holdings(application: ApplicationStatus) -> Table:
    table = Table(
        _clean(application.application_id), "resource held subject quota", "held subject quota"
    )
    for each in application.holdings:
        as_text = approximate_size if each.resource.endswith("_bytes") else str
        quota = "none" if each.quota is None else as_text(each.quota)
        subject = "-" if each.subject_held is None else as_text(each.subject_held)
        table.add(each.resource.removesuffix("_bytes"), as_text(each.held), subject, quota)
    return table


def _table(
    title: str, rows: Sequence[Any], columns: str, **computed: Callable[[Any], object]
) -> Table:
    """Make a table of structs.

    Args:
        title: Stands above the table.
        rows: A struct for each row.
        columns: For each column its name, then ``=`` and the field if its name is another one, or
            ``>`` and the field if it is aligned to the right.
        computed: Make the cells of columns that are not fields, by their names.
    """
    cells = []
    names: dict[str, bool] = {}
    for column in columns.split():
        name, numeric, field = column.partition(">") if ">" in column else column.partition("=")
        names[name] = numeric == ">"
        field = field or name
        cells.append(computed.get(name) or functools.partial(_cell, field, attrgetter(field)))
    table = Table(title, " ".join(names), " ".join(name for name in names if names[name]))
    for row in rows:
        table.add(*(cell(row) for cell in cells))
    return table


def _cell(field: str, read: attrgetter[Any], row: object) -> object:
    """Return the value of a field for people; its name has the unit."""
    value = read(row)
    name = field.rpartition(".")[2]
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_seconds"):
        return f"{value:.1f} s"
    return approximate_size(value) if "bytes" in name.split("_") else value
