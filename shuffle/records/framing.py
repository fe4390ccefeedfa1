"""How records lie in the stream of a channel: a 4-byte big-endian length, then that many bytes.

The end of a buffer may cut both anywhere. A batch of records is sorted by subpartition and framed
before any of it is written.
"""

import enum
import functools
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


class SerializationResult(enum.Enum):
    """Whether the record is whole and the buffer full, after a copy."""

    PARTIAL_RECORD_MEMORY_SEGMENT_FULL = (False, True)
    FULL_RECORD_MEMORY_SEGMENT_FULL = (True, True)
    FULL_RECORD = (True, False)

    def __init__(self, is_full_record: bool, is_full_buffer: bool) -> None:
        self.is_full_record: Final = is_full_record
        self.is_full_buffer: Final = is_full_buffer


class DeserializationResult(enum.Enum):
    """Whether a call returned a whole record, and whether the buffer is read to its end."""

    PARTIAL_RECORD = (False, True)
    INTERMEDIATE_RECORD_FROM_BUFFER = (True, False)
    LAST_RECORD_FROM_BUFFER = (True, True)

    def __init__(self, is_full_record: bool, is_buffer_consumed: bool) -> None:
        self.is_full_record: Final = is_full_record
        self.is_buffer_consumed: Final = is_buffer_consumed


class _Prefixes(dict[int, bytes]):
    """Caches packed lengths, because in a batch most lengths repeat. Bounded."""

    def __missing__(self, length: int) -> bytes:
        prefix = LENGTH.pack(length)
        if len(self) < _PREFIXES_KEPT:
            self[length] = prefix
        return prefix


prefix_of: Final = _Prefixes().__getitem__
"""Returns the length prefix of a record of so many bytes."""


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
    if min(lengths) == longest:
        joined = prefix_of(longest).join((b"", *payloads))
    else:
        frames: list[BytesLike] = [b""] * (2 * len(lengths))
        frames[::2] = map(prefix_of, lengths)
        frames[1::2] = payloads
        joined = b"".join(frames)
    if len(joined) != sum(lengths) + LENGTH_BYTES * len(lengths):  # len() of a view counts items
        raise MalformedElement(
            "A record of a batch is a view of items longer than a byte",
            remedy='Serialize to bytes, or to views of single bytes: view.cast("B")',
        )
    return joined


def split_equal_frames(
    stream: bytes, start: int, end: int, least: int = 16
) -> tuple[Sequence[bytes], int]:
    """Take the records at the start of a stream, if they all have one length.

    This takes a few calls for all records, instead of several steps for each.

    Args:
        stream: Frames, one behind the other; the last one may be cut.
        start: Offset of the first frame.
        end: Offset behind the last byte.
        least: If there are fewer records, none is taken.

    Returns:
        The records, and the offset behind the last of them; no record if lengths differ.
    """
    first = start + LENGTH_BYTES
    if first > end:
        return (), start
    prefix = stream[start:first]
    length = LENGTH.unpack(prefix)[0]
    stride = length + LENGTH_BYTES
    count = (end - start) // stride
    if count < least or stream[start + stride : first + stride] != prefix:
        return (), start
    stop = start + count * stride
    for offset in range(LENGTH_BYTES):
        if stream[start + offset : stop : stride] != prefix[offset : offset + 1] * count:
            return (), start
    records: list[bytes] = []
    position = start
    # Powers of two, so that few formats serve any number of records.
    while count:
        taken = 1 << min(count.bit_length() - 1, _MAX_AT_ONCE_BITS)
        records += _frames_of(length, taken).unpack_from(stream, position)
        position += taken * stride
        count -= taken
    return records, stop


_MAX_AT_ONCE_BITS: Final = 9


@functools.lru_cache(maxsize=256)
def _frames_of(length: int, count: int) -> struct.Struct:
    """Return the format of a number of frames whose records have one length."""
    return struct.Struct(f"{LENGTH_BYTES}x{length}s" * count)


class Turns(NamedTuple):
    """The subpartitions of a batch that goes round robin.

    Attributes:
        first: The subpartition of the first record.
        subpartitions: Number of subpartitions that take turns.
    """

    first: int
    subpartitions: int


class BatchPart(NamedTuple):
    """The records of a batch that go to the same subpartition.

    Attributes:
        subpartition: The subpartition, or ``ALL_SUBPARTITIONS``.
        frames: The frames of all the records.
    """

    subpartition: int
    frames: bytes


def batch_parts(
    payloads: Sequence[BytesLike],
    subpartitions: Sequence[int] | Turns | int,
    num_subpartitions: int,
    maximum_record_bytes: int,
) -> list[BatchPart]:
    """Sort and frame a batch; the order within each subpartition stays.

    Args:
        payloads: The bytes of each record.
        subpartitions: The subpartition of each record, or the one of all records, or the turns.
        num_subpartitions: Number of subpartitions of the partition.
        maximum_record_bytes: Longer records are refused.

    Raises:
        CONFIGURATION: A subpartition does not exist.
        RecordTooLarge: A record is too long.
        ValueError: There are more or fewer subpartitions than records.
    """
    groups: Sequence[tuple[int, Sequence[BytesLike]]]
    if isinstance(subpartitions, int):
        groups = [(subpartitions, payloads)] if payloads else []
    elif isinstance(subpartitions, Turns):
        first, count = subpartitions
        groups = [
            ((first + turn) % count, payloads[turn::count])
            for turn in range(min(count, len(payloads)))
        ]
    else:
        groups = _grouped(payloads, subpartitions)
    for subpartition, _ in groups:
        if not ALL_SUBPARTITIONS <= subpartition < num_subpartitions:
            raise no_such_subpartition(subpartition, num_subpartitions)
    return [
        BatchPart(subpartition, join_frames(group, maximum_record_bytes))
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
