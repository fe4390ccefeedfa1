"""The benchmark of barriers compares credit with watermark mode."""

from __future__ import annotations

import pytest

from benchmarks import barrier
from benchmarks.bare_pair import SEGMENT_SIZE_BYTES
from sluice.shuffle.partition.partition_type import ceiling_segments
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig


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
