"""The index finds what is committed, and its sums return to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts, Resource
from sluice.shuffle.taskmanager.store import output_index
from sluice.shuffle.taskmanager.store.output_index import (
    DAMAGED,
    WITH_DIRECTORY,
    OutputIndex,
    kept_bytes_of,
    regions_of,
    row_bytes_of,
)
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region, cumulative_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = ShuffleKey("app", 1)


def region(*lengths: int) -> Region:
    return Region(None, 0, cumulative_offsets(lengths), 0)


def output(attempt: int, *regions: Region) -> MapOutput:
    return MapOutput(KEY, attempt, 2, regions)


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=3), max_size=8))
def test_the_sums_are_those_of_the_outputs_and_a_release_leaves_nothing(lengths):
    accounts = Accounts()
    index = OutputIndex(accounts)
    outputs = [output(number, region(*some)) for number, some in enumerate(lengths)]
    for each in outputs:
        index.add(each)
    assert index.map_outputs == len(outputs)
    assert index.stored_bytes == sum(sum(some) for some in lengths)
    assert dict(index.outputs_of(KEY)) == dict(enumerate(outputs))
    assert list(regions_of([index.entry(KEY)])) == [each.regions[0] for each in outputs]
    account = accounts.of("app")
    assert account.amount(Resource.MAP_OUTPUTS) == len(outputs)
    assert account.amount(Resource.METADATA_BYTES) == kept_bytes_of(
        each.regions[0] for each in outputs
    )
    index.pop(KEY)
    assert (index.map_outputs, index.stored_bytes, sum(index.journal_bytes.values())) == (0, 0, 0)
    assert accounts.in_use() == []
    assert index.get(KEY, 0) is None


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_an_index_keeps_no_trace_of_lost_outputs(losses):
    accounts, others = Accounts(), Accounts()
    index, expected = OutputIndex(accounts), OutputIndex(others)
    outputs = [output(number, region(number), region(3)) for number in range(len(losses))]
    for each in outputs:
        index.add(each)
    for each, is_lost in zip(outputs, losses, strict=True):
        if is_lost:
            index.lose(each, DAMAGED)
        else:
            expected.add(each)
    assert index.outputs_of(KEY) == expected.outputs_of(KEY)
    for found, wanted in ((index, expected), (index.entry(KEY), expected.entry(KEY))):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert found.stored_bytes == wanted.stored_bytes
            assert +found.journal_bytes == wanted.journal_bytes
    assert index.map_outputs == expected.map_outputs
    for resource in Resource:
        assert accounts.of("app").amount(resource) == others.of("app").amount(resource)
    assert index.applications() == expected.applications()


@pytest.mark.interpreted
def test_a_lost_output_costs_nothing_for_the_others(monkeypatch):
    index = OutputIndex(Accounts())
    outputs = [output(number, region(5)) for number in range(100)]
    index.add_all(KEY, outputs)
    counted: list[ShuffleKey] = []

    def counting(key: ShuffleKey, regions: Sequence[Region]) -> dict[bytes, int]:
        counted.append(key)
        return row_bytes_of(key, regions)

    monkeypatch.setattr(output_index, "row_bytes_of", counting)
    for each in outputs:
        index.lose(each, DAMAGED)
    assert len(counted) == len(outputs)


def test_a_commit_takes_the_place_of_the_secured_part():
    accounts = Accounts()
    index = OutputIndex(accounts)
    attempt = MapAttemptKey(KEY, 7)
    first = region(3, 4)
    index.secure(attempt, 2, [first], "process")
    secured = index.open_output(attempt)
    assert secured is not None
    assert (secured.regions, secured.process) == ([first], "process")
    assert index.get(KEY, 7) is None
    index.add(output(7, first, region(1)))
    assert index.open_outputs() == []
    assert index.get(KEY, 7) is not None
    index.pop(KEY)
    assert accounts.in_use() == []


def test_outputs_below_a_number_are_released_and_the_others_stay():
    index = OutputIndex(Accounts())
    for number in range(4):
        index.add(output(number, region(number + 1)))
    removed = index.pop_below(KEY, 2)
    assert removed is not None
    assert sorted(removed.outputs) == [0, 1]
    assert sorted(index.outputs_of(KEY)) == [2, 3]
    assert index.stored_bytes == 3 + 4
    assert index.pop_below(KEY, 2) is None


def test_a_lost_output_is_told_apart_from_one_that_never_was():
    index = OutputIndex(Accounts())
    first = output(1, region(5))
    index.add(first)
    index.add(output(2, region(6)))
    index.lose(first, WITH_DIRECTORY)
    assert index.why_lost(KEY, 1)
    assert not index.why_lost(KEY, 3)
    assert index.lost_of("app") == {KEY: [1]}
    index.add(output(1, region(5)))  # written again
    assert not index.why_lost(KEY, 1)
