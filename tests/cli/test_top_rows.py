"""Waits, rates and memory between two statuses, by the TaskManager's own clock."""

from __future__ import annotations

import pytest
from msgspec import structs

from sluice.cli.endpoints import EndpointAnswer
from sluice.cli.top_rows import report
from sluice.shuffle.partition_status import PipelinedPartitionStatus
from sluice.shuffle.taskmanager.serve.serving_status import ChannelStatus, GateStatus
from sluice.shuffle.taskmanager.status.pool_status import NetworkPoolStatus
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus, TrafficStatus
from sluice.shuffle.taskmanager.store.store_status import ShuffleStatus

URL = "http://tm:7338"
SEGMENT = 1000
BEFORE = TaskManagerStatus(
    taskmanager_id="tm",
    uptime_seconds=100.0,
    network_pool=NetworkPoolStatus(
        total_segments=10, segment_size_bytes=SEGMENT, available_segments=4
    ),
    traffic=(TrafficStatus("consumer", bytes_in=10, bytes_out=1000),),
    gates=(
        GateStatus(
            1, "app", 3, (ChannelStatus(0, bytes_in=100), ChannelStatus(1, bytes_in=50)),
            exclusive_used=2, floating_used=3, idle_seconds=1.0, back_pressured_seconds=5.0,
        ),
        GateStatus(2, "app", 3, (ChannelStatus(0),), idle_seconds=1.0),
    ),
    pipelined_partitions=(
        PipelinedPartitionStatus(
            application_id="app", shuffle_id=4, map_attempt_id=7, used_segments=2, bytes_out=500
        ),
    ),
    partitions=(ShuffleStatus("other", 0, 1, 0, 4000, 1),),
)  # fmt: skip


def later(seconds, **changes):
    return structs.replace(BEFORE, uptime_seconds=100.0 + seconds, **changes)


def shown(now, before=BEFORE, sort_by="wait"):
    return report({URL: before}, [EndpointAnswer(URL, now)], sort_by)


def by_kind(found):
    return {(row.kind, row.number): row for row in found.rows}


def test_a_gate_whose_reader_is_slow_waits_for_the_reader():
    slow = structs.replace(
        BEFORE.gates[0],
        channels=(ChannelStatus(0, bytes_in=300), ChannelStatus(1, bytes_in=50)),
        back_pressured_seconds=6.0,
        idle_seconds=1.2,
    )
    row = by_kind(shown(later(2, gates=(slow,))))["gate", 1]
    assert (row.wait, row.waits_for) == (0.5, "reader")
    assert (row.bytes_per_second, row.memory_bytes) == (100.0, 5 * SEGMENT)


def test_a_gate_without_data_waits_for_data():
    idle = structs.replace(BEFORE.gates[1], idle_seconds=3.0)
    row = by_kind(shown(later(2, gates=(idle,))))["gate", 2]
    assert (row.wait, row.waits_for) == (1.0, "data")


def test_a_partition_and_a_stored_shuffle_have_rates_and_memory():
    partition = structs.replace(
        BEFORE.pipelined_partitions[0], bytes_out=900, back_pressured_seconds=1.0
    )
    stored = structs.replace(BEFORE.partitions[0], stored_bytes=6000)
    found = by_kind(shown(later(4, pipelined_partitions=(partition,), partitions=(stored,))))
    row = found["pipelined", 7]
    assert (row.wait, row.waits_for) == (0.25, "reader")
    assert (row.bytes_per_second, row.memory_bytes) == (100.0, 2 * SEGMENT)
    row = found["stored", 0]
    assert (row.application_id, row.wait, row.waits_for) == ("other", 0.0, "")
    assert (row.bytes_per_second, row.memory_bytes) == (500.0, 6000)


def test_the_totals_are_over_all_taskmanagers():
    traffic = (TrafficStatus("consumer", bytes_in=30, bytes_out=3000),)
    found = report(
        {"a": BEFORE, "b": BEFORE},
        [
            EndpointAnswer("a", later(2, traffic=traffic)),
            EndpointAnswer("b", later(4, traffic=traffic)),
            EndpointAnswer("c", problem="gone"),
        ],
        "rate",
    )
    assert (found.asked, found.unreachable) == (3, {"c": "gone"})
    assert found.bytes_in_per_second == 20 / 2 + 20 / 4
    assert found.bytes_out_per_second == 2000 / 2 + 2000 / 4
    assert (found.memory_used_bytes, found.memory_total_bytes) == (12 * SEGMENT, 20 * SEGMENT)


@pytest.mark.parametrize(
    "now",
    [
        later(0),
        later(-50),
        structs.replace(later(2), taskmanager_id="another"),
    ],
    ids=["the same snapshot", "a restart", "another TaskManager"],
)
def test_without_a_time_in_between_there_are_no_rates(now):
    found = shown(now)
    assert {row.bytes_per_second for row in found.rows} == {0.0}
    assert found.bytes_in_per_second == 0.0
    assert len(found.rows) == 4


def test_a_gate_that_was_opened_meanwhile_has_no_rate_yet():
    new = structs.replace(BEFORE.gates[0], gate_id=9)
    row = by_kind(shown(later(2, gates=(new,))))["gate", 9]
    assert (row.wait, row.bytes_per_second) == (0.0, 0.0)


def test_gates_of_one_number_on_two_connections_are_two():
    first = structs.replace(BEFORE.gates[0], connection="40.1", remote="unix:/s connection 40.1")
    second = structs.replace(
        first, connection="40.2", channels=(ChannelStatus(0, bytes_in=9000),), idle_seconds=70.0
    )
    before = structs.replace(BEFORE, gates=(first, second))
    for left in ((first, second), (second, first), (first,), (second,)):
        rows = [row for row in shown(later(2, gates=left), before).rows if row.kind == "gate"]
        assert [(row.wait, row.bytes_per_second) for row in rows] == [(0.0, 0.0)] * len(left)


@pytest.mark.parametrize(
    ("sort_by", "first"), [("wait", 2), ("rate", 1), ("memory", 0)], ids=lambda each: str(each)
)
def test_the_largest_come_first(sort_by, first):
    fast = structs.replace(BEFORE.gates[0], channels=(ChannelStatus(0, bytes_in=9000),))
    idle = structs.replace(BEFORE.gates[1], idle_seconds=3.0)
    stored = structs.replace(BEFORE.partitions[0], stored_bytes=6000)
    now = later(2, gates=(fast, idle), partitions=(stored,), pipelined_partitions=())
    assert shown(now, sort_by=sort_by).rows[0].number == first
