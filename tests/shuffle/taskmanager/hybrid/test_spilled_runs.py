"""Spilled runs: data in messages, an event in one piece, both verified; many are freed in turns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.hybrid.spilled_runs import MAX_FREED_RUNS, ReadBack, SpilledRuns
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes
from sluice.shuffle.taskmanager.store.errors import SpilledBytesDamaged
from tests.shuffle.taskmanager.hybrid.rig import FakeExtent, FakeTiers

pytestmark = pytest.mark.interpreted  # the tiers are the test's

CONTENT = bytes(range(100))


def read_back(message_bytes: int) -> ReadBack:
    return ReadBack(ReadSizes(message_bytes, message_bytes, message_bytes), cast("Any", None))


def opened(data_type: int, message_bytes: int) -> tuple[FakeTiers, list[bytes]]:
    """Spill CONTENT as one run, and read it."""
    tiers = FakeTiers()
    extent = FakeExtent(tiers, len(CONTENT))
    extent.view[:] = CONTENT
    runs = SpilledRuns(cast("Any", tiers), ShuffleKey("app", 1), tiers.accounts.of("app"))
    run = runs.make(data_type)
    run.add(cast("Any", extent), 0, memoryview(CONTENT))
    view = runs.open(run, 3, read_back(message_bytes), lambda: None)
    found = []
    while view.backlog:
        buffer = view.next_buffer(1)
        assert buffer is not None
        assert buffer.data_type == data_type
        found.append(bytes(buffer.payload))
        if buffer.release is not None:
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


def test_a_changed_run_raises_before_its_last_message():
    tiers = FakeTiers()
    extent = FakeExtent(tiers, len(CONTENT))
    extent.view[:] = CONTENT
    runs = SpilledRuns(cast("Any", tiers), ShuffleKey("app", 1), tiers.accounts.of("app"))
    run = runs.make(DATA)
    run.add(cast("Any", extent), 0, memoryview(CONTENT))
    extent.view[3] ^= 1
    reader = runs.open(run, 0, read_back(40), lambda: None)
    for _ in range(2):
        buffer = reader.next_buffer(1)
        assert buffer is not None
        assert buffer.release is not None
        buffer.release()
    with pytest.raises(SpilledBytesDamaged, match="do not match their checksum"):
        reader.next_buffer(1)
    run.uncharge()
    reader.release()
    extent.release()
    assert not tiers.extents


async def test_many_runs_are_freed_in_turns():
    tiers = FakeTiers()
    account = tiers.accounts.of("app")
    runs = SpilledRuns(cast("Any", tiers), ShuffleKey("app", 1), account)
    many = []
    for _ in range(MAX_FREED_RUNS + 1):
        extent = FakeExtent(tiers, 1)
        many.append(runs.make(EVENT))
        many[-1].add(cast("Any", extent), 0, memoryview(b"e"))
        extent.release()
    runs.free(many)
    assert len(tiers.extents) == 1
    await asyncio.sleep(0)
    assert not tiers.extents
    assert account.amount(Resource.METADATA_BYTES) == 0
