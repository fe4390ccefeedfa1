"""Makes ``tests/vectors/wire.json``, the golden file that the Python and the JVM tests share.

The file is committed and is the authority: a difference between it and the code is a change of the
wire format. Regenerate it, after such a change was decided, from the root of the repository with

::

    python -m tests.protocol.wire_vectors
"""

import json
import struct
from pathlib import Path
from typing import Any

import crc32c
import msgpack
from msgspec.structs import astuple

from sluice.protocol import schema as m
from sluice.protocol.events import (
    EVENT_IDS,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CustomEvent,
    EndOfData,
    EndOfPartition,
    Event,
    encode_end_of_partition,
    encode_event,
)
from sluice.protocol.limits import MAX_CREDIT, MAX_I64, MAX_U32, MAX_U64, MIN_I64, PREFIX_BYTES
from sluice.protocol.schema import encode

VECTORS = Path(__file__).parent.parent / "vectors" / "wire.json"

BLOCK_HEADER = struct.Struct(">qIIIIBBH")
FIRST_BLOCK = 1
LAST_BLOCK = 2

UNICODE = "Großrechner-日本-🦀"
LONGEST = "🦀" * 256
"""256 characters: 512 UTF-16 units and 1024 bytes, so a limit on either of those shows."""

MESSAGES: tuple[tuple[str, m.Message, bytes], ...] = (
    (
        "hello of a consumer",
        m.Hello("sluice", 1, 1, m.ROLE_CONSUMER, "app-20250101-0001", b"", 0, 0, 0, "task 7.0"),
        b"",
    ),
    ("hello of a peer", m.Hello("sluice", 1, 1, m.ROLE_PEER, "", b"", 32768, 0, 0, "tm-a"), b""),
    (
        "hello with the largest values",
        m.Hello(
            "sluice",
            MAX_U32,
            MAX_U32,
            MAX_U32,
            LONGEST,
            bytes(range(256)),
            MAX_U32,
            MAX_U32,
            MAX_U32,
            UNICODE,
        ),
        b"",
    ),
    (
        "hello ack",
        m.HelloAck(1, "tm-a", 32768, 0, 0, "host-a.example", 7337, "0123456789abcdef", 1, 2),
        b"",
    ),
    (
        "hello ack with the largest values",
        m.HelloAck(
            MAX_U32, LONGEST, MAX_U32, MAX_U32, MAX_U32, UNICODE, 65535, LONGEST, 65535, 256
        ),
        b"",
    ),
    ("challenge", m.Challenge(bytes(range(32))), b""),
    ("proof", m.Proof(bytes(range(255, 223, -1))), b""),
    ("partition request", m.PartitionRequest(1, "app-1", 3, [7, 9, 1000], 0, 4, 2), b""),
    (
        "partition request with the largest values and no credit",
        m.PartitionRequest(
            MAX_U32, UNICODE, MAX_U32, [MIN_I64, -1, 0, MAX_I64], MAX_U32, MAX_U32, 0
        ),
        b"",
    ),
    ("buffer of 16 bytes", m.BufferResponse(1, 0, 2, m.DATA), bytes(range(16))),
    ("buffer of no bytes", m.BufferResponse(1, 1, 0, m.DATA), b""),
    (
        "buffer with the largest values",
        m.BufferResponse(MAX_U32, MAX_U32, MAX_U32, m.DATA),
        b"\xff",
    ),
    (
        "end of partition",
        m.BufferResponse(1, 2, 0, m.EVENT),
        encode_end_of_partition(1_000_000, 31),
    ),
    (
        "end of partition without data",
        m.BufferResponse(1, 0, 0, m.EVENT),
        encode_end_of_partition(0, 0),
    ),
    (
        "end of partition with the largest totals",
        m.BufferResponse(128, 65536, 0, m.EVENT),
        encode_end_of_partition(MAX_U64, MAX_U64),
    ),
    (
        "checkpoint barrier that blocks",
        m.BufferResponse(1, 3, 2, m.BLOCKING_EVENT),
        encode_event(CheckpointBarrier(7, 1_700_000_000_000, False)),
    ),
    (
        "checkpoint barrier that overtakes",
        m.BufferResponse(1, 4, 2, m.PRIORITY_EVENT),
        encode_event(CheckpointBarrier(8, 1_700_000_000_001, True)),
    ),
    (
        "buffer with a checksum, which begins with the channel's number",
        m.ChecksummedBuffer(1, 5, 3, m.DATA, crc32c.crc32c(bytes(range(16)), 1)),
        bytes(range(16)),
    ),
    (
        "checkpoint barrier with a checksum",
        m.ChecksummedBuffer(
            7,
            6,
            0,
            m.BLOCKING_EVENT,
            crc32c.crc32c(encode_event(CheckpointBarrier(9, 1, False)), 7),
        ),
        encode_event(CheckpointBarrier(9, 1, False)),
    ),
    (
        "empty buffer with the largest values and a checksum",
        m.ChecksummedBuffer(MAX_U32, MAX_U32, MAX_U32, m.DATA, crc32c.crc32c(b"", MAX_U32)),
        b"",
    ),
    ("add credit", m.AddCredit(1, 2), b""),
    ("add credit, the most that a channel may hold", m.AddCredit(1, MAX_CREDIT), b""),
    ("add credit with the largest values", m.AddCredit(MAX_U32, MAX_U32), b""),
    ("backlog announcement", m.BacklogAnnouncement(1, 14), b""),
    ("resume consumption", m.ResumeConsumption(1), b""),
    ("cancel partition request", m.CancelPartitionRequest(200), b""),
    ("task event", m.TaskEvent(1, 5), b"\x91\x05"),
    ("task event without payload", m.TaskEvent(1, MAX_U32), b""),
    (
        "error of a channel",
        m.ErrorResponse(
            1, 20, 2, False, "Map output was never committed", "attempt 7", "10.0 s", 7
        ),
        b"",
    ),
    (
        "error of the connection, nil fields and empty strings",
        m.ErrorResponse(None, 61, 1, True, "", "", "", None),
        b"",
    ),
    (
        "error with a long unicode message",
        m.ErrorResponse(MAX_U32, MAX_U32, 1, False, UNICODE * 20, UNICODE, UNICODE, MIN_I64),
        b"",
    ),
    ("close request", m.CloseRequest(), b""),
    ("ping", m.Ping(1), b""),
    ("pong with the largest nonce", m.Pong(MAX_U64), b""),
    ("pipelined data", m.PipelinedData(1, 3, m.DATA), b"buffer bytes"),
    (
        "pipelined event for every subpartition",
        m.PipelinedData(1, m.EVERY_SUBPARTITION, m.EVENT),
        encode_event(EndOfData()),
    ),
    (
        "open pipelined partition",
        m.OpenPipelinedPartition(
            1, 3, 42, 4, m.PARTITION_PIPELINED_BOUNDED, m.CONSUME_AT_FIRST_OUTPUT
        ),
        b"",
    ),
    (
        "open pipelined partition with the largest values",
        m.OpenPipelinedPartition(MAX_U32, MAX_U32, MIN_I64, MAX_U32, 2, 2),
        b"",
    ),
    ("open partition", m.OpenPartition(1, 3, 42, 200), b""),
    (
        "open partition with the largest values",
        m.OpenPartition(MAX_U32, MAX_U32, MAX_I64, MAX_U32),
        b"",
    ),
    ("partition opened", m.PartitionOpened(1), b""),
    ("begin region", m.BeginRegion(1, 0, 0, [100, 0, 70000, 5], 0xE3069283), b""),
    ("begin region of no subpartitions", m.BeginRegion(1, 1, 0, [], 0), b""),
    ("begin region, all empty", m.BeginRegion(1, 2, 3, [0] * 20, 0), b""),
    ("begin region of every subpartition", m.BeginRegion(1, 0, m.EVERY_SUBPARTITION, [9], 7), b""),
    (
        "begin region with the largest values",
        m.BeginRegion(MAX_U32, MAX_U32, MAX_U32, [MAX_U64, 0, 127, 128, 255, 256], MAX_U32),
        b"",
    ),
    ("region opened", m.RegionOpened(1, 0, 262144), b""),
    ("region opened with the largest values", m.RegionOpened(MAX_U32, MAX_U32, MAX_U32), b""),
    ("attach a new region area", m.AttachRegionArea("", 8 << 20), b""),
    ("attach a known region area", m.AttachRegionArea("0123456789abcdef" * 2, 0), b""),
    ("attach a region area with the largest values", m.AttachRegionArea(LONGEST, MAX_U64), b""),
    (
        "region area attached",
        m.RegionAreaAttached(
            "0123456789abcdef" * 2, "/dev/shm/sluice-0/areas/" + "0123456789abcdef" * 2, 8 << 20
        ),
        b"",
    ),
    ("no region area attached", m.RegionAreaAttached("", "", 0), b""),
    (
        "region area attached with the largest values",
        m.RegionAreaAttached(LONGEST, UNICODE * 20, MAX_U64),
        b"",
    ),
    (
        "shared region",
        m.SharedRegion(1, 0, 0, [100, 0, 70000, 5], 0xE3069283, 2 << 20),
        b"",
    ),
    (
        "shared region of every subpartition",
        m.SharedRegion(1, 0, m.EVERY_SUBPARTITION, [9], 7, 0),
        b"",
    ),
    (
        "shared region with the largest values",
        m.SharedRegion(
            MAX_U32, MAX_U32, MAX_U32, [MAX_U64, 0, 127, 128, 255, 256], MAX_U32, MAX_U64
        ),
        b"",
    ),
    ("region data", m.RegionData(1, 0), b"region bytes"),
    ("region data with the largest offset", m.RegionData(MAX_U32, MAX_U64), b"\x00"),
    ("finish partition", m.FinishPartition(1, 70105, 1), b""),
    ("finish partition with the largest totals", m.FinishPartition(1, MAX_U64, MAX_U32), b""),
    ("partition finished", m.PartitionFinished(1), b""),
    ("resume partition", m.ResumePartition(1, 7, MIN_I64, 2000), b""),
    ("partition resumed", m.PartitionResumed(1, 3, MAX_U64, committed=False), b""),
    ("committed partition resumed", m.PartitionResumed(MAX_U32, 0, 0, committed=True), b""),
    ("secure region", m.SecureRegion(1, 2), b""),
    ("region secured", m.RegionSecured(1, MAX_U32), b""),
    ("abort partition", m.AbortPartition(1), b""),
    ("partition aborted", m.PartitionAborted(1), b""),
    (
        "open gate of two channels",
        m.OpenGate(
            1,
            3,
            0,
            1,
            2,
            [
                m.GateChannel(2, "tm-a", "host-a.example", 7337, [1, 2, 3]),
                m.GateChannel(3, "tm-b", "2001:db8::1", 7337, [MAX_I64]),
            ],
        ),
        b"",
    ),
    ("open gate without channels", m.OpenGate(1, 3, 0, 1, 2, []), b""),
    (
        "open gate with the largest values",
        m.OpenGate(
            MAX_U32,
            MAX_U32,
            MAX_U32,
            MAX_U32,
            MAX_U32,
            [m.GateChannel(MAX_U32, LONGEST, UNICODE, 65535, list(range(-40, 300, 17)))],
        ),
        b"",
    ),
    ("gate opened", m.GateOpened(1), b""),
    ("close gate", m.CloseGate(1), b""),
    ("gate closed", m.GateClosed(MAX_U32), b""),
    ("release shuffle", m.ReleaseShuffle(3), b""),
    ("shuffle released", m.ShuffleReleased(3, MAX_U64), b""),
    ("release application", m.ReleaseApplication(), b""),
    ("application released", m.ApplicationReleased(1 << 40), b""),
    ("outputs lost", m.OutputsLost(3, [0, 17, 1 << 40, -1]), b""),
    ("replicate partition", m.ReplicatePartition(0, 2, False), b""),
    ("replicate partition before it is finished", m.ReplicatePartition(MAX_U32, 8, True), b""),
    ("copy of a map output", m.CopyOf(1, "tm-a", 2, False), b""),
    ("moved map output", m.CopyOf(MAX_U32, LONGEST, 1, True), b""),
    ("checksum of a copy", m.CopyChecksum(1, MAX_U32), b""),
    (
        "report of damage",
        m.ReportDamage(3, 0, MAX_U32, "tm-b", "host-b.example", 65535, [MAX_I64, 1, -1]),
        b"",
    ),
    ("report of damage passed on", m.VerifyOutputs(LONGEST, 3, 5, 6, [1 << 40]), b""),
    ("known TaskManager", m.KnownTaskManager("tm-b", "2001:db8::1", 7337), b""),
    (
        "member that reports itself",
        m.MemberReport(
            "tm-b", "2001:db8::1", 7337, 7338, 0, 1, "node-b", "zone-1", m.MEMBER_ACTIVE, 1 << 40, 7
        ),
        b"",
    ),
    (
        "draining member with the longest names",
        m.MemberReport(
            LONGEST, LONGEST, 65535, 0, 255, 256, LONGEST, "", m.MEMBER_DRAINING, MAX_I64, MAX_U32
        ),
        b"",
    ),
    ("replicate to the remote tier", m.ReplicateToRemote(0, False), b""),
    ("replicate to the remote tier before the commit", m.ReplicateToRemote(MAX_U32, True), b""),
    (
        "trace of a task",
        m.TraceContext(3, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 7, 1 << 40),
        b"",
    ),
    ("trace to begin", m.TraceContext(MAX_U32, "", None, None), b""),
    ("outputs in the remote tier", m.OutputsRemote(3, [0, 17, 1 << 40, -1]), b""),
    ("outputs held", m.OutputsHeld(3, [0, 17, 1 << 40, -1]), b""),
    (
        "outputs moved",
        m.OutputsMoved(MAX_U32, 3, "tm-b", "host-b.example", 65535, [MAX_I64, 1, 2]),
        b"",
    ),
    ("move noted", m.MoveNoted(MAX_U32), b""),
    ("release map attempts", m.ReleaseAttempts(3, 1 << 40), b""),
    ("release of every map attempt but one", m.ReleaseAttempts(MAX_U32, MAX_I64), b""),
    ("check outputs", m.CheckOutputs(1, 3, [0, 17, 1 << 40, -1]), b""),
    ("outputs checked", m.OutputsChecked(MAX_U32), b""),
    ("watch consumption", m.WatchConsumption(MAX_U32), b""),
    ("partition consumed", m.PartitionConsumed(MAX_U32), b""),
)

