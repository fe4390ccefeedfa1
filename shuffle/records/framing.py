"""How records lie in the stream of a channel: a 4-byte big-endian length, then that many bytes.

The end of a buffer may cut both anywhere. A batch of records is sorted by subpartition and framed
before any of it is written.
"""

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from ..errors import MalformedElement, RecordTooLarge, no_such_subpartition
from ..partition.result_partition_writer import ALL_SUBPARTITIONS

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""Memory of single bytes. A memoryview is borrowed; bytes and bytearrays belong to the receiver."""

LENGTH: Final = struct.Struct(">I")
"""The length prefix."""

LENGTH_BYTES: Final = LENGTH.size

DEFAULT_MAXIMUM_RECORD_BYTES: Final = 1 << 30
"""Longest record: half of the longest array of a JVM, far above any sensible record."""

_PREFIXES_KEPT: Final = 4096


class _Prefixes(dict[int, bytes]):
    """Caches packed lengths, because in a batch most lengths repeat. Bounded."""

    def __missing__(self, length: int) -> bytes:
        prefix = LENGTH.pack(length)
        if len(self) < _PREFIXES_KEPT:
            self[length] = prefix
        return prefix


_prefix_of: Final = _Prefixes().__getitem__


def join_frames(payloads: Sequence[BytesLike], maximum_record_bytes: int) -> bytes:
    """Return the frames of many records in one piece.

    Args:
        payloads: The records' bytes, at least one.
        maximum_record_bytes: Longer records are refused.

    Raises:
        RecordTooLarge: A record is longer.
        MalformedElement: A view has items of more than a byte.
    """
    lengths = list(map(len, payloads))
    longest = max(lengths)
    if longest > maximum_record_bytes:
        raise RecordTooLarge(longest, maximum_record_bytes)
    frames: list[BytesLike] = [b""] * (2 * len(lengths))
    frames[::2] = map(_prefix_of, lengths)
    frames[1::2] = payloads
    joined = b"".join(frames)
    if len(joined) != sum(lengths) + LENGTH_BYTES * len(lengths):  # len() of a view counts items
        raise MalformedElement(
            "A record of a batch is a view of items longer than a byte",
            remedy='Serialize to bytes, or to views of single bytes: view.cast("B")',
        )
    return joined


class BatchPart(NamedTuple):
    """The records of a batch that go to the same subpartition.

    Attributes:
        subpartition: The subpartition, or ``ALL_SUBPARTITIONS``.
        frames: The frames of all the records.
        payloads: The bytes of each record.
    """

    subpartition: int
    frames: bytes
    payloads: Sequence[BytesLike]


def batch_parts(
    payloads: Sequence[BytesLike],
    subpartitions: Sequence[int] | int,
    num_subpartitions: int,
    maximum_record_bytes: int,
) -> list[BatchPart]:
    """Sort and frame a batch; the order within each subpartition stays.

    Args:
        payloads: The bytes of each record.
        subpartitions: The subpartition of each record, or the one of all records.
        num_subpartitions: Number of subpartitions of the partition.
        maximum_record_bytes: Longer records are refused.

    Raises:
        InvalidSubpartition: A subpartition does not exist.
        RecordTooLarge: A record is too long.
        ValueError: There are more or fewer subpartitions than records.
    """
    groups: Sequence[tuple[int, Sequence[BytesLike]]]
    if isinstance(subpartitions, int):
        groups = [(subpartitions, payloads)] if payloads else []
    else:
        groups = _grouped(payloads, subpartitions)
    for subpartition, _ in groups:
        if not ALL_SUBPARTITIONS <= subpartition < num_subpartitions:
            raise no_such_subpartition(subpartition, num_subpartitions)
    return [
        BatchPart(subpartition, join_frames(group, maximum_record_bytes), group)
        for subpartition, group in groups
    ]


def _grouped(
    payloads: Sequence[BytesLike], subpartitions: Sequence[int]
) -> list[tuple[int, list[BytesLike]]]:
    groups: defaultdict[int, list[BytesLike]] = defaultdict(list)
    for payload, subpartition in zip(payloads, subpartitions, strict=True):
        groups[subpartition].append(payload)
    if ALL_SUBPARTITIONS not in groups or len(groups) == 1:
        return list(groups.items())
    # A broadcast record must keep its place among the records of every subpartition.
    pairs = zip(subpartitions, payloads, strict=True)
    return [
        (subpartition, [payload for _, payload in run])
        for subpartition, run in groupby(pairs, key=lambda pair: pair[0])
    ]
