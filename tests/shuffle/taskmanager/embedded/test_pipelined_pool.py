"""The pool of a pipelined partition whose task runs in the TaskManager's own process."""

from __future__ import annotations

import pytest

from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster


@pytest.mark.parametrize(("overdraft", "per_channel"), [(0, 1), (2, 3)])
async def test_overdraft_and_buffers_per_channel_are_those_of_the_configuration(
    tmp_path, overdraft, per_channel
):
    """A writer that asks before each record stops at the one; one that does not, at the other."""
    async with mini_cluster(
        tmp_path, 1, max_overdraft_buffers=overdraft, max_buffers_per_channel=per_channel
    ) as cluster:
        client = cluster[0].client("app", None, -1)
        async with client.open_result_partition(1, 0, 2, max_segments=4) as partition:
            pool = partition.writer.memory.pool
            segments = []
            while pool.is_available and (segment := pool.request_segment_nowait(0)) is not None:
                segments.append(segment)
            assert len(segments) == per_channel
            while (segment := pool.request_segment_nowait(1)) is not None:
                segments.append(segment)
            assert len(segments) == 4 + overdraft
            assert pool.overdrafts == overdraft
            assert all(len(segment.room) >= SEGMENT_SIZE_BYTES for segment in segments)
            pool.recycle_together(segments)
        await client.close()