EVENTS: tuple[tuple[str, Event], ...] = (
    ("end of partition", EndOfPartition(1_000_000, 31)),
    ("end of partition with the largest totals", EndOfPartition(MAX_U64, MAX_U64)),
    ("aligned barrier", CheckpointBarrier(7, 1_700_000_000_000, False)),
    ("unaligned barrier", CheckpointBarrier(MAX_U64, MAX_U64, True)),
    ("cancelled checkpoint", CancelCheckpointMarker(7)),
    ("end of data", EndOfData()),
    ("custom event", CustomEvent("watermark", bytes(range(16)))),
    ("custom event without payload", CustomEvent(UNICODE, b"")),
)

_LONG_NAME = "x" * 257


def _malformed() -> list[tuple[str, bytes, str]]:
    pack = msgpack.packb
    return [
        ("no msgpack", b"\xc1", "0xc1 is never used by msgpack"),
        ("cut array", b"\x95\x04\x01", "array of 5 with 2 elements"),
        ("bytes behind", pack([11]) + b"\xc0", "extra bytes after the array"),
        ("array longer than any frame", b"\xdd\xff\xff\xff\xff\x04", "array of 2^32 - 1"),
        (
            "four million lengths claimed",
            bytes.fromhex("96 16 01 00 00 dd003d0900"),
            "an array that claims more elements than there are bytes",
        ),
        ("integer", pack(4), "not an array"),
        ("map", pack({"a": 2}), "not an array"),
        ("empty array", pack([]), "no type id"),
        ("type id as string", pack(["4", 1, 0, 0, 0]), "type id is not an integer"),
        ("type id true", pack([True]), "type id is not an integer"),
        ("type id as float", pack([11.0]), "type id is not an integer"),
        ("unknown type id 0", pack([0]), "unknown message type"),
        ("unknown type id 23", pack([23, 1]), "unknown message type"),
        ("unknown type id 2^63", pack([1 << 63]), "unknown message type"),
        ("field too few", pack([4, 1, 0, 0]), "wrong number of fields"),
        ("field too many", pack([5, 1, 2, 3]), "wrong number of fields"),
        ("hello ack too short", pack([2, 1, "tm", 1, 0, 0, "h", 1]), "no instance id"),
        ("hello ack too long", pack([2, 1, "tm", 1, 0, 0, "h", 1, "i", 0]), "9 fields of 8"),
        ("hello ack of instance 7", pack([2, 1, "tm", 1, 0, 0, "h", 1, 7]), "number for a name"),
        ("field on an empty message", pack([11, None]), "wrong number of fields"),
        ("channel negative", pack([7, -1]), "u32 below 0"),
        ("channel above u32", pack([7, MAX_U32 + 1]), "u32 above 2^32 - 1"),
        ("channel nil", pack([7, None]), "u32 is nil"),
        ("channel true", pack([7, True]), "u32 is a bool"),
        ("channel float", pack([7, 1.0]), "u32 is a float"),
        ("channel string", pack([7, "1"]), "u32 is a string"),
        ("data type 4", pack([4, 1, 0, 0, 4]), "data type is 0 to 3"),
        ("pipelined data type 4", pack([15, 1, 0, 4]), "data type is 0 to 3"),
        ("unused number 14", pack([14, 1, 4096]), "no message has this number"),
        ("partition type 5", pack([29, 1, 3, 42, 4, 5, 0]), "partition type is 0 to 4"),
        ("consumption negative", pack([29, 1, 3, 42, 4, 1, -1]), "consumption is 0 to 2"),
        (
            "member state 2",
            pack([64, "tm", "h", 1, 1, 0, 1, "", "", 2, 0, 0]),
            "member state is 0 or 1",
        ),
        ("credit 0", pack([5, 1, 0]), "credit is at least 1"),
        ("gate credit 0", pack([30, 1, 3, 0, 1, 0, []]), "initial credit is at least 1"),
        ("no subpartitions", pack([20, 1, 3, 42, 0]), "num_subpartitions is at least 1"),
        ("attempt above i64", pack([20, 1, 3, MAX_I64 + 1, 1]), "i64 above 2^63 - 1"),
        ("attempts empty", pack([3, 1, "app", 3, [], 0, 1, 2]), "no map attempt ids"),
        ("attempts nil", pack([3, 1, "app", 3, None, 0, 1, 2]), "list is nil"),
        ("attempt nil", pack([3, 1, "app", 3, [None], 0, 1, 2]), "i64 is nil"),
        ("length negative", pack([22, 1, 0, 0, [-1], 0]), "u64 below 0"),
        ("length as string", pack([22, 1, 0, 0, ["1"], 0]), "u64 is a string"),
        ("offset negative", pack([24, 1, -1]), "u64 below 0"),
        ("fault 0", pack([10, None, 1, 0, False, "", "", "", None]), "fault is 1 or 2"),
        ("retryable 0", pack([10, None, 1, 1, 0, "", "", "", None]), "bool is an integer"),
        ("message nil", pack([10, None, 1, 1, True, None, "", "", None]), "str is nil"),
        ("ping nonce negative", pack([12, -1]), "u64 below 0"),
        (
            "name of 257 characters",
            pack([1, "sluice", 1, 1, 3, "app", b"", 0, 0, 0, _LONG_NAME]),
            "name above 256 characters",
        ),
        (
            "token as string",
            pack([1, "sluice", 1, 1, 3, "app", "", 0, 0, 0, "n"]),
            "token is not bytes",
        ),
        (
            "application as bytes",
            pack([1, "sluice", 1, 1, 3, b"app", b"", 0, 0, 0, "n"]),
            "str is bytes",
        ),
        (
            "name not UTF-8",
            pack([1, "sluice", 1, 1, 3, "app", b"", 0, 0, 0, "AB"]).replace(b"AB", b"\xc3\x28"),
            "str is not UTF-8",
        ),
        ("port above u16", pack([2, 1, "tm", 32768, 0, 0, "host", 65536, "i"]), "port above 65535"),
        ("gate channels nil", pack([30, 1, 3, 0, 1, 2, None]), "list is nil"),
        ("gate channel short", pack([30, 1, 3, 0, 1, 2, [[2, "tm", "h", 1]]]), "4 fields of 5"),
        (
            "gate channel without attempts",
            pack([30, 1, 3, 0, 1, 2, [[2, "tm", "h", 1, []]]]),
            "no map attempt ids",
        ),
        (
            "gate channel with a bad port",
            pack([30, 1, 3, 0, 1, 2, [[2, "tm", "h", 70000, [1]]]]),
            "port above 65535",
        ),
        ("extension", pack([7, msgpack.ExtType(5, b"x")]), "u32 is an extension"),
        ("deep nesting", b"\x92\x07" + b"\x91" * 2000 + b"\x00", "arrays nested 2000 deep"),
    ]


