"""The status of a TaskManager as text: aligned columns, for terminals and for pipes.

Columns stand at least two blanks apart and no cell has two blanks in a row, so that a program can
split a line. In a terminal a table that is wider than the terminal becomes one paragraph for each
row, with the name of the column before each value; only a word that is wider than the terminal is
left to it.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING, Final

from ....protocol.identity import plain_name
from ....transport.settings import SIZE_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .status import ApplicationStatus, TaskManagerStatus

ANONYMOUS: Final = "ANONYMOUS: whoever reaches a port reads and removes data"

_SERVES: Final = {
    "authenticated": "authenticated: applications need a credential",
    "this host": "this host only: there is no cluster secret",
    "anonymous": ANONYMOUS,
}
_GAP: Final = "  "
_INDENT: Final = "    "


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
    head = [_clean(_head(status)), _SERVES[status.serves]]
    if width is not None:
        head = [line for text in head for line in _wrapped(text, width)]
    yield "", head
    for make in (
        _network_memory,
        _storage,
        _partitions,
        _copies,
        _pipelined_partitions,
        _gates,
        _channels,
        _pools,
        _connections,
        _applications,
        _traffic,
    ):
        table = make(status)
        if table.row_count:
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


def approximate_size(size_bytes: int) -> str:
    """Return a size to about three digits: ``"1.5 GiB"``."""
    for unit, factor in reversed(SIZE_UNITS.items()):
        if size_bytes >= factor > 1:
            number = size_bytes / factor
            return f"{number:.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"
    return f"{size_bytes} B"


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


def _copies(status: TaskManagerStatus) -> Table:
    copies = status.copies
    numbers = "waiting short watched made bytes failed moved staying"
    table = Table("Copies and moves", f"{numbers} reason", numbers)
    counters = status.counters
    if any((counters.copies_made, copies.waiting, copies.short, copies.watched, copies.moved)):
        table.add(
            copies.waiting,
            copies.short,
            copies.watched,
            counters.copies_made,
            approximate_size(counters.copy_bytes_out),
            counters.copies_failed,
            copies.moved,
            copies.staying,
            copies.reason or "-",
        )
    return table


def _network_memory(status: TaskManagerStatus) -> Table:
    pool = status.network_pool
    numbers = "segments size free lent in_flight wanted waiting refused pools"
    table = Table("Network memory", numbers, numbers)
    table.add(
        pool.total_segments,
        approximate_size(pool.segment_size_bytes),
        pool.available_segments,
        pool.lent_segments,
        pool.in_flight_segments,
        pool.wanted_segments,
        pool.waiting_requests,
        pool.refused_requests + pool.expired_requests,
        pool.local_pools,
    )
    return table


def _storage(status: TaskManagerStatus) -> Table:
    table = Table("Storage", "tier directory used capacity free state", "used capacity free")
    for tier in status.storage:
        capacity = "-" if tier.capacity_bytes is None else approximate_size(tier.capacity_bytes)
        used, free = approximate_size(tier.used_bytes), approximate_size(tier.free_bytes)
        state = "healthy" if tier.healthy else f"out of use: {tier.reason}"
        table.add(tier.tier, tier.directory, used, capacity, free, state)
    return table


def _partitions(status: TaskManagerStatus) -> Table:
    numbers = "committed open regions bytes"
    table = Table("Partitions", f"application shuffle {numbers}", f"shuffle {numbers}")
    for shuffle in status.partitions:
        table.add(
            shuffle.application_id,
            shuffle.shuffle_id,
            shuffle.committed_map_outputs,
            shuffle.open_map_outputs,
            shuffle.regions,
            approximate_size(shuffle.stored_bytes),
        )
    return table


def _pipelined_partitions(status: TaskManagerStatus) -> Table:
    numbers = "shuffle attempt parts queued longest used limit overdraft bytes_out"
    table = Table(
        "Pipelined partitions",
        "application shuffle attempt type state parts queued longest used limit overdraft "
        "back-pressured bytes_out",
        numbers,
    )
    for each in status.pipelined_partitions:
        waited = f"{each.back_pressured_seconds:.1f} s"
        table.add(
            each.application_id,
            each.shuffle_id,
            each.map_attempt_id,
            each.partition_type,
            each.state,
            each.subpartitions,
            each.queued_buffers,
            each.longest_queue,
            each.used_segments,
            each.limit_segments,
            each.overdraft_segments,
            f"{waited}, now" if each.back_pressured else waited,
            approximate_size(each.bytes_out),
        )
    return table


def _gates(status: TaskManagerStatus) -> Table:
    numbers = "gate shuffle channels exclusive floating queued longest idle busy back-pressured"
    table = Table(
        "Gates",
        "gate application shuffle channels exclusive floating queued longest "
        "idle busy back-pressured",
        numbers,
    )
    for gate in status.gates:
        queues = [channel.queued_buffers for channel in gate.channels]
        table.add(
            gate.gate_id,
            gate.application_id,
            gate.shuffle_id,
            len(gate.channels),
            f"{gate.exclusive_used}/{gate.exclusive_buffers}",
            f"{gate.floating_used}/{gate.floating_limit}",
            sum(queues),
            max(queues, default=0),
            f"{gate.idle_seconds:.1f} s",
            f"{gate.busy_seconds:.1f} s",
            f"{gate.back_pressured_seconds:.1f} s",
        )
    return table


def _channels(status: TaskManagerStatus) -> Table:
    numbers = "gate channel queued credit unannounced backlog bytes_in buffers_in"
    table = Table(
        "Channels of gates",
        "gate channel kind source queued credit unannounced backlog bytes_in buffers_in",
        numbers,
    )
    for gate in status.gates:
        for channel in gate.channels:
            table.add(
                gate.gate_id,
                channel.channel,
                channel.kind,
                channel.source,
                channel.queued_buffers,
                channel.available_credit,
                channel.unannounced_credit,
                channel.backlog_buffers,
                approximate_size(channel.bytes_in),
                channel.buffers_in,
            )
    return table


def _pools(status: TaskManagerStatus) -> Table:
    numbers = "size required most lent overdraft full_channels waiting"
    table = Table("Local pools", f"pool kind {numbers}", numbers)
    for pool in status.pools:
        most = "-" if pool.maximum_segments is None else pool.maximum_segments
        table.add(
            pool.name,
            pool.kind,
            pool.size_segments,
            pool.required_segments,
            most,
            pool.lent_segments,
            pool.overdraft_segments,
            pool.full_channels,
            pool.waiting_listeners,
        )
    return table


def _connections(status: TaskManagerStatus) -> Table:
    numbers = "channels bytes_in bytes_out unsent"
    table = Table("Connections", f"remote leg role flow_control {numbers} writable", numbers)
    for connection in status.connections:
        table.add(
            connection.remote,
            connection.leg,
            connection.role,
            connection.flow_control,
            connection.channels,
            approximate_size(connection.bytes_in),
            approximate_size(connection.bytes_out),
            approximate_size(connection.write_buffer_bytes),
            "yes" if connection.writable else "no",
        )
    return table


def _applications(status: TaskManagerStatus) -> Table:
    table = Table("Applications", "application connections bytes expires", "connections bytes")
    for application in status.applications:
        left = application.expires_in_seconds
        table.add(
            application.application_id,
            application.connections,
            approximate_size(application.stored_bytes),
            "-" if left is None else f"in {left:.0f} s",
        )
    return table


def _holdings(application: ApplicationStatus) -> Table:
    table = Table(_clean(application.application_id), "resource held quota", "held quota")
    for each in application.holdings:
        as_text = approximate_size if each.resource.endswith("_bytes") else str
        quota = "none" if each.quota is None else as_text(each.quota)
        table.add(each.resource.removesuffix("_bytes"), as_text(each.held), quota)
    return table


def _traffic(status: TaskManagerStatus) -> Table:
    counters = status.counters
    rows: Iterable[tuple[str, int, int]] = (
        ("from map tasks", counters.producer_bytes_in, counters.producer_buffers_in),
        ("to other TaskManagers", counters.peer_bytes_out, counters.peer_buffers_out),
        ("from other TaskManagers", counters.peer_bytes_in, counters.peer_buffers_in),
        (
            "to reduce tasks, local",
            counters.consumer_bytes_out_local,
            counters.consumer_buffers_out_local,
        ),
        (
            "to reduce tasks, remote",
            counters.consumer_bytes_out_remote,
            counters.consumer_buffers_out_remote,
        ),
    )
    table = Table("Traffic since start", "leg bytes buffers", "bytes buffers")
    for leg, size_bytes, buffers in rows:
        table.add(leg, approximate_size(size_bytes), buffers)
    return table
