"""The rows of the journal: commits and releases as msgpack arrays.

::

    [0, application, shuffle, map attempt, subpartitions,
        [[tier id, extent offset, first subpartition, item size, offsets, crc32c], ...]]   commit
    [1, application, shuffle]                                                release of a shuffle
    [2, application]                                                    release of an application
    [3, application, shuffle, map attempt, subpartitions, number of the first region,
        [region, ...]]                                regions of a map output not yet committed
    [4, application, shuffle, map attempt]                          such a map output is given up

``offsets`` are the cumulative offsets of a region as raw integers of ``item size`` bytes in the
byte order of the machine (the header of the journal names it); the last one is the extent's length.
An empty region has an empty tier id, and a broadcast region 2³²−1 as its first subpartition.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ...names import ShuffleKey
from .outputs import MapOutput, Region

_COMMIT = 0
_RELEASE_SHUFFLE = 1
_RELEASE_APPLICATION = 2
_SECURE = 3
_DROP = 4

_TYPECODES = {4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class RegionRow:
    """A region in the journal. ``tier_id`` is empty for an empty region."""

    tier_id: bytes
    offset: int
    first_subpartition: int
    offsets: "array[int]"
    crc32c: int


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A map output was committed."""

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    regions: tuple[RegionRow, ...]


@dataclass(frozen=True, slots=True)
class ReleaseShuffleRow:
    """A shuffle was released, with all its map outputs."""

    key: ShuffleKey


@dataclass(frozen=True, slots=True)
class ReleaseApplicationRow:
    """An application was released, with all its shuffles."""

    application_id: str


@dataclass(frozen=True, slots=True)
class SecureRow:
    """Regions of a map output were secured before its commit."""

    key: ShuffleKey
    map_attempt_id: int
    num_subpartitions: int
    first_region: int
    regions: tuple[RegionRow, ...]


@dataclass(frozen=True, slots=True)
class DropRow:
    """A map output with secured regions is given up."""

    key: ShuffleKey
    map_attempt_id: int


Row = CommitRow | ReleaseShuffleRow | ReleaseApplicationRow | SecureRow | DropRow


def pack_commit(output: MapOutput) -> bytes:
    """Pack the row of a commit."""
    regions = _pack_regions(output.regions)
    return _pack((_COMMIT, *output.key, output.map_attempt_id, output.num_subpartitions, regions))


def _pack_regions(regions: Sequence[Region]) -> list[tuple[bytes, int, int, int, bytes, int]]:
    return [
        (
            b"" if region.extent is None else region.extent.tier.tier_id,
            0 if region.extent is None else region.extent.offset,
            region.first_subpartition,
            region.offsets.itemsize,
            region.offsets.tobytes(),
            region.crc32c,
        )
        for region in regions
    ]


def pack_secure(
    key: ShuffleKey,
    map_attempt_id: int,
    num_subpartitions: int,
    first_region: int,
    regions: Sequence[Region],
) -> bytes:
    """Pack the row of regions that are secured before the commit."""
    packed = _pack_regions(regions)
    return _pack((_SECURE, *key, map_attempt_id, num_subpartitions, first_region, packed))


def pack_drop(key: ShuffleKey, map_attempt_id: int) -> bytes:
    """Pack the row of a map output with secured regions that is given up."""
    return _pack((_DROP, *key, map_attempt_id))


def pack_release_shuffle(key: ShuffleKey) -> bytes:
    """Pack the row of a shuffle's release."""
    return _pack((_RELEASE_SHUFFLE, *key))


def pack_release_application(application_id: str) -> bytes:
    """Pack the row of an application's release."""
    return _pack((_RELEASE_APPLICATION, application_id))


def unpack(data: bytes) -> Row:
    """Read a row.

    Raises:
        ValueError: The bytes are not a row of a journal.
    """
    try:
        fields = msgpack.unpackb(data, use_list=True, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        msg = f"not msgpack: {error}"
        raise ValueError(msg) from error
    match fields:
        case [0, str(app), int(shuffle), int(attempt), int(subpartitions), list(regions)]:
            return CommitRow(
                ShuffleKey(app, shuffle),
                attempt,
                subpartitions,
                tuple(_unpack_region(region) for region in regions),
            )
        case [1, str(app), int(shuffle)]:
            return ReleaseShuffleRow(ShuffleKey(app, shuffle))
        case [2, str(app)]:
            return ReleaseApplicationRow(app)
        case [3, str(app), int(shuffle), int(attempt), int(subpartitions), int(first), list(more)]:
            return SecureRow(
                ShuffleKey(app, shuffle),
                attempt,
                subpartitions,
                first,
                tuple(_unpack_region(region) for region in more),
            )
        case [4, str(app), int(shuffle), int(attempt)]:
            return DropRow(ShuffleKey(app, shuffle), attempt)
        case _:
            msg = "it has the fields of no known row"
            raise ValueError(msg)


def _unpack_region(fields: Sequence[Any]) -> RegionRow:
    match fields:
        case [bytes(tier), int(offset), int(first), (4 | 8) as size, bytes(raw), int(checksum)]:
            offsets = array(_TYPECODES[size])
            if raw and len(raw) % size == 0:
                offsets.frombytes(raw)
                return RegionRow(tier, offset, first, offsets, checksum)
        case _:
            pass
    msg = "a region in it has unknown fields"
    raise ValueError(msg)


def _pack(fields: object) -> bytes:
    packed = msgpack.packb(fields, use_bin_type=True)
    if not isinstance(packed, bytes):  # packb() is typed as optional
        msg = "msgpack gave no bytes"
        raise TypeError(msg)
    return packed
