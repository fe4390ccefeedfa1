"""Makes ``tests/vectors/blocks.json``: what Python clients write, from the tables of the wire page.

Nothing of the code under test has a part in it. The file is committed and is the authority; after
a change of the format was decided, regenerate it from the root of the repository with

::

    python -m tests.shuffle.partition.block_vectors
"""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack
from typing import Any

import lz4.block
import msgpack
from crc32c import crc32c

VECTORS = Path(__file__).parents[2] / "vectors" / "blocks.json"

DATA, EVENT, BLOCKING_EVENT = 0, 1, 3
NONE, LZ4 = 0, 1

BLOCKS: list[tuple[str, bytes, int, int]] = [
    ("data", b"abc", DATA, NONE),
    ("data of one byte, the largest", b"\xff", DATA, NONE),
    ("empty data", b"", DATA, NONE),
    ("data, compressed", b"sluice " * 100, DATA, LZ4),
    ("data that compression would not make smaller", bytes(range(64)), DATA, NONE),
    ("a custom event", msgpack.packb([5, "name", b"\x01\x02"]), EVENT, NONE),
    (
        "a barrier that blocks",
        msgpack.packb([2, 7, 1_700_000_000_000, False]),
        BLOCKING_EVENT,
        NONE,
    ),
]

RECORDS = [b"", b"a", b"a record that spans buffers", bytes(range(40)), b"\x00\x00\x00\x01"]
BUFFER_BYTES = 16


def block(payload: bytes, data_type: int, codec: int) -> bytes:
    """Build a block: header, checksum, stored bytes."""
    stored = lz4.block.compress(payload, store_size=False) if codec == LZ4 else payload
    head = pack(">IIB", len(stored), len(payload), codec | data_type << 4)
    return head + pack(">I", crc32c(head + stored)) + stored


def build() -> dict[str, list[dict[str, Any]]]:
    """Build the content of the file."""
    stream = b"".join(pack(">I", len(record)) + record for record in RECORDS)
    buffers = [stream[at : at + BUFFER_BYTES] for at in range(0, len(stream), BUFFER_BYTES)]
    barrier = msgpack.packb([2, 8, 1, False])
    content = [*((each, DATA) for each in buffers), (barrier, BLOCKING_EVENT)]
    return {
        "blocks": [
            {
                "name": name,
                "payload_hex": payload.hex(),
                "data_type": data_type,
                "codec": codec,
                "block_hex": block(payload, data_type, codec).hex(),
            }
            for name, payload, data_type, codec in BLOCKS
        ],
        "subpartitions": [
            {
                "name": "records that span buffers of 16 bytes, and a barrier behind them",
                "records_hex": [record.hex() for record in RECORDS],
                "buffers_hex": [buffer.hex() for buffer in buffers],
                "event_hex": barrier.hex(),
                "stored_hex": b"".join(block(each, kind, NONE) for each, kind in content).hex(),
            }
        ],
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(build(), indent=1) + "\n", encoding="utf-8")
