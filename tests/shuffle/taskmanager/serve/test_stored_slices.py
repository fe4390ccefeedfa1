"""Gathering what a request reads: some a turn, charged, and with references."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.limits import MAX_GATE_ATTEMPTS
from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.errors import InvalidRequest, LimitExceeded
from sluice.shuffle.names import SubpartitionRange
from sluice.shuffle.taskmanager.bounds.accounts import NO_LIMITS, QuotaExceeded, Resource
from sluice.shuffle.taskmanager.serve.stored_slices import (
    SLICE_BYTES,
    SLICES_A_TURN,
    StoredSlices,
    append_slices,
    distinct_attempts,
)
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region, region_index
from tests.support.peers import turns
from tests.support.store import KEY, config, put

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluice.shuffle.taskmanager.serve.stored_partition_view import Slice
    from sluice.shuffle.taskmanager.store.tiers.tier import Extent

WANTED = SubpartitionRange(KEY, 0, 1)


@pytest.fixture
async def store(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    yield store
    await store.close()


def charged(store: ShuffleStore) -> int:
    return store.accounts.of(KEY.application_id).amount(Resource.METADATA_BYTES)


async def test_many_map_outputs_are_gathered_in_many_turns(store):
    """Other connections have their turns between."""
    asked = 0

    def outputs() -> Mapping[int, MapOutput]:
        nonlocal asked
        asked += 1
        return {each: MapOutput(KEY, each, 1, ()) for each in range(5 * SLICES_A_TURN)}

    slices = StoredSlices(WANTED, store.accounts.of(KEY.application_id))
    gathering = asyncio.ensure_future(slices.gather(outputs, range(5 * SLICES_A_TURN)))
    for turn in range(5):
        assert asked == turn
        assert not gathering.done()
        await turns(1)
    assert await gathering is None


async def test_regions_count_in_a_turn_like_map_outputs(store):
    output = await put(store, 1, 400)
    many = {each: MapOutput(KEY, each, 4, output.regions * SLICES_A_TURN) for each in range(3)}
    slices = StoredSlices(WANTED, store.accounts.of(KEY.application_id))
    gathering = asyncio.ensure_future(slices.gather(lambda: many, range(3)))
    before = charged(store)
    for turn in range(1, 4):
        await turns(1)
        assert charged(store) - before == turn * SLICES_A_TURN * SLICE_BYTES
    assert await gathering is None
    slices.release()
    assert charged(store) == before


async def test_gathering_goes_on_behind_what_was_missing(store):
    outputs = {each: await put(store, each, 400) for each in (1, 2, 3)}
    late = outputs.pop(2)
    slices = StoredSlices(WANTED, store.accounts.of(KEY.application_id))
    before = charged(store)
    assert await slices.gather(lambda: outputs, [1, 2, 3]) == 2
    assert charged(store) - before == SLICE_BYTES
    assert await slices.gather(lambda: {2: late, 3: outputs[3]}, [1, 2, 3]) is None
    taken = slices.take()
    assert [each.extent for each in taken] == [
        each.regions[0].extent for each in (outputs[1], late, outputs[3])
    ]
    slices.release()
    assert charged(store) - before == 3 * SLICE_BYTES
    for each in taken:
        each.extent.release()


async def test_a_request_above_the_quota_keeps_nothing(store):
    outputs = {each: await put(store, each, 400) for each in (1, 2)}
    account, before = store.accounts.of(KEY.application_id), charged(store)
    limits = list(NO_LIMITS)
    limits[Resource.METADATA_BYTES] = before + SLICE_BYTES
    account.set_limits(tuple(limits))
    slices = StoredSlices(WANTED, account)
    with pytest.raises(QuotaExceeded):
        await slices.gather(lambda: outputs, [1, 2])
    slices.release()
    assert charged(store) == before
    assert await slices.gather(lambda: outputs, [1]) is None
    slices.release()


def test_map_attempts_are_different_and_not_too_many():
    assert list(distinct_attempts([3, -1, 2**62])) == [3, -1, 2**62]
    with pytest.raises(InvalidRequest, match="twice"):
        distinct_attempts([1, 2, 1])
    with pytest.raises(LimitExceeded):
        distinct_attempts(range(MAX_GATE_ATTEMPTS + 1))


LENGTHS = st.lists(st.sampled_from([0, 0, 0, 3]) | st.integers(0, 9), max_size=12)
REGIONS = st.tuples(st.integers(0, 12) | st.just(EVERY_SUBPARTITION), LENGTHS)


@pytest.mark.interpreted
@given(st.lists(REGIONS, max_size=8), st.integers(0, 23), st.integers(1, 24))
def test_the_slices_are_those_of_all_regions(regions, start, size):
    extent = cast("Extent", object())
    made = []
    for first, lengths in regions:
        index = region_index([sum(lengths)] if first == EVERY_SUBPARTITION else lengths)
        made.append(Region(extent, first, index[0], 0, index[1]))
    made.append(Region(None, 0, region_index([])[0], 0))
    found: list[Slice] = []
    append_slices(found, MapOutput(KEY, 1, 24, tuple(made)), start, start + size)
    expected = [
        (*each.slice(start, start + size), each.repeats(start, start + size)) for each in made
    ]
    assert [each[1:] for each in found] == [each for each in expected if each[1]]
