"""Segments: those who ask at once, or for much, keep nobody out."""

from __future__ import annotations

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import ErrorResponse, PartitionOpened
from sluice.shuffle.memory.refused_owners import MAX_AGE
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.segment_pressure import answer, ask, look
from tests.support.wire_clients import open_gate

SEGMENTS = 16
THIRD = 4
"""Subpartitions of a partition of which three use up the segments."""
CHANNELS = 4
OUTPUTS = [bytes([number]) * 3 * SEGMENT_SIZE_BYTES for number in range(CHANNELS)]


async def test_those_that_reopen_at_once_keep_nobody_out(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        greedy = [await cluster.producer(0, f"greedy-{number}") for number in range(3)]
        innocent = await cluster.producer(0, "innocent")
        for each in greedy:
            assert isinstance(await ask(each, THIRD), PartitionOpened)
        assert isinstance(await ask(innocent, THIRD), ErrorResponse)
        await look(cluster)
        assert cluster[0].counters.progress_deadlines == {"partition": 1}
        loser = greedy[0]
        told = await answer(loser, ErrorResponse)
        assert isinstance(told, ErrorResponse)
        assert told.code == ErrorCode.DEADLINE_EXCEEDED
        for _ in range(10):
            refused = await ask(loser, THIRD)
            assert isinstance(refused, ErrorResponse)
            assert refused.code == ErrorCode.INSUFFICIENT_BUFFERS
        assert isinstance(await ask(innocent, THIRD), PartitionOpened)
        # Now it is the turn of the one that was reclaimed from.
        await look(cluster, 2)
        assert isinstance(await ask(loser, THIRD), PartitionOpened)


async def test_one_that_never_comes_back_keeps_segments_from_others_for_a_time_only(tmp_path):
    async with mini_cluster(tmp_path, 1, network_segments=SEGMENTS) as cluster:
        holder, asker, gone = [await cluster.producer(0, name) for name in ("a", "b", "gone")]
        assert isinstance(await ask(holder, 2 * THIRD), PartitionOpened)
        assert isinstance(await ask(gone, 2 * THIRD), ErrorResponse)
        await gone.close()
        assert isinstance(await ask(asker, THIRD), PartitionOpened)  # it would have less
        queue = cluster[0].network_pool.refused
        for _ in range(MAX_AGE):  # the watch began with a look
            assert list(queue)
            queue.age()
        assert not list(queue)


async def test_of_two_large_gates_one_gets_all_its_segments_and_the_other_none(tmp_path):
    async with mini_cluster(tmp_path, network_segments=SEGMENTS) as cluster:
        sources = [(await cluster.write(0, n, [[data]]), [n]) for n, data in enumerate(OUTPUTS)]
        pool = cluster[1].network_pool
        gates = [open_gate(await cluster.consumer(1), 1, sources, 0, 1, credit=1) for _ in range(2)]
        await eventually(lambda: pool.waiting_requests, "a gate that waits")
        assert pool.exclusive_segments == 2 * CHANNELS
        for gate in gates:
            await gate.read_all()
            await gate.close()
            assert [bytes(content) for content in gate.content] == OUTPUTS
        await eventually(lambda: pool.exclusive_segments == 0)
