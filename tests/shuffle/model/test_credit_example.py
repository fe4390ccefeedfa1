"""The example of docs/internals/network-stack.md, "Flow control: credit and backlog"."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.records.record_reader import ChannelRecord
from tests.shuffle.model.rig import PATIENCE_SECONDS, full_record, pipe
from tests.support.mini_cluster import eventually

BUFFERS = 10


@pytest.mark.interpreted
async def test_ten_buffers_two_exclusive_and_eight_floating(tmp_path):
    async with (
        pipe(tmp_path, BUFFERS, floating_buffers_per_gate=8) as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        channel = between.gate.channels[0]
        assert isinstance(channel, RemoteInputChannel)
        buffers = channel.buffers
        assert buffers is not None
        assert (between.credit, buffers.available, buffers.required) == (2, 2, 2)
        seen: list[tuple[int, int, int]] = []
        on_backlog = buffers.on_backlog

        def look(backlog: int) -> None:
            on_backlog(backlog)
            seen.append((backlog, buffers.available, buffers.required))

        buffers.on_backlog = look  # type: ignore[method-assign]
        for number in range(BUFFERS):
            assert between.writer.emit(full_record(number)) is None
        await between.until(held_1=0, held_2=BUFFERS)
        assert seen[:2] == [(9, 9, 11), (8, 8, 10)]
        # The segments are held before their buffers arrive.
        await eventually(lambda: seen[-1] == (0, 0, 2), "all ten buffers in the queue")
        assert between.credit == 0
        assert buffers.is_waiting

        async def done_with(number: int, credit: int) -> tuple[int, int]:
            assert await between.reader.next() == ChannelRecord(0, full_record(number))
            await eventually(lambda: between.credit == credit, f"credit {credit}")
            return buffers.exclusive_available, buffers.floating_available

        assert await done_with(0, credit=1) == (1, 0)
        assert await done_with(1, credit=2) == (1, 1), "it still waited for one"
        for number in range(2, 9):
            assert await done_with(number, credit=2) == (1, 1), "the pool has them"
        assert await done_with(9, credit=2) == (2, 0), "in the place of the floating one"
        assert buffers.floating_pool is not None
        assert buffers.floating_pool.lent_segments == 0
        await between.writer.finish()
