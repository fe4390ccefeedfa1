"""The rows of the journal: commits and releases as msgpack arrays.

::

    [0, application, shuffle, map attempt, subpartitions,
        [[tier id, extent offset, first subpartition, item size, offsets, crc32c], ...]]   commit
         [..., numbers]                       a region with offsets of some subpartitions only
    [0, ..., origin, replicas]     commit of a map output that several TaskManagers keep, or a copy
    [0, ..., origin, replicas, true]   the same, if it should have a copy in the remote tier
    [1, application, shuffle]                                                release of a shuffle
    [2, application]                                                    release of an application
    [3, application, shuffle, map attempt, subpartitions, number of the first region,
        [region, ...]]                                regions of a map output not yet committed
    [3, ..., process]                      the same, if only that process may continue the output
    [4, application, shuffle, map attempt]                          such a map output was dropped
    [5, tier id]                                    an arena is gone, with all rows of its journal
    [6, application, shuffle, end]             release of a shuffle's map attempts below a number
    [8, application, shuffle, map attempt]                a committed map output was dropped again
    [7, application, first shuffles, last shuffles, ends]     the releases of an application so far

``offsets`` are the cumulative offsets of a region as raw integers of ``item size`` bytes in the
byte order of the machine (the header of the journal names it); the last one is the extent's length.
``numbers`` are those of the subpartitions that have bytes, as raw integers of 4 bytes. An empty
region has an empty tier id, and a broadcast region 2³²−1 as its first subpartition.
"""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from ....names import ShuffleKey, shuffle_key
from ..releases import ReleasedShuffles
from ..stored_outputs import MapOutput, Region

_COMMIT = 0
_COMMIT_OF_SEVERAL = -1
"""Key in the table of types for a commit with origin and number of replicas."""
_COMMIT_TO_REMOTE = -3
"""The same for a commit of a map output that should have a copy in the remote tier."""
_SECURE_OF_PROCESS = -2
"""The same for regions with the text of their process."""
_RELEASE_SHUFFLE = 1
_RELEASE_APPLICATION = 2
_SECURE = 3
_DROP = 4
_LOSE = 5
_RELEASE_ATTEMPTS = 6
_RELEASED = 7
_DROP_COMMITTED = 8

LOSE_ROW = b"\x92\x05"
"""First bytes of the row of a lost arena."""

_UNDOING = frozenset(
    {
        _RELEASE_SHUFFLE,
        _RELEASE_APPLICATION,
        _DROP,
        _LOSE,
        _RELEASE_ATTEMPTS,
        _DROP_COMMITTED,
    }
)

_TYPECODES = {4: "I", 8: "Q"}
_NUMBER_BYTES = 4

_TYPES: dict[int, tuple[type, ...]] = {
    _COMMIT: (int, str, int, int, int, tuple),
    _COMMIT_OF_SEVERAL: (int, str, int, int, int, tuple, str, int),
    _COMMIT_TO_REMOTE: (int, str, int, int, int, tuple, str, int, bool),
    _RELEASE_SHUFFLE: (int, str, int),
    _RELEASE_APPLICATION: (int, str),
    _SECURE: (int, str, int, int, int, int, tuple),
    _SECURE_OF_PROCESS: (int, str, int, int, int, int, tuple, str),
    _DROP: (int, str, int, int),
    _LOSE: (int, bytes),
    _RELEASE_ATTEMPTS: (int, str, int, int),
    _RELEASED: (int, str, bytes, bytes, bytes),
    _DROP_COMMITTED: (int, str, int, int),
}
_LONGER = {
    _COMMIT: _COMMIT_OF_SEVERAL,
    _COMMIT_OF_SEVERAL: _COMMIT_TO_REMOTE,
    _SECURE: _SECURE_OF_PROCESS,
}
_REGION_TYPES: tuple[type, ...] = (bytes, int, int, int, bytes, int)
_SPARSE_REGION_TYPES: tuple[type, ...] = (*_REGION_TYPES, bytes)


class RegionRow(NamedTuple):
    """A region in the journal. ``tier_id`` is empty for an empty region."""

    tier_id: bytes
    offset: int
    first_subpartition: int
    offsets: "array[int]"
    crc32c: int
    numbers: "array[int] | None" = None


