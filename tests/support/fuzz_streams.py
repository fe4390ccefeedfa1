"""The input of a fuzzer: streams that could be right, after a few accidents.

A stream is a list of frames. Most are messages of the connection's role with small numbers, so that
they meet channels and partitions that exist; some are any message, or one of the golden vectors.
Then bytes are flipped, frames are cut, doubled and exchanged, and garbage is put between.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAGIC, MAX_EVENT_BYTES, VERSION
from sluice.protocol.schema import encode
from tests.support.strategies import REPLICAS, frames

SEGMENT_SIZE_BYTES = 4096
REMOTE_ID = "0123456789abcdef"
"""Another TaskManager, whose answers are made up here."""

REMOTE_HOST = "192.0.2.1"
"""Its host, as drivers name it."""

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

Frames = dict[type[m.Message], st.SearchStrategy[bytes]]


def _built(kind: type[m.Message], *fields: st.SearchStrategy[Any]) -> Frames:
    return {kind: st.builds(kind, *fields).map(frame)}


_DATA_UP: Frames = {
    **_built(m.AddCredit, NUMBER, CREDIT),
    **_built(m.ResumeConsumption, NUMBER),
    **_built(m.CancelPartitionRequest, NUMBER),
    m.TaskEvent: st.builds(frame, st.builds(m.TaskEvent, NUMBER, NUMBER), st.binary(max_size=40)),
}


@st.composite
def _whole_map_output(draw: st.DrawFn, copied: st.SearchStrategy[bytes]) -> bytes:
    """Draw a map output, sometimes with a frame about its copies."""
    first, *rest = map_output(draw(NUMBER), draw(ATTEMPT), draw(st.integers(0, 12_000)))
    return b"".join([first, draw(st.just(b"") | copied), *rest])


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


_STORED: Frames = {
    **_built(m.OpenPartition, NUMBER, st.just(SHUFFLE), ATTEMPT, COUNT),
    m.BeginRegion: _region(),
    m.RegionData: _data(m.RegionData),
    **_built(m.FinishPartition, NUMBER, st.integers(0, 9000), NUMBER),
    **_built(m.AbortPartition, NUMBER),
}
_NAMES = st.sampled_from([REMOTE_ID, "another", ""])
_KINDS = st.integers(0, 2)


_TRACEPARENTS = st.sampled_from(
    ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-zz-01"]
)


def _trace(number: st.SearchStrategy[int]) -> Frames:
    return _built(m.TraceContext, number, _TRACEPARENTS, st.none() | ATTEMPT, st.none() | ATTEMPT)


def _member(local_id: str) -> Frames:
    return _built(
        m.MemberReport,
        _NAMES | st.just(local_id),
        st.sampled_from([REMOTE_HOST, "127.0.0.1", ""]),
        *(NUMBER, NUMBER, NUMBER, COUNT),
        *(_NAMES, _NAMES),
        *(st.integers(0, 1), NUMBER, NUMBER),
    )


def frames_of(role: int, local_id: str) -> Frames:
    """Return what a client of a role sends beside the messages of all connections, by type."""
    if role == m.ROLE_PRODUCER:
        return {
            **_STORED,
            **_built(
                m.OpenPipelinedPartition, NUMBER, st.just(SHUFFLE), ATTEMPT, COUNT, _KINDS, _KINDS
            ),
            m.PipelinedData: _data(m.PipelinedData),
            **_built(m.WatchConsumption, NUMBER),
            **_built(m.ResumePartition, NUMBER, st.just(SHUFFLE), ATTEMPT, COUNT),
            **_built(m.SecureRegion, NUMBER, NUMBER),
            **_built(m.ReplicatePartition, NUMBER, REPLICAS, st.booleans()),
            **_built(m.ReplicateToRemote, NUMBER, st.booleans()),
            **_trace(NUMBER),
            **_built(
                m.AttachRegionArea, st.sampled_from(["", "no such token"]), st.integers(0, 9000)
            ),
            **_built(
                m.SharedRegion,
                NUMBER,
                NUMBER,
                NUMBER,
                st.lists(NUMBER),
                NUMBER,
                st.integers(0, 9000),
            ),
        }
    if role == m.ROLE_COPIER:
        copy_of = _built(m.CopyOf, NUMBER, _NAMES | st.just(local_id), REPLICAS, st.booleans())
        checksum = _built(m.CopyChecksum, NUMBER, st.integers(0, 2**32 - 1))
        to_remote = _built(m.ReplicateToRemote, NUMBER, st.booleans())
        return {
            **_STORED,
            **checksum,
            **copy_of,
            **to_remote,
            **_member(local_id),
            **_trace(NUMBER),
        }
    if role == m.ROLE_CONSUMER:
        return {
            m.OpenGate: _gate(local_id),
            **_built(
                m.ReportDamage,
                st.just(SHUFFLE) | NUMBER,
                st.integers(0, 3),
                st.integers(0, 3),
                _NAMES | st.just(local_id),
                st.sampled_from([REMOTE_HOST, "127.0.0.1", ""]),
                NUMBER,
                st.just(list(STORED_ATTEMPTS)) | ATTEMPTS,
            ),
            **_trace(st.integers(4, 6)),
            **_built(m.CloseGate, st.integers(4, 6)),
            **_DATA_UP,
        }
    if role == m.ROLE_PEER:
        return {
            **_built(
                m.PartitionRequest,
                NUMBER,
                st.sampled_from(["app", "other", ""]),
                st.just(SHUFFLE) | NUMBER,
                st.just(list(STORED_ATTEMPTS)) | ATTEMPTS,
                st.integers(0, 1),
                COUNT,
                CREDIT,
            ),
            **_built(
                m.VerifyOutputs,
                st.sampled_from(["app", "other", ""]),
                st.just(SHUFFLE) | NUMBER,
                st.integers(0, 3),
                st.integers(0, 3),
                st.just(list(STORED_ATTEMPTS)) | ATTEMPTS,
            ),
            **_trace(NUMBER),
            **_DATA_UP,
        }
    return {
        **_built(m.ReleaseShuffle, NUMBER),
        **_built(m.ReleaseAttempts, NUMBER, st.integers(-1, 6)),
        **_built(m.ReleaseApplication),
        **_built(m.CheckOutputs, NUMBER, NUMBER, ATTEMPTS),
        **_built(
            m.KnownTaskManager,
            _NAMES | st.just(local_id),
            st.sampled_from([REMOTE_HOST, "127.0.0.1", ""]),
            NUMBER,
        ),
        **_built(m.MoveNoted, NUMBER),
    }


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
def _response(draw: st.DrawFn, *, has_checksum: bool = False) -> bytes:
    data_type = draw(st.sampled_from([m.DATA, m.DATA, m.DATA, *range(4)]))
    payload = draw(EVENTS) if data_type else bytes(draw(SIZE))
    fields = draw(NUMBER), draw(NUMBER), draw(NUMBER | st.sampled_from([2**31, 2**32 - 1]))
    if not has_checksum:
        return frame(m.BufferResponse(*fields, data_type), payload)
    checksum = draw(st.just(crc32c(payload)) | st.just(crc32c(payload, fields[0])) | NUMBER)
    return frame(m.ChecksummedBuffer(*fields, data_type, checksum), payload)


_STORED_ANSWERS: Frames = {
    **_built(m.PartitionOpened, NUMBER),
    **_built(
        m.RegionOpened, NUMBER, NUMBER, st.sampled_from([1, 100, SEGMENT_SIZE_BYTES, 2**32 - 1])
    ),
    **_built(m.AddCredit, NUMBER, CREDIT),
    **_built(m.PartitionFinished, NUMBER),
    **_built(m.PartitionAborted, NUMBER),
}
_DATA_DOWN: Frames = {
    m.BufferResponse: _response(),
    **_built(m.BacklogAnnouncement, NUMBER, NUMBER | st.just(2**31)),
}


_ANSWERS: dict[int, Frames] = {
    m.ROLE_PEER: {**_DATA_DOWN, m.ChecksummedBuffer: _response(has_checksum=True)},
    m.ROLE_COPIER: {**_STORED_ANSWERS, **_member("")},
    m.ROLE_CONSUMER: {
        **_DATA_DOWN,
        **_built(m.GateOpened, NUMBER),
        **_built(m.GateClosed, NUMBER),
    },
    m.ROLE_PRODUCER: {
        **_STORED_ANSWERS,
        **_built(m.RegionAreaAttached, st.just(""), st.just(""), st.just(0)),
        **_built(m.PartitionResumed, NUMBER, NUMBER, NUMBER, st.booleans()),
        **_built(m.RegionSecured, NUMBER, NUMBER),
        **_built(m.PartitionConsumed, NUMBER),
        m.TaskEvent: _DATA_UP[m.TaskEvent],
    },
}


def answers_of(role: int) -> Frames:
    """Return what the accepting side of a connection of a role sends, by type."""
    return _ANSWERS[role]


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
    frames_by_type = frames_of(role, local_id)
    usual = st.one_of(*frames_by_type.values())
    if m.OpenPartition in frames_by_type:
        copied = frames_by_type[m.CopyOf if role == m.ROLE_COPIER else m.ReplicatePartition]
        usual |= _whole_map_output(copied)
    said = draw(st.lists(usual | usual | _CONNECTION | _ANY, max_size=12))
    return draw(steps([hello(role), *said]))


@st.composite
def answers(draw: st.DrawFn, role: int = m.ROLE_PEER) -> list[Step]:
    """Draw the answers to a connection of a role."""
    usual = st.one_of(*answers_of(role).values())
    return draw(steps(draw(st.lists(usual | usual | _CONNECTION | _ANY, max_size=12))))
