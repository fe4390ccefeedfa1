"""The open buffers of a record writer: one kind at a time, finished before the other kind opens."""

from __future__ import annotations

import pytest

from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.open_buffers import OpenBuffers
from sluice.shuffle.records.spanning_serializer import SpanningRecordSerializer
from tests.support.fake_partition import FakePartition

SEGMENT_BYTES = 16


class Rig:
    def __init__(self, buffers: int | None = None) -> None:
        self.partition = FakePartition(2, SEGMENT_BYTES, buffers)
        self.open = OpenBuffers(self.partition)
        self.spanning = SpanningRecordSerializer(1000)

    def copy(self, length: int, subpartition: int) -> bool:
        self.open.switch(subpartition)
        self.spanning.set_record(bytes(length))
        return self.open.copy(self.spanning, subpartition)

    def opened(self) -> list[int]:
        """Return the subpartitions with an open buffer."""
        found = []
        for subpartition in (ALL_SUBPARTITIONS, 0, 1):
            builder = self.open.builders[subpartition]
            if builder is not None and not builder.is_finished:
                found.append(subpartition)
        return found


@pytest.mark.parametrize(("first", "second"), [(0, ALL_SUBPARTITIONS), (ALL_SUBPARTITIONS, 1)])
def test_buffers_of_one_kind_are_finished_before_one_of_the_other_kind_opens(first, second):
    rig = Rig()
    rig.copy(1, first)
    assert rig.opened() == [first]
    rig.copy(1, second)
    assert rig.opened() == [second]
