"""The simulation keeps its invariants and agrees with real TaskManagers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale import (
    BEGIN,
    DOCUMENT,
    END,
    SMALL,
    SMALL_SETTING,
    agreement,
    document_with,
    rows_of,
    run_small,
    sweep,
)
from benchmarks.simulation import Setting, Workload, simulate


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    hosts = draw(st.integers(1, 6))
    return Workload(
        hosts,
        hosts * draw(st.integers(1, 4)),
        hosts * draw(st.integers(1, 4)),
        draw(st.integers(0, 2_000_000)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
    )


@st.composite
def buffer_settings(draw: st.DrawFn) -> Setting:
    return Setting(
        exclusive_buffers=draw(st.integers(1, 4)),
        floating_buffers=draw(st.integers(0, 12)),
        most_open_channels=draw(st.none() | st.integers(1, 4)),
        task_bytes_per_second=draw(st.sampled_from([1e6, 5e8])),
    )


@settings(max_examples=60, deadline=None)
@given(workloads(), buffer_settings())
def test_every_byte_arrives_and_memory_is_bounded(work: Workload, setting: Setting) -> None:
    """ReceiverCredit and the model itself raise when data comes without credit or buffer."""
    seen = simulate(work, setting)
    tasks, peers = work.reducers // work.hosts, work.hosts - 1
    maps = work.maps // work.hosts
    assert seen.messages["PartitionRequest"] == tasks * peers
    assert seen.data_bytes == (tasks * peers * maps * work.block_bytes * work.partitions_per_task)
    slots = min(work.slots_per_host, tasks)
    most = min(peers, setting.most_open_channels or peers)
    assert seen.most_open_channels == slots * most
    assert seen.most_segments <= slots * (
        most * setting.exclusive_buffers + setting.floating_buffers * bool(most)
    )


def test_more_hosts_cost_more_requests_and_no_more_memory() -> None:
    (_, fewer, fewer_all), (_, more, more_all) = sweep([100, 200])
    assert more.messages["PartitionRequest"] > 2 * fewer.messages["PartitionRequest"]
    assert more.most_segments == fewer.most_segments
    assert more_all.most_segments > 1.8 * fewer_all.most_segments


def test_tasks_that_do_not_divide_among_the_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="maps = 10 is not a multiple of the 3 hosts"):
        Workload(3, 10, 3, 1)


async def test_real_taskmanagers_send_the_messages_that_are_simulated(tmp_path) -> None:
    """How many messages share the work depends on the machine's load; their bounds do not.

    ``make bench-scale`` prints how far the simulation agrees.
    """
    ratios = agreement(
        SMALL, simulate(SMALL, SMALL_SETTING), counted := await run_small(SMALL, tmp_path)
    )
    assert ratios.keys() == {
        "AddCredit_counted_over_simulated",
        "BufferResponse_counted_over_simulated",
        "PartitionRequest_counted_over_simulated",
        "data_bytes_counted_over_simulated",
    }
    assert ratios["PartitionRequest_counted_over_simulated"] == 1
    assert ratios["data_bytes_counted_over_simulated"] == 1

    channels = counted.messages["PartitionRequest"]
    blocks = channels * SMALL.maps // SMALL.hosts
    fewest = -(-blocks * SMALL.block_bytes // SMALL_SETTING.group_bytes)
    most = blocks * -(-SMALL.block_bytes // SMALL_SETTING.segment_size_bytes)
    assert fewest <= counted.messages["BufferResponse"] - channels <= most
    left_over = SMALL_SETTING.exclusive_buffers + SMALL_SETTING.floating_buffers
    assert channels <= counted.messages["AddCredit"] <= most + channels * left_over


def test_the_table_of_the_document_is_of_this_simulation() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.split(BEGIN)[1].split(END)[0]
    for row in rows_of(sweep([10, 100, 300])):
        assert "| " + " | ".join(row) + " |" in table
    assert document_with(table.strip("\n") + "\n", text) == text
