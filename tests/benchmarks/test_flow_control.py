"""The benchmarks that compare credit with watermark mode."""

from __future__ import annotations

import pytest

from benchmarks import barrier, exchange, isolation
from benchmarks.bare_pair import SEGMENT_SIZE_BYTES
from sluice.shuffle.partition.partition_type import ceiling_segments
from sluice.shuffle.taskmanager.config.sections import NetworkMemoryConfig


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_less_is_in_flight_with_credit_and_barriers_wait_behind_less(tmp_path):
    """With credit the pool and the channel have buffers under way, without it the socket too.

    The bytes in flight are those that the reader still read between a barrier's emission and its
    arrival; the time of the barrier is the time of reading them.
    """
    (run,) = await barrier.measure(tmp_path, pairs=1, seconds=1.0)
    memory = NetworkMemoryConfig()
    most = barrier.POOL_SEGMENTS + ceiling_segments(
        1, memory.exclusive_buffers_per_channel, memory.floating_buffers_per_gate
    )
    # One more is in the hands of the slow reader, and another in those of the writer.
    assert run["credit_bytes_in_flight"] <= (most + 2) * SEGMENT_SIZE_BYTES
    assert run["watermark_bytes_in_flight"] > 2 * run["credit_bytes_in_flight"]
    report = barrier.report_of([run])
    ratio = run["credit_seconds"] / run["watermark_seconds"]
    assert report.figures["barrier_credit_over_uncredited"] == ratio > 0
    assert min(run["credit_barriers"], run["watermark_barriers"]) >= barrier.MIN_BARRIERS
    assert report.figures["mib_in_flight_credit"] == run["credit_bytes_in_flight"] / 2**20


def test_figures_of_isolation() -> None:
    runs = [
        {
            "credit_alone_bytes_per_second": 20.0,
            "credit_alone_ten_buffers_bytes_per_second": 10.0,
            "credit_beside_stuck_bytes_per_second": beside,
            "credit_socket_bytes": 0,
            "watermark_alone_bytes_per_second": 16.0,
            "watermark_alone_ten_buffers_bytes_per_second": 20.0,
            "watermark_beside_stuck_bytes_per_second": 0.0,
            "watermark_socket_bytes": 5e6,
        }
        for beside in (9.0, 10.0, 11.0)
    ]
    report = isolation.report_of(runs)
    assert report.figures == {
        "isolation_credit": 1.0,
        "isolation_uncredited": 0.0,
        "alone_credit_over_uncredited": 1.25,
        "alone_credit_over_uncredited_ten_buffers": 0.5,
        "socket_bytes_credit": 0,
        "socket_bytes_uncredited": 5e6,
    }
    assert report.spread["isolation_credit"] == (0.9, 1.1)


def test_figures_of_the_exchange() -> None:
    runs = [
        {
            "sluice_bytes_per_second": 1e9,
            "bare_bytes_per_second": 2e9,
            "cached_bytes_per_second": 4e9,
            "uncredited_bytes_per_second": 0.5e9,
            "equal_bytes_per_second": 0.6e9,
            "equal_uncredited_bytes_per_second": 0.8e9,
            "many_channels_bytes_per_second": many,
        }
        for many in (0.7e9, 0.8e9, 0.9e9)
    ]
    assert exchange.report_of(runs).figures == {
        "ratio_to_raw": 0.5,
        "ratio_to_cached_raw": 0.25,
        "credit_over_uncredited": 2.0,
        "credit_over_uncredited_equal_memory": 0.75,
        "rate_1000_over_10_channels": 0.8,
        "sluice_gb_per_second": 1.0,
        "bare_gb_per_second": 2.0,
    }
