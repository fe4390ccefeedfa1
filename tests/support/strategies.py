"""Hypothesis strategies: every message with legal fields, and frames of them."""

from typing import Any

from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.limits import (
    HEAD_BYTES,
    MAX_EVENT_BYTES,
    MAX_I64,
    MAX_NAME_CHARACTERS,
    MAX_PROCESSES,
    MAX_REPLICAS,
    MAX_U32,
    MAX_U64,
    MIN_I64,
)
from sluice.protocol.schema import CARRIES_PAYLOAD, TYPE_IDS


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    # The ends, and where msgpack changes the width of an integer, more often than chance would.
    edges = [
        edge
        for edge in (low, high, -129, -33, -1, 0, 1, 127, 128, 255, 256, 65535, 65536, 2**32)
        if low <= edge <= high
    ]
    return st.sampled_from(edges) | st.integers(low, high)


U32 = _integers(0, MAX_U32)
U64 = _integers(0, MAX_U64)
I64 = _integers(MIN_I64, MAX_I64)
POSITIVE = _integers(1, MAX_U32)
PORT = _integers(0, 65535)
_CHARACTERS = st.characters(exclude_categories=["Cs"])  # a lone surrogate has no UTF-8 form
NAME = st.text(_CHARACTERS, max_size=40) | st.just("é" * MAX_NAME_CHARACTERS)
LENGTHS = st.lists(U64, max_size=12)
# Longer than the decoder's head buffer, without the cost of drawing each element.
LONG_LENGTHS = st.builds(lambda length, count: [length] * count, U64, st.integers(5000, 9000))
TEXT = st.text(_CHARACTERS, max_size=60) | st.integers(1, 3 * HEAD_BYTES).map(lambda n: "x" * n)
ATTEMPTS = st.lists(I64, min_size=1, max_size=12)
SOME_ATTEMPTS = st.lists(I64, min_size=1, max_size=8)
REPLICAS = st.integers(1, MAX_REPLICAS)
PROCESSES = st.integers(1, MAX_PROCESSES)
GATE_CHANNEL = st.builds(m.GateChannel, U32, NAME, NAME, PORT, ATTEMPTS)

DATA_TYPE = st.sampled_from([m.DATA, m.EVENT, m.PRIORITY_EVENT, m.BLOCKING_EVENT])
CHOICE = st.integers(0, 2)
NONCE = st.binary(min_size=32, max_size=32)

