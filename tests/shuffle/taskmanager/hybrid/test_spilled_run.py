"""A run of spilled buffers: neighbors are one slice, each extent is held once, all is charged."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.hybrid.spilled_run import (
    MAX_RUN_SLICES,
    SPILLED_SLICE_BYTES,
    SpilledRun,
)
from tests.shuffle.taskmanager.hybrid.rig import FakeExtent, FakeTiers

pytestmark = pytest.mark.interpreted  # FakeExtent is a kind of Referenced


def test_neighbors_of_an_extent_are_one_slice():
    tiers = FakeTiers()
    account = tiers.accounts.of("app")
    extent = cast("Any", FakeExtent(tiers, 100))
    run = SpilledRun(DATA, account)
    for offset in (0, 10, 20, 50):
        run.add(extent, offset, memoryview(bytes(10)))
    assert [(each.offset, each.length) for each in run.slices] == [(0, 30), (50, 10)]
    assert run.buffers == 4
    assert account.amount(Resource.METADATA_BYTES) == 2 * SPILLED_SLICE_BYTES
    extent.release()
    assert tiers.extents  # the run still has it
    run.release()
    assert not tiers.extents
    assert account.amount(Resource.METADATA_BYTES) == 0


def test_a_run_takes_data_of_a_few_extents_or_one_event():
    tiers = FakeTiers()
    run = SpilledRun(DATA, tiers.accounts.of("app"))
    for _ in range(MAX_RUN_SLICES):
        extent = cast("Any", FakeExtent(tiers, 20))
        assert not run.takes(EVENT, extent, 0)
        assert run.takes(DATA, extent, 0)
        run.add(extent, 0, memoryview(bytes(10)))
        extent.release()
    assert run.takes(DATA, extent, 10), "it continues the last slice"
    assert not run.takes(DATA, extent, 0)
    assert not SpilledRun(EVENT, tiers.accounts.of("app")).takes(EVENT, extent, 10)
    run.release()
    assert not tiers.extents


def test_a_view_takes_over_the_references_of_a_run():
    tiers = FakeTiers()
    account = tiers.accounts.of("app")
    extent = cast("Any", FakeExtent(tiers, 10))
    run = SpilledRun(DATA, account)
    run.add(extent, 0, memoryview(bytes(10)))
    run.uncharge()
    assert account.amount(Resource.METADATA_BYTES) == 0
    assert extent.references == 2
    run.release()  # nothing is left to release
    assert extent.references == 2
