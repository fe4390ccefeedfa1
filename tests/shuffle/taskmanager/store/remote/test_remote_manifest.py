"""The manifest of a map output that moved."""

import sys
from array import array

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.remote.remote_manifest import pack_manifest, unpack_manifest
from sluice.shuffle.taskmanager.store.stored_outputs import (
    MapOutput,
    Region,
    cumulative_offsets,
    region_index,
)

lengths = st.lists(st.integers(0, 2**34), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.text(max_size=5), lengths), max_size=4), st.integers(1, 5))
def test_it_is_read_as_it_was_packed(regions, subpartitions):
    output = MapOutput(
        ShuffleKey("app", 1),
        2,
        subpartitions,
        tuple(
            Region(None, EVERY_SUBPARTITION, cumulative_offsets(each), number)
            for number, (_, each) in enumerate(regions)
        ),
    )
    manifest = unpack_manifest(pack_manifest(output, [name for name, _ in regions]))
    assert manifest.num_subpartitions == subpartitions
    assert [each.name for each in manifest.regions] == [name for name, _ in regions]
    for region, found in zip(output.regions, manifest.regions, strict=True):
        assert found[1:] == (region.first_subpartition, region.offsets, region.crc32c, None)


def test_a_region_with_few_subpartitions_is_read_as_it_was_packed():
    offsets, numbers = region_index([*bytes(1000), 5, *bytes(1000), 7])
    region = Region(None, 3, offsets, 1, numbers)
    packed = pack_manifest(MapOutput(ShuffleKey("app", 1), 2, 2005, (region,)), ["a"])
    assert len(packed) < 100
    assert unpack_manifest(packed).regions == (("a", 3, offsets, 1, array("I", [1000, 2001])),)


def test_it_may_come_from_a_machine_of_the_other_byte_order():
    offsets = array("I", [0, 5, 9])
    offsets.byteswap()
    other = {"little": "big", "big": "little"}[sys.byteorder]
    packed = msgpack.packb((1, other, 2, [("a", 0, 4, offsets.tobytes(), 6)]))
    assert unpack_manifest(packed).regions[0].offsets == array("I", [0, 5, 9])


@pytest.mark.parametrize(
    "fields",
    [
        (2, "little", 1, []),
        (1, "little", 1),
        (1, "little", 1, ["region"]),
        (1, "little", 1, [("a", 0, 3, bytes(6), 0)]),
        (1, "little", 1, [("a", 0, 4, b"", 0)]),
        (1, "little", 1, [("a", 0, 4, array("I", [0, 5, 3]).tobytes(), 0)]),
        (1, "little", 1, [("a", 0, 4, array("I", [1, 5]).tobytes(), 0)]),
        (1, "little", 1, [("a", 0, 4, array("I", [0, 5]).tobytes(), 0, b"")]),
        (1, "little", 1, [("a", 0, 4, array("I", [0, 5, 6]).tobytes(), 0, bytes(8))]),
        [],
        7,
    ],
)
def test_anything_else_is_refused(fields):
    with pytest.raises(ValueError, match=r"manifest|region|msgpack"):
        unpack_manifest(msgpack.packb(fields))


@given(st.binary(max_size=50))
def test_noise_is_refused(noise):
    with pytest.raises(ValueError, match=r"manifest|region|msgpack"):
        unpack_manifest(noise)
