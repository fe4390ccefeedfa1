"""The input of a fuzzer: streams that could be right, after a few accidents.

A stream is a list of frames. Most are messages of the connection's role with small numbers, so that
they meet channels and partitions that exist; some are any message, or one of the golden vectors.
Then bytes are flipped, frames are cut, doubled and exchanged, and garbage is put between.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAGIC, MAX_EVENT_BYTES, VERSION
from sluice.protocol.schema import encode
from tests.support.strategies import frames

SEGMENT_SIZE_BYTES = 4096
REMOTE_ID = "0123456789abcdef"
"""Another TaskManager, whose answers are made up here."""

SHUFFLE = 1
STORED_ATTEMPTS = (1, 2)
STORED_BYTES = 20_000
SUBPARTITIONS = 2

_VECTORS = Path(__file__).parents[1] / "vectors" / "wire.json"
_GOLDEN: list[bytes] = [
    bytes.fromhex(vector["frame_hex"])
    for vector in json.loads(_VECTORS.read_text(encoding="utf-8"))["messages"]
    if len(vector["frame_hex"]) < 20_000
]


class Step(NamedTuple):
    """Some bytes, and the event behind them."""

    data: bytes
    turns: int
    hold: bool


def frame(message: m.Message, payload: bytes = b"") -> bytes:
    return encode(message, len(payload)) + payload


def hello(role: int, local_id: str = "app") -> bytes:
    """Return the Hello of a role."""
    peer = role == m.ROLE_PEER
    return frame(
        m.Hello(
            MAGIC,
            VERSION,
            VERSION,
            role,
            "" if peer else local_id,
            b"",
            SEGMENT_SIZE_BYTES if peer else 0,
            m.FLOW_CREDIT,
            0,
            "fuzzer",
        )
    )


def map_output(partition: int, attempt: int, size: int = STORED_BYTES) -> list[bytes]:
    """Return the frames of a whole map output of zeros."""
    region = m.BeginRegion(partition, 0, 0, [size - size // 2, size // 2], crc32c(bytes(size)))
    data = [
        frame(m.RegionData(partition, offset), bytes(min(SEGMENT_SIZE_BYTES, size - offset)))
        for offset in range(0, size, SEGMENT_SIZE_BYTES)
    ]
    return [
        frame(m.OpenPartition(partition, SHUFFLE, attempt, SUBPARTITIONS)),
        frame(region),
        *data,
        frame(m.FinishPartition(partition, size, 1)),
    ]


NUMBER = st.integers(0, 3)
COUNT = st.integers(1, 4)
ATTEMPT = st.integers(0, 5)
ATTEMPTS = st.lists(ATTEMPT, min_size=1, max_size=3)
CREDIT = st.integers(1, 6) | st.sampled_from([2**31 - 1, 2**32 - 1])
SIZE = st.sampled_from([0, 1, 100, SEGMENT_SIZE_BYTES - 1, SEGMENT_SIZE_BYTES]) | st.integers(
    0, SEGMENT_SIZE_BYTES
)
DATA_TYPE = st.integers(0, 3)
EVENTS = st.binary(max_size=MAX_EVENT_BYTES) | st.builds(
    encode_end_of_partition, st.integers(0, 20_000), NUMBER
)

DATA_UP = st.one_of(
    st.builds(m.AddCredit, NUMBER, CREDIT).map(frame),
    st.builds(m.ResumeConsumption, NUMBER).map(frame),
    st.builds(m.CancelPartitionRequest, NUMBER).map(frame),
    st.builds(frame, st.builds(m.TaskEvent, NUMBER, NUMBER), st.binary(max_size=40)),
)


@st.composite
def _whole_map_output(draw: st.DrawFn) -> bytes:
    return b"".join(map_output(draw(NUMBER), draw(ATTEMPT), draw(st.integers(0, 12_000))))


@st.composite
def _region(draw: st.DrawFn) -> bytes:
    lengths = draw(st.lists(st.integers(0, 5000), max_size=3))
    checksum = crc32c(bytes(sum(lengths))) if draw(st.booleans()) else 0
    return frame(m.BeginRegion(draw(NUMBER), draw(NUMBER), draw(NUMBER), lengths, checksum))


@st.composite
def _data(draw: st.DrawFn, build: type[m.RegionData] | type[m.PipelinedData]) -> bytes:
    if build is m.RegionData:
        offset = draw(st.sampled_from([0, 1, SEGMENT_SIZE_BYTES, 2**64 - 1]))
        return frame(m.RegionData(draw(NUMBER), offset), bytes(draw(SIZE)))
    subpartition = draw(NUMBER | st.just(2**32 - 1))
    data_type = draw(DATA_TYPE)
    payload = draw(EVENTS) if data_type else bytes(draw(SIZE))
    return frame(m.PipelinedData(draw(NUMBER), subpartition, data_type), payload)


@st.composite
def _gate(draw: st.DrawFn, local_id: str) -> bytes:
    channels = [
        m.GateChannel(
            draw(NUMBER),
            draw(st.sampled_from([local_id, REMOTE_ID, ""])),
            "127.0.0.1",
            1,
            draw(st.just(list(STORED_ATTEMPTS)) | ATTEMPTS),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    start = draw(st.integers(0, 1))
    return frame(
        m.OpenGate(draw(st.integers(4, 6)), SHUFFLE, start, start + draw(COUNT), 2, channels)
    )


_REQUEST = st.builds(
    m.PartitionRequest,
    NUMBER,
    st.sampled_from(["app", "other", ""]),
    st.just(SHUFFLE) | NUMBER,
    st.just(list(STORED_ATTEMPTS)) | ATTEMPTS,
    st.integers(0, 1),
    COUNT,
    CREDIT,
).map(frame)


def _role_frames(role: int, local_id: str) -> st.SearchStrategy[bytes]:
    if role == m.ROLE_PRODUCER:
        return st.one_of(
            _whole_map_output(),
            st.builds(m.OpenPartition, NUMBER, st.just(SHUFFLE), ATTEMPT, COUNT).map(frame),
            st.builds(
                m.OpenPipelinedPartition,
                NUMBER,
                st.just(SHUFFLE),
                ATTEMPT,
                COUNT,
                st.integers(0, 2),
                st.integers(0, 2),
            ).map(frame),
            _region(),
            _data(m.RegionData),
            _data(m.PipelinedData),
            st.builds(m.FinishPartition, NUMBER, st.integers(0, 9000), NUMBER).map(frame),
            st.builds(m.AbortPartition, NUMBER).map(frame),
            st.builds(m.SecureRegion, NUMBER, NUMBER).map(frame),
            st.builds(
                m.AttachRegionArea, st.sampled_from(["", "no such token"]), st.integers(0, 9000)
            ).map(frame),
            st.builds(
                m.SharedRegion,
                NUMBER,
                NUMBER,
                NUMBER,
                st.lists(NUMBER),
                NUMBER,
                st.integers(0, 9000),
            ).map(frame),
        )
    if role == m.ROLE_CONSUMER:
        return st.one_of(
            _gate(local_id), st.builds(m.CloseGate, st.integers(4, 6)).map(frame), DATA_UP
        )
    if role == m.ROLE_PEER:
        return st.one_of(_REQUEST, DATA_UP)
    return st.one_of(
        st.builds(m.ReleaseShuffle, NUMBER).map(frame), st.just(frame(m.ReleaseApplication()))
    )


_CONNECTION = st.sampled_from(
    [frame(m.Ping(7)), frame(m.Pong(7)), frame(m.CloseRequest())]
) | st.builds(
    m.ErrorResponse,
    st.none() | NUMBER,
    NUMBER,
    st.just(1),
    st.booleans(),
    st.just("x"),
    st.just(""),
    st.just(""),
    st.none(),
).map(frame)

_ANY = frames().map(lambda drawn: frame(*drawn)) | st.sampled_from(_GOLDEN)


@st.composite
def _response(draw: st.DrawFn) -> bytes:
    data_type = draw(st.sampled_from([m.DATA, m.DATA, m.DATA, *range(4)]))
    payload = draw(EVENTS) if data_type else bytes(draw(SIZE))
    sequence = draw(NUMBER)
    backlog = draw(NUMBER | st.sampled_from([2**31, 2**32 - 1]))
    return frame(m.BufferResponse(draw(NUMBER), sequence, backlog, data_type), payload)


ANSWERS = st.one_of(
    _response(),
    _response(),
    st.builds(m.BacklogAnnouncement, NUMBER, NUMBER | st.just(2**31)).map(frame),
    _CONNECTION,
    _ANY,
)
"""Frames of a TaskManager that was asked for partitions."""


def _damage(draw: st.DrawFn, stream: list[bytes]) -> None:
    """Let one accident happen to a stream."""
    index = draw(st.integers(0, len(stream) - 1))
    victim = stream[index]
    at = draw(st.integers(0, min(len(victim), 80) - 1)) if victim else 0
    accident = draw(st.sampled_from(["flip", "cut", "double", "exchange", "insert", "drop"]))
    if accident == "flip" and victim:
        flipped = victim[at] ^ draw(st.sampled_from([1, 2, 0x10, 0x80, 0xFF]))
        stream[index] = victim[:at] + bytes([flipped]) + victim[at + 1 :]
    elif accident == "cut":
        stream[index] = victim[:at]
    elif accident == "double":
        stream.insert(index, victim)
    elif accident == "exchange":
        other = draw(st.integers(0, len(stream) - 1))
        stream[index], stream[other] = stream[other], stream[index]
    elif accident == "insert":
        stream.insert(index, draw(st.binary(min_size=1, max_size=40)))
    else:
        del stream[index]


@st.composite
def steps(draw: st.DrawFn, stream: list[bytes]) -> list[Step]:
    """Damage a stream and cut it into reads, with pauses between them."""
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        if stream:
            _damage(draw, stream)
    data = b"".join(stream)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [
        Step(data[start:end], draw(st.integers(0, 3)), draw(st.booleans()))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)
    ]


@st.composite
def requests(draw: st.DrawFn, role: int, local_id: str) -> list[Step]:
    """Draw the messages of a client of a role."""
    usual = _role_frames(role, local_id)
    said = draw(st.lists(usual | usual | _CONNECTION | _ANY, max_size=12))
    return draw(steps([hello(role), *said]))


@st.composite
def answers(draw: st.DrawFn) -> list[Step]:
    """Draw the answers of another TaskManager to partition requests."""
    return draw(steps(draw(st.lists(ANSWERS, max_size=12))))