BLOCKS: tuple[tuple[str, int, int, int, int, bytes], ...] = (
    # name, map attempt id, subpartition, flags, number, stored bytes
    ("only block", 42, 7, FIRST_BLOCK | LAST_BLOCK, 0, b"123456789"),
    ("first of several", 42, 8, FIRST_BLOCK, 0, bytes(range(256))),
    ("middle", 42, 8, 0, 1, b"\x00" * 32),
    ("last of several", 42, 8, LAST_BLOCK, 2, b"\xff" * 32),
    ("one byte", 0, 0, FIRST_BLOCK | LAST_BLOCK, 0, b"\x00"),
    ("largest values", MAX_I64, MAX_U32, LAST_BLOCK, 65535, b"largest"),
    ("smallest map attempt id", MIN_I64, 0, 0, 256, "日本🦀".encode()),
    ("number after the largest", 1, 2, 0, 0, b"number 65536 modulo 2^16"),
)


def _plain(value: Any) -> Any:
    if isinstance(value, m.GateChannel):
        value = astuple(value)
    if isinstance(value, bytes):
        return {"bytes_hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def encode_block(
    map_attempt_id: int, subpartition: int, flags: int, number: int, stored: bytes
) -> bytes:
    """Make a block with codec 0 as docs/reference/wire.md describes it."""
    header = BLOCK_HEADER.pack(
        map_attempt_id,
        subpartition,
        len(stored),
        len(stored),
        crc32c.crc32c(stored),
        0,
        flags,
        number,
    )
    return header + stored


