"""Opening spilled runs: data in messages, an event in one piece, each from its extents."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.shuffle.taskmanager.hybrid.spilled_runs import ReadBack, SpilledRuns, typed
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes
from tests.shuffle.taskmanager.hybrid.rig import FakeExtent, FakeTiers

pytestmark = pytest.mark.interpreted  # the tiers are the test's

CONTENT = bytes(range(100))


def opened(data_type: int, message_bytes: int) -> tuple[FakeTiers, list[bytes]]:
    """Spill CONTENT as one run, and read it."""
    tiers = FakeTiers()
    extent = FakeExtent(tiers, len(CONTENT))
    extent.view[:] = CONTENT
    runs = SpilledRuns(cast("Any", tiers), ShuffleKey("app", 1), tiers.accounts.of("app"))
    run = runs.make(data_type)
    run.add(cast("Any", extent), 0, len(CONTENT))
    sizes = ReadSizes(message_bytes, message_bytes, message_bytes)
    view = runs.open(run, 3, ReadBack(sizes, cast("Any", None)), lambda: None)
    found = []
    while view.backlog:
        buffer = view.next_buffer(1)
        assert buffer is not None
        found.append(bytes(buffer.payload))
        assert buffer.release is not None
        buffer.release()
    run.uncharge()
    view.release()
    extent.release()
    return tiers, found


def test_data_comes_in_messages_of_one_credit():
    tiers, found = opened(DATA, 40)
    assert found == [CONTENT[:40], CONTENT[40:80], CONTENT[80:]]
    assert not tiers.extents


def test_an_event_is_never_cut():
    tiers, found = opened(EVENT, 40)
    assert found == [CONTENT]
    assert not tiers.extents


def test_an_event_is_copied_and_its_memory_released():
    released: list[int] = []
    data = OutgoingBuffer(memoryview(CONTENT), lambda: released.append(1), DATA)
    assert typed(data, DATA) is data
    assert not released
    event = typed(data, EVENT)
    assert event == OutgoingBuffer(CONTENT, None, EVENT)
    assert isinstance(event.payload, bytes)
    assert released == [1]