class CommitRow(NamedTuple):
    """A map output was committed; see ``MapOutput`` for the last three."""

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    regions: tuple[RegionRow, ...]
    origin: str = ""
    replicas: int = 1
    to_remote: bool = False


class ReleaseShuffleRow(NamedTuple):
    """A shuffle was released, with all its map outputs."""

    key: ShuffleKey


class ReleaseAttemptsRow(NamedTuple):
    """The map outputs of a shuffle with a map attempt below ``end`` were released."""

    key: ShuffleKey
    end: int


class ReleaseApplicationRow(NamedTuple):
    """An application was released, with all its shuffles."""

    application_id: str


class SecureRow(NamedTuple):
    """Regions of a map output were secured before its commit."""

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    first_region: int
    regions: tuple[RegionRow, ...]
    process: str = ""


class DropRow(NamedTuple):
    """A map output with secured regions was dropped."""

    key: ShuffleKey
    map_attempt_id: int


class ReleasedRow(NamedTuple):
    """The releases of an application, which a rewritten journal has instead of their own rows."""

    application_id: str
    released: ReleasedShuffles


class DropCommittedRow(NamedTuple):
    """A committed map output was dropped: it is damaged, or its origin has other bytes."""

    key: ShuffleKey
    map_attempt_id: int


class LoseRow(NamedTuple):
    """An arena was lost: earlier rows in its journal are not valid."""

    tier_id: bytes


Row = (
    CommitRow
    | LoseRow
    | ReleaseShuffleRow
    | ReleaseAttemptsRow
    | ReleaseApplicationRow
    | ReleasedRow
    | SecureRow
    | DropRow
    | DropCommittedRow
)


def pack_commit(output: MapOutput) -> bytes:
    """Pack the row of a commit."""
    regions = _pack_regions(output.regions)
    fields = (_COMMIT, *output.key, output.map_attempt_id, output.num_subpartitions, regions)
    if output.to_remote:
        return _pack((*fields, output.origin, output.replicas, True))
    if output.origin or output.replicas > 1:
        return _pack((*fields, output.origin, output.replicas))
    return _pack(fields)


def _pack_regions(regions: Sequence[Region]) -> list[tuple[bytes | int, ...]]:
    return [
        (
            b"" if region.extent is None else region.extent.tier.tier_id,
            0 if region.extent is None else region.extent.offset,
            region.first_subpartition,
            region.offsets.itemsize,
            region.offsets.tobytes(),
            region.crc32c,
            *(() if region.numbers is None else (region.numbers.tobytes(),)),
        )
        for region in regions
    ]


def pack_secure(
    key: ShuffleKey,
    map_attempt_id: int,
    num_subpartitions: int,
    first_region: int,
    regions: Sequence[Region],
    process: str = "",
) -> bytes:
    """Pack the row of regions secured before the commit."""
    packed = _pack_regions(regions)
    fields = (_SECURE, *key, map_attempt_id, num_subpartitions, first_region, packed)
    return _pack((*fields, process) if process else fields)


def pack_drop(key: ShuffleKey, map_attempt_id: int) -> bytes:
    """Pack the row of a dropped map output with secured regions."""
    return _pack((_DROP, *key, map_attempt_id))


def pack_drop_committed(key: ShuffleKey, map_attempt_id: int) -> bytes:
    """Pack the row of a committed map output that was dropped again."""
    return _pack((_DROP_COMMITTED, *key, map_attempt_id))


def pack_release_shuffle(key: ShuffleKey) -> bytes:
    """Pack the row of a shuffle's release."""
    return _pack((_RELEASE_SHUFFLE, *key))


def pack_release_attempts(key: ShuffleKey, end: int) -> bytes:
    """Pack the row of a release of a shuffle's map attempts below a number."""
    return _pack((_RELEASE_ATTEMPTS, *key, end))


def pack_release(key: ShuffleKey, end: int | None) -> bytes:
    """Pack the row of a release: of a shuffle, or of its map attempts below a number."""
    return pack_release_shuffle(key) if end is None else pack_release_attempts(key, end)


def pack_release_application(application_id: str) -> bytes:
    """Pack the row of an application's release."""
    return _pack((_RELEASE_APPLICATION, application_id))


