"""The manifest of a map output that moved to the remote tier, as msgpack.

::

    [1, byte order, subpartitions, [[object, first subpartition, item size, offsets, crc32c], ...]]
                                    [..., numbers]

``offsets`` are the cumulative offsets of a region, and ``numbers`` those of its subpartitions, as
in the journal; the object of an empty region has no name.
"""

import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgpack

from ..stored_outputs import MapOutput

_VERSION: Final = 1
_TYPES: Final = [int, str, int, tuple]
_REGION_TYPES: Final = [str, int, int, bytes, int]
_SPARSE_REGION_TYPES: Final = [*_REGION_TYPES, bytes]
_NUMBER_BYTES: Final = 4
_TYPECODES: Final = {4: "I", 8: "Q"}


class MovedRegion(NamedTuple):
    """A region in a manifest. ``name`` is empty for an empty region."""

    name: str
    first_subpartition: int
    offsets: "array[int]"
    crc32c: int
    numbers: "array[int] | None" = None


class Manifest(NamedTuple):
    """A map output that moved."""

    num_subpartitions: int
    regions: tuple[MovedRegion, ...]


def pack_manifest(output: MapOutput, names: Sequence[str]) -> bytes:
    """Pack the manifest of a map output.

    Args:
        output: The map output.
        names: Names of the objects of its regions.
    """
    regions = [
        (
            name,
            region.first_subpartition,
            region.offsets.itemsize,
            region.offsets.tobytes(),
            region.crc32c,
            *(() if region.numbers is None else (region.numbers.tobytes(),)),
        )
        for name, region in zip(names, output.regions, strict=True)
    ]
    packed = msgpack.packb(
        (_VERSION, sys.byteorder, output.num_subpartitions, regions), use_bin_type=True
    )
    return bytes(packed)


def unpack_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: The bytes are not a manifest, or of another version.
    """
    try:
        fields = msgpack.unpackb(data, use_list=False, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        msg = f"not msgpack: {error}"
        raise ValueError(msg) from error
    if type(fields) is not tuple or [*map(type, fields)] != _TYPES or fields[0] != _VERSION:
        msg = "not a manifest of this version"
        raise ValueError(msg)
    _, byteorder, num_subpartitions, regions = fields
    return Manifest(num_subpartitions, tuple(_region(each, byteorder) for each in regions))


def _region(fields: Any, byteorder: str) -> MovedRegion:
    types = [*map(type, fields)] if type(fields) is tuple else []
    if types in (_REGION_TYPES, _SPARSE_REGION_TYPES):
        name, first, size, raw, checksum, *sparse = fields
        typecode = _TYPECODES.get(size)
        if typecode is not None and raw and len(raw) % size == 0:
            offsets = array(typecode, raw)
            numbers = None
            if sparse and len(sparse[0]) == (len(offsets) - 1) * _NUMBER_BYTES:
                numbers = array("I", sparse[0])
            if byteorder != sys.byteorder:
                offsets.byteswap()
                if numbers is not None:
                    numbers.byteswap()
            if (
                not offsets[0]
                and all(a <= b for a, b in pairwise(offsets))
                and (numbers is None) != bool(sparse)
                and all(a < b for a, b in pairwise(numbers or ()))
            ):
                return MovedRegion(name, first, offsets, checksum, numbers)
    msg = "a region in it has unknown fields"
    raise ValueError(msg)
