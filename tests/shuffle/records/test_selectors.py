"""Channel selectors: the subpartition of each record."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.framing import Turns
from sluice.shuffle.records.selectors import (
    BroadcastSelector,
    ChannelSelector,
    FunctionSelector,
    HashSelector,
    RoundRobinSelector,
)
from tests.support.raises_code import raises_code


def set_up(selector: ChannelSelector, num_subpartitions: int) -> ChannelSelector:
    selector.setup(num_subpartitions)
    return selector


@pytest.mark.parametrize(
    ("start", "chosen"), [(0, [0, 1, 2, 0, 1]), (2, [2, 0, 1, 2, 0]), (7, [1, 2, 0, 1, 2])]
)
def test_round_robin(start, chosen):
    selector = set_up(RoundRobinSelector(start), 3)
    assert [selector.select(b"") for _ in range(5)] == chosen


def test_round_robin_over_one():
    selector = set_up(RoundRobinSelector(), 1)
    assert [selector.select(b"") for _ in range(3)] == [0, 0, 0]


SELECTORS: dict[str, Callable[[], ChannelSelector]] = {
    "round robin": lambda: RoundRobinSelector(1),
    "hash": HashSelector,
    "hash of a key": lambda: HashSelector(lambda record: record[:1]),
    "function": lambda: FunctionSelector(lambda record, count: len(record) % count),
}


@pytest.mark.parametrize("name", SELECTORS)
@given(
    batches=st.lists(st.lists(st.binary(max_size=4), max_size=9), max_size=4),
    num_subpartitions=st.integers(1, 7),
)
def test_the_choices_for_a_batch_are_those_for_its_records(name, batches, num_subpartitions):
    singly = set_up(SELECTORS[name](), num_subpartitions)
    at_once = set_up(SELECTORS[name](), num_subpartitions)
    for batch in batches:
        chosen = [singly.select(record) for record in batch]
        assert one_by_one(at_once.select_many(batch), len(batch)) == chosen
        assert all(0 <= each < num_subpartitions for each in chosen)


def one_by_one(chosen, records):
    """Return the subpartition of each record of a batch."""
    if isinstance(chosen, Turns):
        return [(chosen.first + turn) % chosen.subpartitions for turn in range(records)]
    return [chosen] * records if isinstance(chosen, int) else chosen


def test_the_hash_is_the_documented_one():
    selector = set_up(HashSelector(), 1000)
    # The check value of CRC-32C: 0xE3069283.
    assert selector.select(b"123456789") == 0xE3069283 % 1000


def test_hash_is_the_same_in_another_process():
    keys = [f"key {number}".encode() for number in range(20)]
    selector = set_up(HashSelector(), 13)
    here = [selector.select(key) for key in keys]
    source = (
        "from sluice.shuffle.records.selectors import HashSelector\n"
        "selector = HashSelector(); selector.setup(13)\n"
        f"print(selector.select_many({keys!r}))"
    )
    there = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    assert there.stdout.strip() == str(here)


def test_hash_spreads_keys_that_are_alike():
    selector = set_up(HashSelector(), 8)
    counts = Counter(selector.select(number.to_bytes(8, "big")) for number in range(8000))
    assert len(counts) == 8
    assert max(counts.values()) < 1.2 * 1000


def test_the_key_decides_and_not_the_record():
    selector = set_up(HashSelector(lambda record: record[0].encode()), 50)
    chosen = {selector.select(("key", number)) for number in range(20)}
    assert len(chosen) == 1


def test_broadcast():
    selector = set_up(BroadcastSelector(), 3)
    assert selector.select(b"") == ALL_SUBPARTITIONS
    assert selector.select_many([b"", b""]) == ALL_SUBPARTITIONS


def test_a_selector_needs_a_subpartition():
    with raises_code(ErrorCode.CONFIGURATION, "at least 1 subpartition"):
        RoundRobinSelector().setup(0)
