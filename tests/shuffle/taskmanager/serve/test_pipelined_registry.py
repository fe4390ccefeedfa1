"""The registry of pipelined partitions; requests for them are in test_request_view.py."""

from __future__ import annotations

import pytest

from sluice.shuffle.errors import PartitionReleased, ProducerFailed
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.serve.pipelined_registry import (
    MAX_FAILURES_KEPT,
    PipelinedRegistry,
    Registration,
)
from sluice.shuffle.taskmanager.store.errors import DuplicateMapOutput

KEY = ShuffleKey("app", 1)


class Partition:
    num_subpartitions = 1
    is_consumable = True
    is_consumed = False
    may_spill = False

    def needs_segments(self, subpartition):
        raise NotImplementedError

    def create_view(self, subpartition, listener):
        raise NotImplementedError


def registered(registry: PipelinedRegistry, attempt: int) -> tuple[Partition, list[object]]:
    partition = Partition()
    released: list[object] = []
    registry.register(KEY, attempt, Registration(partition, released.append))
    return partition, released


def test_a_partition_is_found_until_it_is_unregistered():
    registry = PipelinedRegistry()
    partition, _ = registered(registry, 3)
    assert registry.find(KEY, [2, 3]) == (partition, 3)
    assert [*registry] == [(KEY, 3, partition)]
    assert registry.keys("app") == [KEY]
    with pytest.raises(DuplicateMapOutput):
        registered(registry, 3)
    assert not registry.unregister(KEY, 3, Partition(), None)
    assert registry.unregister(KEY, 3, partition, None)
    assert len(registry) == 0
    assert registry.find(KEY, [3]) is None


def test_failures_are_remembered_up_to_a_bound_and_until_the_release():
    registry = PipelinedRegistry()
    for attempt in range(MAX_FAILURES_KEPT + 1):
        partition, _ = registered(registry, attempt)
        registry.unregister(KEY, attempt, partition, ProducerFailed("gone"))
    assert registry.find(KEY, [0]) is None
    with pytest.raises(ProducerFailed):
        registry.find(KEY, [1])
    registry.release(KEY, PartitionReleased("released"))
    assert registry.find(KEY, [1]) is None


def test_a_release_tells_each_partition():
    registry = PipelinedRegistry()
    _, released = registered(registry, 3)
    error = PartitionReleased("released")
    registry.release(KEY, error)
    assert released == [error]