def pack_released(application_id: str, released: ReleasedShuffles) -> bytes:
    """Pack the releases of an application."""
    values = released.firsts, released.lasts, released.ends
    return _pack((_RELEASED, application_id, *(each.tobytes() for each in values)))


def pack_lose(tier_id: bytes) -> bytes:
    """Pack the row of a lost arena."""
    return _pack((_LOSE, tier_id))


def is_commit(data: bytes) -> bool:
    """Return whether a row commits a map output."""
    return len(data) > 1 and data[1] == _COMMIT


def is_undoing(data: bytes) -> bool:
    """Whether a row undoes others, so that both files of a journal have it."""
    return len(data) > 1 and data[1] in _UNDOING


def unpack(data: bytes) -> Row:
    """Read a row.

    Raises:
        ValueError: The bytes are not a row of a journal.
    """
    try:
        fields = msgpack.unpackb(data, use_list=False, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        msg = f"not msgpack: {error}"
        raise ValueError(msg) from error
    if type(fields) is tuple and fields:
        kind = fields[0]
        if kind in _LONGER.values():
            kind = None
        while kind in _LONGER and len(fields) > len(_TYPES[kind]):
            kind = _LONGER[kind]
        if _TYPES.get(kind) == tuple(map(type, fields)):
            return _row(kind, fields)
    msg = "its fields match no known row"
    raise ValueError(msg)


def _row(kind: int, fields: Any) -> Row:
    """Make a row from fields with the right types."""
    if kind == _RELEASE_APPLICATION:
        return ReleaseApplicationRow(fields[1])
    if kind == _LOSE:
        return LoseRow(fields[1])
    if kind == _RELEASED:
        return ReleasedRow(fields[1], _unpack_released(*fields[2:]))
    key = shuffle_key(fields[1], fields[2])
    if kind == _COMMIT:
        return CommitRow(key, fields[3], fields[4], _unpack_regions(fields[5]))
    if kind in (_COMMIT_OF_SEVERAL, _COMMIT_TO_REMOTE):
        return CommitRow(key, fields[3], fields[4], _unpack_regions(fields[5]), *fields[6:])
    if kind == _RELEASE_SHUFFLE:
        return ReleaseShuffleRow(key)
    if kind == _RELEASE_ATTEMPTS:
        return ReleaseAttemptsRow(key, fields[3])
    if kind == _DROP_COMMITTED:
        return DropCommittedRow(key, fields[3])
    if kind == _SECURE:
        return SecureRow(key, fields[3], fields[4], fields[5], _unpack_regions(fields[6]))
    if kind == _SECURE_OF_PROCESS:
        regions = _unpack_regions(fields[6])
        return SecureRow(key, fields[3], fields[4], fields[5], regions, fields[7])
    return DropRow(key, fields[3])


def _unpack_released(firsts: bytes, lasts: bytes, ends: bytes) -> ReleasedShuffles:
    released = ReleasedShuffles()
    released.firsts.frombytes(firsts)
    released.lasts.frombytes(lasts)
    released.ends.frombytes(ends)
    if not len(released.firsts) == len(released.lasts) == len(released.ends):
        msg = "its intervals are incomplete"
        raise ValueError(msg)
    return released


def _unpack_regions(regions: Sequence[Any]) -> tuple[RegionRow, ...]:
    return tuple(map(_unpack_region, regions))


def _unpack_region(fields: Any) -> RegionRow:
    types = tuple(map(type, fields)) if type(fields) is tuple else ()
    if types in (_REGION_TYPES, _SPARSE_REGION_TYPES):
        tier_id, offset, first, size, raw, checksum, *sparse = fields
        typecode = _TYPECODES.get(size)
        if typecode is not None and raw and len(raw) % size == 0:
            offsets = array(typecode, raw)
            if not sparse:
                return RegionRow(tier_id, offset, first, offsets, checksum)
            if len(sparse[0]) == (len(offsets) - 1) * _NUMBER_BYTES:
                numbers = array("I", sparse[0])
                return RegionRow(tier_id, offset, first, offsets, checksum, numbers)
    msg = "a region in it has unknown fields"
    raise ValueError(msg)


def _pack(fields: object) -> bytes:
    packed = msgpack.packb(fields, use_bin_type=True)
    if not isinstance(packed, bytes):  # packb() is typed as optional
        msg = "msgpack returned no bytes"
        raise TypeError(msg)
    return packed
