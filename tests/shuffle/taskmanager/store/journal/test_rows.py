import msgpack
import pytest

from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.journal.rows import (
    LOSE_ROW,
    CommitRow,
    DropCommittedRow,
    LoseRow,
    ReleaseApplicationRow,
    ReleaseAttemptsRow,
    ReleasedRow,
    ReleaseShuffleRow,
    SecureRow,
    is_undoing,
    pack_commit,
    pack_drop_committed,
    pack_lose,
    pack_release_application,
    pack_release_attempts,
    pack_release_shuffle,
    pack_released,
    pack_secure,
    unpack,
)
from sluice.shuffle.taskmanager.store.releases import ReleasedShuffles
from sluice.shuffle.taskmanager.store.stored_outputs import (
    MapOutput,
    Region,
    cumulative_offsets,
    region_index,
)

KEY = ShuffleKey("app-1", 4)


def test_a_commit_survives_packing_with_narrow_wide_and_empty_regions():
    regions = tuple(
        Region(None, first, cumulative_offsets(lengths), 2**32 - 1)
        for first, lengths in ((0, [1, 2]), (2, [2**33]), (3, []))
    )
    row = unpack(pack_commit(MapOutput(KEY, 9, 5, regions)))
    assert isinstance(row, CommitRow)
    assert (row.key, row.map_attempt_id, row.num_subpartitions) == (KEY, 9, 5)
    assert [list(r.offsets) for r in row.regions] == [[0, 1, 3], [0, 2**33], [0]]
    assert [r.first_subpartition for r in row.regions] == [0, 2, 3]
    assert {r.crc32c for r in row.regions} == {2**32 - 1}
    assert {r.tier_id for r in row.regions} == {b""}


def test_a_broadcast_region_survives_packing():
    region = Region(None, EVERY_SUBPARTITION, cumulative_offsets([70_000]), 5)
    row = unpack(pack_commit(MapOutput(KEY, 9, 5, (region,))))
    assert isinstance(row, CommitRow)
    assert [r.first_subpartition for r in row.regions] == [EVERY_SUBPARTITION]
    assert [list(r.offsets) for r in row.regions] == [[0, 70_000]]


def test_a_region_with_few_subpartitions_survives_packing():
    offsets, numbers = region_index([*bytes(1000), 2**33, *bytes(1000), 7])
    packed = pack_commit(MapOutput(KEY, 9, 2002, (Region(None, 0, offsets, 5, numbers),)))
    assert len(packed) < 100
    row = unpack(packed)
    assert isinstance(row, CommitRow)
    (region,) = row.regions
    assert list(region.offsets) == [0, 2**33, 2**33 + 7]
    assert list(region.numbers or ()) == [1000, 2001]


def test_a_row_of_the_first_format_is_still_read():
    offsets = cumulative_offsets([0, 7, 0])
    fields = (0, *KEY, 9, 3, [(b"", 0, 0, 4, offsets.tobytes(), 5)])
    row = unpack(msgpack.packb(fields, use_bin_type=True))
    assert isinstance(row, CommitRow)
    assert row.regions == ((b"", 0, 0, offsets, 5, None),)


@pytest.mark.parametrize("process", ["", "0123456789abcdef"])
def test_secured_regions_survive_packing_with_their_process(process):
    region = Region(None, 0, cumulative_offsets([1, 2]), 5)
    packed = pack_secure(KEY, 9, 2, 3, (region,), process)
    row = unpack(packed)
    assert isinstance(row, SecureRow)
    assert row[:4] == (KEY, 9, 2, 3)
    assert row.process == process
    assert [list(r.offsets) for r in row.regions] == [[0, 1, 3]]
    if not process:  # a release before this one has the same rows
        assert len(msgpack.unpackb(packed)) == 7


def test_releases_survive_packing():
    assert unpack(pack_release_shuffle(KEY)) == ReleaseShuffleRow(KEY)
    assert unpack(pack_release_attempts(KEY, 1 << 40)) == ReleaseAttemptsRow(KEY, 1 << 40)
    assert unpack(pack_release_application("x")) == ReleaseApplicationRow("x")
    assert unpack(pack_drop_committed(KEY, 7)) == DropCommittedRow(KEY, 7)
    assert unpack(pack_lose(b"8 bytes.")) == LoseRow(b"8 bytes.")
    assert pack_lose(b"8 bytes.").startswith(LOSE_ROW)
    assert not pack_release_application("x").startswith(LOSE_ROW)


def test_all_releases_of_an_application_are_one_row():
    released = ReleasedShuffles()
    for shuffle_id, end in ((0, 5), (1, 5), (7, None), (2**32 - 1, 2**63 - 1)):
        released.add(shuffle_id, end)
    packed = pack_released("x", released)
    assert not is_undoing(packed)
    row = unpack(packed)
    assert isinstance(row, ReleasedRow)
    assert row.application_id == "x"
    assert [list(row.released.firsts), list(row.released.lasts)] == [
        [0, 7, 2**32 - 1],
        [1, 7, 2**32 - 1],
    ]
    assert list(row.released.ends) == [5, -(2**63), 2**63 - 1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgpack.packb([7, "app", bytes(3), bytes(4), bytes(8)]),
        msgpack.packb([7, "app", bytes(8), bytes(4), bytes(8)]),
        b"\xc1",
        msgpack.packb({"a": 1}),
        msgpack.packb([9, "app"]),
        msgpack.packb([-2, "app", 1, 2, 3, 0, [], "process"]),
        msgpack.packb([0, "app", 1, 2, 3, [[b"", 0, 0, 3, b"abc", 0]]]),
        msgpack.packb([0, "app", 1, 2, 3, [[b"", 0, 0, 4, b"abc", 0]]]),
        msgpack.packb([0, "app", 1, 2, 3, [[b"", 0, 0, 4, b"", 0]]]),
        msgpack.packb([0, "app", 1, 2, 3, [[b"", 0, 0, 4, bytes(8), 0, bytes(8)]]]),
        msgpack.packb([0, "app", 1, 2, 3, [7]]),
    ],
)
def test_foreign_rows_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        unpack(data)


def test_the_index_of_a_wide_map_output_takes_four_bytes_per_subpartition():
    output = MapOutput(KEY, 1, 2000, (Region(None, 0, cumulative_offsets([7] * 2000), 1),))
    assert len(pack_commit(output)) < 2001 * 4 + 64
