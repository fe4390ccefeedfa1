"""The status of a TaskManager as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sluice.transport.settings import SIZE_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from sluice.shuffle.taskmanager.watch.status import TaskManagerStatus


def render(status: TaskManagerStatus) -> Group:
    """Return head, network memory, storage and whatever else there is anything of."""
    parts: list[RenderableType] = [_head(status), _network_memory(status), _storage(status)]
    for table in (
        _partitions,
        _pipelined_partitions,
        _gates,
        _channels,
        _pools,
        _connections,
        _applications,
    ):
        rendered = table(status)
        if rendered.row_count:
            parts.append(rendered)
    parts.append(_traffic(status))
    return Group(*parts)


def approximate_size(size_bytes: int) -> str:
    """Return a size to about three digits: ``"1.5 GiB"``."""
    for unit, factor in reversed(SIZE_UNITS.items()):
        if size_bytes >= factor > 1:
            number = size_bytes / factor
            return f"{number:.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"
    return f"{size_bytes} B"


def _table(title: str, columns: str, numeric: str = "") -> Table:
    """Return an empty table; columns and those of them with numbers are given as words."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns.split():
        right = column in numeric.split()
        table.add_column(
            column.replace("_", " "), justify="right" if right else "left", no_wrap=right
        )
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(str(cell)) for cell in cells))  # Text: names are data, not markup


def _head(status: TaskManagerStatus) -> Text:
    colour = {"ready": "green", "stopped": "red"}.get(status.state, "yellow")
    socket = f", socket {status.socket_path}" if status.socket_path else ""
    return Text.assemble(
        ("TaskManager ", "bold"),
        status.taskmanager_id,
        " is ",
        (status.state, colour),
        f" on {status.address}{socket}; version {status.version}, "
        f"data path {status.data_path}, "
        f"up {status.uptime_seconds:.0f} s, "
        f"event loop at most {status.event_loop.max_lag_seconds * 1000:.0f} ms late\n",
    )


def _network_memory(status: TaskManagerStatus) -> Table:
    pool = status.network_pool
    numbers = "segments segment_size free lent in_flight wanted waiting refused local_pools"
    table = _table("Network memory", numbers, numbers)
    _add(
        table,
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
    table = _table("Storage", "tier directory used capacity free state", "used capacity free")
    for tier in status.storage:
        capacity = "-" if tier.capacity_bytes is None else approximate_size(tier.capacity_bytes)
        used, free = approximate_size(tier.used_bytes), approximate_size(tier.free_bytes)
        state = "healthy" if tier.healthy else "out of use"
        _add(table, tier.tier, tier.directory, used, capacity, free, state)
    return table


def _partitions(status: TaskManagerStatus) -> Table:
    numbers = "committed open regions bytes"
    table = _table("Partitions", f"application shuffle {numbers}", f"shuffle {numbers}")
    for shuffle in status.partitions:
        _add(
            table,
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
    table = _table(
        "Pipelined partitions",
        "application shuffle attempt type state parts queued longest used limit overdraft "
        "back-pressured bytes_out",
        numbers,
    )
    for each in status.pipelined_partitions:
        waited = f"{each.back_pressured_seconds:.1f} s"
        _add(
            table,
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
    table = _table(
        "Gates",
        "gate application shuffle channels exclusive floating queued longest "
        "idle busy back-pressured",
        numbers,
    )
    for gate in status.gates:
        queues = [channel.queued_buffers for channel in gate.channels]
        _add(
            table,
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
    table = _table(
        "Channels of gates",
        "gate channel kind source queued credit unannounced backlog bytes_in buffers_in",
        numbers,
    )
    for gate in status.gates:
        for channel in gate.channels:
            _add(
                table,
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
    table = _table("Local pools", f"pool kind {numbers}", numbers)
    for pool in status.pools:
        most = "-" if pool.maximum_segments is None else pool.maximum_segments
        _add(
            table,
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
    table = _table("Connections", f"remote leg role flow_control {numbers} writable", numbers)
    for connection in status.connections:
        _add(
            table,
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
    table = _table("Applications", "application connections bytes expires", "connections bytes")
    for application in status.applications:
        left = application.expires_in_seconds
        _add(
            table,
            application.application_id,
            application.connections,
            approximate_size(application.stored_bytes),
            "-" if left is None else f"in {left:.0f} s",
        )
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
    table = _table("Traffic since start", "leg bytes buffers", "bytes buffers")
    for leg, size_bytes, buffers in rows:
        _add(table, leg, approximate_size(size_bytes), buffers)
    return table
