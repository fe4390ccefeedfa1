"""Buffers that leave the queue for a write, and come back if it fails."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.taskmanager.hybrid.hybrid_full_subpartition import HybridFullSubpartition
from sluice.shuffle.taskmanager.hybrid.hybrid_selective_subpartition import (
    HybridSelectiveSubpartition,
)
from sluice.shuffle.taskmanager.hybrid.shared_buffers import SharedBuffers
from sluice.shuffle.taskmanager.hybrid.spilled_runs import SpilledRuns
from sluice.shuffle.taskmanager.hybrid.spilling_subpartition import Spilling
from tests.shuffle.taskmanager.hybrid.rig import FakeTiers, read

pytestmark = pytest.mark.interpreted  # the tiers are the test's

SIZE = 8


class Nobody:
    """The partition, which nobody asks."""

    def subpartition_consumed(self, index: int) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["selective", "full"])
def subpartition(request):
    tiers = cast("Any", FakeTiers())
    runs = SpilledRuns(tiers, ShuffleKey("app", 1), tiers.accounts.of("app"))
    network = NetworkBufferPool(8, SIZE)
    pool = network.create_local_pool("partition", 1, 8)
    made: Any = HybridSelectiveSubpartition(0, Nobody(), runs, lambda: None)
    if request.param:
        shared = SharedBuffers(pool)
        made = HybridFullSubpartition(0, Nobody(), runs, lambda: None, shared, lambda error: None)
    for content, kind in ((b"a", DATA), (b"b", DATA), (b"e", EVENT), (b"c", DATA)):
        buffer = pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[:1] = content
        buffer.length = 1
        made.add(finished_consumer(buffer, kind))
    yield made
    made.release()
    assert pool.lent_segments == 0


def place_up_to(count: int, placed: list[Spilling]) -> Any:
    """Place that many buffers one behind the other."""

    def place(consumer):
        if len(placed) == count:
            return None
        placed.append(Spilling(consumer, len(placed), 1))
        return placed[-1]

    return place


def test_the_oldest_go_first_and_neighbors_are_one_slice(subpartition):
    placed: list[Spilling] = []
    assert subpartition.begin_spilling(place_up_to(3, placed)) == 2
    assert [each.consumer.data_type for each in placed] == [DATA, DATA, EVENT]
    assert subpartition.queued_buffers == 4


def test_buffers_of_a_failed_write_are_read_in_order(subpartition):
    subpartition.begin_spilling(place_up_to(3, []))
    subpartition.not_spilled()
    placed: list[Spilling] = []
    subpartition.begin_spilling(place_up_to(1, placed))
    view = subpartition.create_view(lambda: None)
    assert [read(view) for _ in range(4)] == [b"a", b"b", b"e", b"c"]
    assert view.backlog == 0
    view.release()
