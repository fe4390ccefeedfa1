"""How records lie in the stream of a channel: a 4-byte big-endian length, then that many bytes.

Both may be cut anywhere by the end of a buffer.
"""

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from shuffle.records.errors import MalformedElement, RecordTooLarge

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
