"""How records lie in the stream of a channel: a 4-byte big-endian length, then that many bytes.

Both may be cut anywhere by the end of a buffer.

A batch of records, sorted by where they go and framed before anything is written.
"""

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from sluice.shuffle.errors import MalformedElement, RecordTooLarge, no_such_subpartition
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""Memory of single bytes. A memoryview is borrowed; bytes and bytearrays belong to who gets it."""

LENGTH: Final = struct.Struct(">I")
"""The length prefix."""

LENGTH_BYTES: Final = LENGTH.size

DEFAULT_MAXIMUM_RECORD_BYTES: Final = 1 << 30
"""Longest record: half of what a JVM array holds, far above what one should shuffle."""

_PREFIXES_KEPT: Final = 4096


class _Prefixes(dict[int, bytes]):
    """Lengths already packed: in a batch most lengths repeat. Bounded; no more than a cache."""

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
        maximum_record_bytes: None of them may be longer.

    Raises:
        RecordTooLarge: One is.
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
        raise MalformedElement("Records of a batch must be bytes or views of single bytes")
    return joined


class BatchPart(NamedTuple):
    """The records of a batch that go the same way.

    Attributes:
        subpartition: Where they go; ``ALL_SUBPARTITIONS`` is possible.
        frames: All of them, framed.
        payloads: Each of them.
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
        payloads: The records.
        subpartitions: Where each goes, or where all go.
        num_subpartitions: How many there are.
        maximum_record_bytes: Longer records are refused.

    Raises:
        InvalidSubpartition: A record goes where there is no subpartition.
        RecordTooLarge: A record is too long.
        ValueError: Not one subpartition for each record.
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
    # A broadcast record must not change places with one to any of the subpartitions.
    pairs = zip(subpartitions, payloads, strict=True)
    return [
        (subpartition, [payload for _, payload in run])
        for subpartition, run in groupby(pairs, key=lambda pair: pair[0])
    ]
