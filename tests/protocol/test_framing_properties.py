"""Any frames, cut anywhere, with a sink that blocks at random; and any bytes at all."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.errors import ProtocolViolation
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.limits import PREFIX_BYTES, RECEIVE_TAIL_BYTES
from sluice.protocol.schema import CARRIES_PAYLOAD, encode
from tests.support.decoding import RecordingSink, feed, feed_pieces, new_decoder, pieces_of, wire
from tests.support.strategies import FRAMES, Frame

TAILS = st.sampled_from([0, 1, 17, RECEIVE_TAIL_BYTES - 1, RECEIVE_TAIL_BYTES, 1000])
FRACTIONS = st.lists(st.floats(0, 1), max_size=12)
PATTERNS = st.lists(st.booleans(), max_size=20)


def _memory_by(pattern: list[bool]) -> Iterator[bool]:
    """Whether there is memory: by the pattern, then every second time."""
    yield from pattern
    while True:
        yield False
        yield True


@settings(max_examples=300)
@given(FRAMES, FRACTIONS, TAILS, PATTERNS)
def test_any_cuts_give_the_same_frames(
    frames: list[Frame], fractions: list[float], tail_bytes: int, pattern: list[bool]
) -> None:
    data = wire(*frames)
    memory = _memory_by(pattern)
    sink = RecordingSink(tail_bytes, has_memory=lambda: next(memory))
    decoder = new_decoder(sink)
    feed_pieces(decoder, pieces_of(data, (int(part * len(data)) for part in fractions)))
    assert sink.frames == frames
    assert not decoder.in_frame
    assert not decoder.blocked
    # Every payload got memory once, in order, and was asked for with its own length.
    # As texts: messages of two types with the same fields are equal tuples.
    names = list(map(repr, sink.asked))
    asked = [name for i, name in enumerate(names) if names[i + 1 : i + 2] != [name]]
    with_payload = [repr((message, len(payload))) for message, payload in frames if payload]
    if len(set(with_payload)) == len(with_payload):
        assert asked == with_payload


@given(FRAMES, st.integers(1, 40), TAILS)
def test_reads_of_few_bytes_give_the_same_frames(
    frames: list[Frame], read_bytes: int, tail_bytes: int
) -> None:
    data = wire(*frames)
    sink = RecordingSink(tail_bytes)
    feed_pieces(new_decoder(sink), pieces_of(data, range(read_bytes, len(data), read_bytes)))
    assert sink.frames == frames


@given(FRAMES, st.floats(0, 1))
def test_a_stream_that_ends_early_gives_the_complete_frames_and_says_so(
    frames: list[Frame], part: float
) -> None:
    data = wire(*frames)
    end = int(part * len(data))
    complete, position = [], 0
    for frame in frames:
        if position + len(wire(frame)) > end:
            break
        position += len(wire(frame))
        complete.append(frame)
    sink = RecordingSink()
    decoder = new_decoder(sink)
    feed(decoder, data[:end])
    assert sink.frames == complete
    assert decoder.in_frame == (end > position)


def _is_legal(message: m.Message, payload: bytes) -> None:
    assert not payload or type(message) in CARRIES_PAYLOAD
    again = RecordingSink()
    feed(new_decoder(again), wire((message, payload)))
    assert again.frames == [(message, payload)]


@given(st.binary(max_size=200), FRACTIONS, st.booleans())
def test_arbitrary_bytes_give_violations_only(
    data: bytes, fractions: list[float], after_handshake: bool
) -> None:
    sink = RecordingSink()
    decoder = FrameDecoder(sink, 100)
    if after_handshake:
        decoder.handshake_done()
    try:
        feed_pieces(decoder, pieces_of(data, (int(part * len(data)) for part in fractions)))
    except ProtocolViolation as error:
        assert str(error)  # noqa: PT017
    for frame in sink.frames:
        _is_legal(*frame)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 3)), max_size=5),
    FRACTIONS,
)
def test_arbitrary_control_parts_give_violations_only(
    parts: list[tuple[bytes, int]], fractions: list[float]
) -> None:
    data = b"".join(
        len(control).to_bytes(4, "big") + size.to_bytes(4, "big") + control + b"p" * size
        for control, size in parts
    )
    sink = RecordingSink()
    try:
        feed_pieces(
            new_decoder(sink), pieces_of(data, (int(part * len(data)) for part in fractions))
        )
    except ProtocolViolation as error:
        assert str(error)  # noqa: PT017
    for frame in sink.frames:
        _is_legal(*frame)


@given(FRAMES, st.data())
def test_one_wrong_byte_gives_a_violation_or_legal_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = bytearray(wire(*frames))
    index = data.draw(st.integers(0, min(len(stream) - 1, PREFIX_BYTES + 40)))
    stream[index] ^= data.draw(st.integers(1, 255))
    sink = RecordingSink()
    decoder = new_decoder(sink, 16 * 1024)
    try:
        feed(decoder, bytes(stream))
    except ProtocolViolation as error:
        assert str(error)  # noqa: PT017
    for frame in sink.frames[:2]:
        _is_legal(*frame)


@given(FRAMES)
def test_the_prefix_counts_what_follows(frames: list[Frame]) -> None:
    for message, payload in frames:
        head = encode(message, len(payload))
        assert int.from_bytes(head[:4], "big") == len(head) - PREFIX_BYTES
        assert int.from_bytes(head[4:8], "big") == len(payload)
