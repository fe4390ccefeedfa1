"""A reader that never has to wait lets the other tasks of its event loop run."""

from __future__ import annotations

import asyncio

from sluice.protocol.events import CustomEvent
from sluice.shuffle.gate.readable_gate import BUFFERS_A_TURN
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import next_of
from tests.support.tasks import embedded_tasks, ended

EVENTS = 4 * BUFFERS_A_TURN


async def test_a_reader_of_a_full_gate_yields_now_and_then(tmp_path):
    async with (
        embedded_tasks(tmp_path, remote=False) as tasks,
        tasks.producer.open_result_partition(1, 7, 1) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        for number in range(EVENTS):
            writer.emit_event(CustomEvent(str(number), b""), 0)
        await gate.gate.wait_available()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for _ in range(EVENTS):
            await next_of(gate)
        seen = turns
        counting.cancel()
        assert 1 <= seen <= EVENTS // 2
        assert await ended(partition, gate) == []
