"""The places of kept runs: by buffer, and how much is behind one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.hybrid.kept_runs import KeptRuns
from sluice.shuffle.taskmanager.hybrid.spilled_runs import SpilledRuns
from tests.shuffle.taskmanager.hybrid.rig import FakeExtent, FakeTiers

pytestmark = pytest.mark.interpreted  # the tiers are the test's

SIZE = 10


class Rig:
    def __init__(self) -> None:
        self.tiers = cast("Any", FakeTiers())
        self.kept = KeptRuns(
            SpilledRuns(self.tiers, ShuffleKey("app", 1), self.tiers.accounts.of("app"))
        )
        self.extent: Any = FakeExtent(self.tiers, 1000)

    def add(self, number: int, data_type: int = DATA, stops: tuple[int, ...] = ()) -> None:
        content = memoryview(bytes(SIZE))
        begins_run = number in stops
        self.kept.add(self.extent, number * SIZE, content, data_type, begins_run=begins_run)


def test_a_run_begins_where_a_reader_is_and_at_each_event():
    rig = Rig()
    for number in range(4):
        rig.add(number, stops=(2,))
    rig.add(4, EVENT)
    rig.add(5)
    assert rig.kept.buffers == 6
    found = [rig.kept.at(number) for number in (0, 2, 4, 5)]
    assert [run.buffers for run in found] == [2, 2, 1, 1]
    assert [run.data_type for run in found] == [DATA, DATA, EVENT, DATA]
    rig.kept.free()
    rig.extent.release()
    assert not rig.tiers.extents


def test_the_backlog_is_at_most_one_message_too_high_for_each_run():
    rig = Rig()
    for number in range(6):
        rig.add(number, stops=(3,))
    assert rig.kept.messages_from(0, 10) == 6 + 2
    assert rig.kept.messages_from(3, 10) == 3 + 1
    assert rig.kept.messages_from(3, 20) == 2 + 1
    rig.kept.free()
    rig.extent.release()


def test_it_knows_whether_a_part_is_outside_of_memory():
    rig = Rig()
    rig.add(0)
    assert not rig.kept.is_outside_memory
    rig.extent.in_memory = False
    rig.add(1)
    assert rig.kept.is_outside_memory
    rig.kept.free()
    rig.extent.release()
