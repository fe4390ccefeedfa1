"""What ``sluice top`` shows, computed from two statuses of each TaskManager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .reports import TopReport, TopRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..shuffle.taskmanager.serve.serving_status import GateStatus
    from ..shuffle.taskmanager.status.status import TaskManagerStatus
    from .endpoints import EndpointAnswer

SortBy: TypeAlias = Literal["wait", "rate", "memory"]

ORDERS: Final[dict[str, Callable[[TopRow], float]]] = {
    "wait": lambda row: row.wait,
    "rate": lambda row: row.bytes_per_second,
    "memory": lambda row: row.memory_bytes,
}


def report(
    before: Mapping[str, TaskManagerStatus], answers: Sequence[EndpointAnswer], sort_by: SortBy
) -> TopReport:
    """Compare statuses with earlier ones.

    Args:
        before: The earlier statuses, by URL. Without one, all rates and waits are 0.
        answers: The statuses of now.
        sort_by: The largest come first.
    """
    found = {each.url: each.status for each in answers if each.status is not None}
    rows: list[TopRow] = []
    received = sent = 0.0
    for url, now in found.items():
        earlier = before.get(url)
        seconds = _seconds(earlier, now)
        # With a start in between, totals begin at 0 again.
        old = earlier if earlier is not None and seconds else now
        rows += _rows(url, old, now, seconds)
        received += _rate(_bytes_in(now) - _bytes_in(old), seconds)
        sent += _rate(_bytes_out(now) - _bytes_out(old), seconds)
    pools = [now.network_pool for now in found.values()]
    rows.sort(key=lambda row: (-ORDERS[sort_by](row), row.application_id, row.shuffle_id))
    return TopReport(
        len(answers),
        {each.url: each.problem for each in answers if each.status is None},
        received,
        sent,
        sum(
            (pool.total_segments - pool.available_segments) * pool.segment_size_bytes
            for pool in pools
        ),
        sum(pool.total_segments * pool.segment_size_bytes for pool in pools),
        max((now.event_loop.max_lag_seconds for now in found.values()), default=0.0),
        tuple(rows),
    )


def _seconds(before: TaskManagerStatus | None, now: TaskManagerStatus) -> float:
    """Return the time between two statuses by the TaskManager's own clock; 0 if unknown."""
    if before is None or before.taskmanager_id != now.taskmanager_id:
        return 0.0
    return max(0.0, now.uptime_seconds - before.uptime_seconds)


def _rate(change: float, seconds: float) -> float:
    return max(0.0, change) / seconds if seconds else 0.0


def _part(change: float, seconds: float) -> float:
    return min(1.0, _rate(change, seconds))


def _bytes_in(status: TaskManagerStatus) -> int:
    return sum(each.bytes_in for each in status.traffic)


def _bytes_out(status: TaskManagerStatus) -> int:
    return sum(each.bytes_out for each in status.traffic)


def _rows(
    url: str, before: TaskManagerStatus, now: TaskManagerStatus, seconds: float
) -> Iterator[TopRow]:
    segment = now.network_pool.segment_size_bytes
    gates = {_gate_key(each): each for each in before.gates}
    for gate in now.gates:
        old = gates.get(_gate_key(gate), gate)
        data = _part(gate.idle_seconds - old.idle_seconds, seconds)
        reader = _part(gate.back_pressured_seconds - old.back_pressured_seconds, seconds)
        yield TopRow(
            url,
            "gate",
            gate.application_id,
            gate.shuffle_id,
            gate.gate_id,
            max(data, reader),
            "reader" if reader > data else "data" if data else "",
            _rate(_received(gate) - _received(old), seconds),
            (gate.exclusive_used + gate.floating_used) * segment,
        )
    partitions = {
        (each.application_id, each.shuffle_id, each.map_attempt_id): each
        for each in before.pipelined_partitions
    }
    for partition in now.pipelined_partitions:
        key = partition.application_id, partition.shuffle_id, partition.map_attempt_id
        earlier = partitions.get(key, partition)
        wait = _part(partition.back_pressured_seconds - earlier.back_pressured_seconds, seconds)
        rate = _rate(partition.bytes_out - earlier.bytes_out, seconds)
        memory = partition.used_segments * segment
        waits_for: Literal["reader", ""] = "reader" if wait else ""
        yield TopRow(url, "pipelined", *key, wait, waits_for, rate, memory)
    shuffles = {each.key: each for each in before.partitions}
    for shuffle in now.partitions:
        stored = shuffle.stored_bytes - shuffles.get(shuffle.key, shuffle).stored_bytes
        rate = _rate(stored, seconds)
        yield TopRow(url, "stored", *shuffle.key, 0, 0.0, "", rate, shuffle.stored_bytes)


def _gate_key(gate: GateStatus) -> tuple[str, str, int]:
    """Return what names a gate in two statuses; its number is one of its connection."""
    return gate.connection, gate.application_id, gate.gate_id


def _received(gate: GateStatus) -> int:
    return sum(channel.bytes_in for channel in gate.channels)