def build() -> dict[str, list[dict[str, Any]]]:
    """Make the content of the golden file from the code as it is."""
    messages = []
    for name, message, payload in MESSAGES:
        head = encode(message, len(payload))
        messages.append(
            {
                "name": name,
                "type": type(message).__name__,
                "fields": _plain(astuple(message)),
                "control_hex": head[PREFIX_BYTES:].hex(),
                "payload_hex": payload.hex(),
                "frame_hex": (head + payload).hex(),
            }
        )
    blocks = [
        {
            "name": name,
            "map_attempt_id": attempt,
            "subpartition": subpartition,
            "raw_length": len(stored),
            "codec": 0,
            "flags": flags,
            "number": number,
            "stored_hex": stored.hex(),
            "block_hex": encode_block(attempt, subpartition, flags, number, stored).hex(),
        }
        for name, attempt, subpartition, flags, number, stored in BLOCKS
    ]
    malformed = [
        {"name": name, "control_hex": control.hex(), "reason": reason}
        for name, control, reason in _malformed()
    ]
    events = [
        {
            "name": name,
            "type": type(event).__name__,
            "id": EVENT_IDS[type(event)],
            "fields": _plain(astuple(event)),
            "payload_hex": encode_event(event).hex(),
        }
        for name, event in EVENTS
    ]
    return {"messages": messages, "events": events, "blocks": blocks, "malformed": malformed}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(build(), indent=1) + "\n", encoding="utf-8")
