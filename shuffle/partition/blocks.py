"""The blocks that make up the regions of a stored partition.

::

    stored length u32 | raw length u32 | kind u8 | crc32c u32 | stored bytes

Big endian. ``kind`` has the codec in its lower four bits and the data type in the upper four. The
checksum covers the nine bytes before it and the stored bytes. A block is made of one buffer, or of
one event, and compressed by itself, so that any run of whole blocks can be decoded, wherever the
buffers of the wire cut it. It stays compressed only if that is smaller.
"""

import enum
from struct import Struct
from typing import Final, NamedTuple

import lz4.block
from crc32c import crc32c

from ...protocol.schema import DATA
from ..errors import BlockCorrupt

_HEAD: Final = Struct(">IIB")
_CHECKSUM: Final = Struct(">I")
BLOCK_HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size

MAX_BLOCK_BYTES: Final = 1024 * 1024
"""Largest raw length that a decoder accepts: the largest segment that can be configured."""


class BlockCodec(enum.IntEnum):
    """Compression of a block."""

    NONE = 0
    LZ4 = 1


class EncodedBlock(NamedTuple):
    """A block to store; ``stored`` may be the very memory that was encoded."""

    header: bytes
    stored: bytes | memoryview

    @property
    def length(self) -> int:
        """Length in bytes, header included."""
        return BLOCK_HEADER_BYTES + len(self.stored)


class Block(NamedTuple):
    """A decoded block; ``payload`` may be a view of the data that was fed to the decoder."""

    payload: bytes | memoryview
    data_type: int


class BlockEncoder:
    """Makes blocks, and counts their bytes.

    Args:
        codec: Compression of data; events are never compressed.

    Attributes:
        raw_bytes: Bytes of data and events before compression.
        stored_bytes: Bytes after it, without headers.
    """

    __slots__ = ("codec", "raw_bytes", "stored_bytes")

    def __init__(self, codec: BlockCodec = BlockCodec.LZ4) -> None:
        self.codec: Final = codec
        self.raw_bytes = 0
        self.stored_bytes = 0

    def encode(self, payload: bytes | memoryview, data_type: int = DATA) -> EncodedBlock:
        """Make a block of a payload. Takes some 50 µs for 32 KiB with LZ4."""
        raw_length = len(payload)
        codec = BlockCodec.NONE
        stored: bytes | memoryview = payload
        if self.codec is BlockCodec.LZ4 and data_type == DATA:
            compressed: bytes = lz4.block.compress(payload, store_size=False)
            if len(compressed) < raw_length:
                codec = BlockCodec.LZ4
                stored = compressed
        self.raw_bytes += raw_length
        self.stored_bytes += len(stored)
        head = _HEAD.pack(len(stored), raw_length, codec | data_type << 4)
        return EncodedBlock(head + _CHECKSUM.pack(crc32c(stored, crc32c(head))), stored)


class BlockDecoder:
    """Takes blocks out of a stream of bytes that is cut anywhere.

    Args:
        max_block_bytes: Largest raw length to accept, which bounds the memory of the decoder.

    Attributes:
        stored_bytes: Bytes before decompression, without headers.
        raw_bytes: Bytes after it.
    """

    __slots__ = ("_max_block_bytes", "_partial", "raw_bytes", "stored_bytes")

    def __init__(self, max_block_bytes: int = MAX_BLOCK_BYTES) -> None:
        self.stored_bytes = 0
        self.raw_bytes = 0
        self._max_block_bytes = max_block_bytes
        self._partial = bytearray()

    @property
    def partial_bytes(self) -> int:
        """Bytes of a block that is not complete."""
        return len(self._partial)

    def feed(self, data: bytes | memoryview) -> list[Block]:
        """Take the next bytes of the stream.

        Returns:
            The blocks that are complete now. A payload may be a view of ``data`` and is valid as
            long as ``data`` is: use it, or copy it, before the buffer is recycled.

        Raises:
            BlockCorrupt: A length, the kind or the checksum of a block is wrong.
        """
        view = memoryview(data)
        blocks: list[Block] = []
        while view:
            partial = self._partial
            if partial:
                goal = self._block_length(partial) or BLOCK_HEADER_BYTES
                count = goal - len(partial)
                partial += view[:count]
                view = view[count:]
                if self._block_length(partial) == len(partial):
                    self._partial = bytearray()
                    blocks.append(self._decode(memoryview(partial)))
                continue
            length = self._block_length(view)
            if length is None or length > len(view):
                partial += view
                break
            blocks.append(self._decode(view[:length]))
            view = view[length:]
        return blocks

    def finish(self) -> None:
        """End the stream.

        Raises:
            BlockCorrupt: The stream ends within a block.
        """
        if self._partial:
            raise BlockCorrupt("The data ends within a block", value=f"{len(self._partial)} bytes")

    def _block_length(self, data: bytearray | memoryview) -> int | None:
        """Return the length of the block that begins here; None if its header is incomplete."""
        if len(data) < BLOCK_HEADER_BYTES:
            return None
        stored_length, raw_length, kind = _HEAD.unpack_from(data)
        # A compressed block is smaller than its content, so this bounds the stored length too.
        if raw_length > self._max_block_bytes or stored_length > raw_length:
            raise BlockCorrupt(
                "Length of a block",
                value=f"{stored_length} stored, {raw_length} raw",
                limit=f"{self._max_block_bytes} bytes",
            )
        if kind & 0x0F not in _CODECS or (kind & 0x0F == 0 and stored_length != raw_length):
            raise BlockCorrupt("Kind of a block", value=kind)
        return BLOCK_HEADER_BYTES + int(stored_length)

    def _decode(self, block: memoryview) -> Block:
        _, raw_length, kind = _HEAD.unpack_from(block)
        (expected,) = _CHECKSUM.unpack_from(block, _HEAD.size)
        stored = block[BLOCK_HEADER_BYTES:]
        found = crc32c(stored, crc32c(block[: _HEAD.size]))
        if found != expected:
            raise BlockCorrupt("Checksum of a block", value=f"{found:#x}", limit=f"{expected:#x}")
        payload: bytes | memoryview = stored
        if kind & 0x0F == BlockCodec.LZ4:
            try:
                payload = lz4.block.decompress(stored, uncompressed_size=raw_length)
            except lz4.block.LZ4BlockError as error:
                raise BlockCorrupt("Compressed content of a block", value=error) from error
            if len(payload) != raw_length:
                raise BlockCorrupt("Raw length of a block", value=len(payload), limit=raw_length)
        self.stored_bytes += len(stored)
        self.raw_bytes += raw_length
        return Block(payload, kind >> 4)


_CODECS: Final = frozenset(BlockCodec)