_FIELDS: dict[type[m.Message], tuple[st.SearchStrategy[Any], ...]] = {
    m.Hello: (NAME, U32, U32, U32, NAME, st.binary(max_size=40), U32, U32, U32, NAME),
    m.HelloAck: (U32, NAME, U32, U32, U32, NAME, PORT, NAME, PORT, PROCESSES),
    m.Challenge: (NONCE,),
    m.Proof: (NONCE,),
    m.PartitionRequest: (U32, NAME, U32, ATTEMPTS, U32, U32, U32),
    m.BufferResponse: (U32, U32, U32, DATA_TYPE),
    m.ChecksummedBuffer: (U32, U32, U32, DATA_TYPE, U32),
    m.AddCredit: (U32, POSITIVE),
    m.BacklogAnnouncement: (U32, U32),
    m.ResumeConsumption: (U32,),
    m.CancelPartitionRequest: (U32,),
    m.TaskEvent: (U32, U32),
    m.ErrorResponse: (
        st.none() | U32,
        U32,
        st.sampled_from([1, 2]),
        st.booleans(),
        TEXT,
        TEXT,
        TEXT,
        st.none() | I64,
    ),
    m.CloseRequest: (),
    m.Ping: (U64,),
    m.Pong: (U64,),
    m.PipelinedData: (U32, U32, DATA_TYPE),
    m.OpenPipelinedPartition: (U32, U32, I64, POSITIVE, CHOICE, CHOICE),
    m.OpenPartition: (U32, U32, I64, POSITIVE),
    m.PartitionOpened: (U32,),
    m.ResumePartition: (U32, U32, I64, POSITIVE),
    m.PartitionResumed: (U32, U32, U64, st.booleans()),
    m.SecureRegion: (U32, U32),
    m.RegionSecured: (U32, U32),
    m.BeginRegion: (U32, U32, U32, LENGTHS | LONG_LENGTHS, U32),
    m.RegionData: (U32, U64),
    m.AttachRegionArea: (NAME, U64),
    m.RegionAreaAttached: (NAME, TEXT, U64),
    m.SharedRegion: (U32, U32, U32, LENGTHS | LONG_LENGTHS, U32, U64),
    m.RegionOpened: (U32, U32, POSITIVE),
    m.FinishPartition: (U32, U64, U32),
    m.PartitionFinished: (U32,),
    m.AbortPartition: (U32,),
    m.PartitionAborted: (U32,),
    m.OpenGate: (U32, U32, U32, U32, POSITIVE, st.lists(GATE_CHANNEL, max_size=4)),
    m.GateOpened: (U32,),
    m.CloseGate: (U32,),
    m.GateClosed: (U32,),
    m.ReleaseShuffle: (U32,),
    m.ShuffleReleased: (U32, U64),
    m.ReleaseApplication: (),
    m.ApplicationReleased: (U64,),
    m.OutputsLost: (U32, SOME_ATTEMPTS),
    m.ReplicatePartition: (U32, REPLICAS, st.booleans()),
    m.CopyOf: (U32, NAME, REPLICAS, st.booleans()),
    m.CopyChecksum: (U32, U32),
    m.KnownTaskManager: (NAME, NAME, PORT),
    m.MemberReport: (
        NAME,
        NAME,
        PORT,
        PORT,
        PORT,
        PROCESSES,
        NAME,
        NAME,
        st.integers(0, 1),
        U64,
        U32,
    ),
    m.ReportDamage: (U32, U32, U32, NAME, NAME, PORT, SOME_ATTEMPTS),
    m.VerifyOutputs: (NAME, U32, U32, U32, SOME_ATTEMPTS),
    m.OutputsHeld: (U32, SOME_ATTEMPTS),
    m.ReplicateToRemote: (U32, st.booleans()),
    m.OutputsRemote: (U32, SOME_ATTEMPTS),
    m.TraceContext: (U32, NAME, st.none() | I64, st.none() | I64),
    m.OutputsMoved: (U32, U32, NAME, NAME, PORT, SOME_ATTEMPTS),
    m.MoveNoted: (U32,),
    m.ReleaseAttempts: (U32, I64),
    m.CheckOutputs: (U32, U32, SOME_ATTEMPTS),
    m.OutputsChecked: (U32,),
    m.WatchConsumption: (U32,),
    m.PartitionConsumed: (U32,),
}
if _FIELDS.keys() != TYPE_IDS.keys():
    raise AssertionError(f"no strategy for {TYPE_IDS.keys() - _FIELDS.keys()}")

MESSAGES_BY_TYPE: dict[type[m.Message], st.SearchStrategy[m.Message]] = {
    kind: st.builds(kind, *fields) for kind, fields in _FIELDS.items()
}
MESSAGES: st.SearchStrategy[m.Message] = st.one_of(*MESSAGES_BY_TYPE.values())

_SEED = bytes(range(256)) * 40
_SIZES = st.sampled_from([0, 1, 63, 64, 65, 127]) | st.integers(0, MAX_EVENT_BYTES)
_LARGE_SIZES = st.sampled_from([HEAD_BYTES - 30, HEAD_BYTES, HEAD_BYTES + 1]) | st.integers(
    MAX_EVENT_BYTES + 1, 2 * HEAD_BYTES
)

Frame = tuple[m.Message, bytes]


@st.composite
def frames(draw: st.DrawFn, hot: bool = False) -> Frame:
    """Draw a message with a payload that it may carry."""
    message = draw(
        st.one_of(*(MESSAGES_BY_TYPE[kind] for kind in sorted(CARRIES_PAYLOAD, key=str)))
        if hot
        else MESSAGES
    )
    if type(message) not in CARRIES_PAYLOAD:
        return message, b""
    is_event = isinstance(message, m.TaskEvent) or (
        isinstance(message, m.BufferResponse | m.ChecksummedBuffer | m.PipelinedData)
        and message.data_type != m.DATA
    )
    size = draw(_SIZES if is_event else _SIZES | _LARGE_SIZES)
    start = draw(st.integers(0, 255))
    return message, _SEED[start : start + size]


FRAMES = st.lists(frames() | frames(hot=True), min_size=1, max_size=8)
