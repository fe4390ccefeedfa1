# Longer than 450 lines, because all tests of the one decoder share its shapes of reads.
"""The decoder: every message in every shape of reads, blocked sinks, and violations."""

import struct

import pytest
from msgspec.structs import replace

from sluice.protocol import schema as m
from sluice.protocol.errors import FrameTooLarge, MalformedMessage, ProtocolViolation
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.limits import (
    FIRST_CONTROL_BYTES,
    HEAD_BYTES,
    HEAD_READ_BYTES,
    MAX_CONTROL_BYTES,
    MAX_EVENT_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
)
from sluice.protocol.schema import CARRIES_PAYLOAD, encode
from tests.protocol.wire_vectors import MESSAGES
from tests.support.decoding import (
    Frame,
    RecordingSink,
    feed,
    feed_pieces,
    new_decoder,
    pieces_of,
    wire,
)

EVERY_MESSAGE = pytest.mark.parametrize(
    "frame", [(message, payload) for _, message, payload in MESSAGES], ids=[v[0] for v in MESSAGES]
)
TAIL = pytest.mark.parametrize("tail_bytes", [RECEIVE_TAIL_BYTES, 7, 0])
NEXT: Frame = (m.BufferResponse(9, 1, 0, m.DATA), b"the next payload")


def _error_of(control_bytes: int) -> m.ErrorResponse:
    """Make a message whose control part has exactly that length."""
    message = m.ErrorResponse(None, 1, 1, False, "x" * control_bytes, "", "", None)
    surplus = len(encode(message)) - PREFIX_BYTES - control_bytes
    return replace(message, message="x" * (control_bytes - surplus))


# ---- whole, in bytes, with others ------------------------------------------------------------


@EVERY_MESSAGE
@TAIL
def test_a_frame_in_one_read(frame: Frame, tail_bytes: int) -> None:
    sink = RecordingSink(tail_bytes)
    decoder = new_decoder(sink)
    feed(decoder, wire(frame))
    assert sink.frames == [frame]
    assert not decoder.in_frame


@EVERY_MESSAGE
@TAIL
def test_a_frame_byte_by_byte(frame: Frame, tail_bytes: int) -> None:
    sink = RecordingSink(tail_bytes)
    decoder = new_decoder(sink)
    data = wire(frame)
    for index in range(len(data)):
        assert sink.frames == []
        assert decoder.in_frame == (index > 0)
        feed(decoder, data[index : index + 1])
    assert sink.frames == [frame]
    assert not decoder.in_frame


@EVERY_MESSAGE
@TAIL
def test_a_frame_with_bytes_of_the_next(frame: Frame, tail_bytes: int) -> None:
    behind = wire(NEXT)
    for count in range(len(behind)):
        sink = RecordingSink(tail_bytes)
        decoder = new_decoder(sink)
        feed(decoder, wire(frame) + behind[:count])
        assert sink.frames == [frame]
        assert decoder.in_frame == (count > 0)
        feed(decoder, behind[count:])
        assert sink.frames == [frame, NEXT]
        assert not decoder.in_frame


@TAIL
def test_all_messages_in_as_few_reads_as_possible(tail_bytes: int) -> None:
    frames = [(message, payload) for _, message, payload in MESSAGES]
    sink = RecordingSink(tail_bytes)
    feed(new_decoder(sink), wire(*frames))
    assert sink.frames == frames


def test_one_read_brings_many_small_messages() -> None:
    frames: list[Frame] = [(m.AddCredit(channel, 1), b"") for channel in range(1, 16)]
    sink = RecordingSink()
    decoder = new_decoder(sink)
    data = wire(*frames)
    decoder.get_buffer()[: len(data)] = data
    decoder.buffer_updated(len(data))
    assert sink.frames == frames


def test_any_single_cut_of_two_frames_with_payload() -> None:
    frames: list[Frame] = [(m.RegionData(1, 0), b"first payload" * 10), NEXT]
    data = wire(*frames)
    for cut in range(len(data) + 1):
        for tail_bytes in (0, 20, RECEIVE_TAIL_BYTES):
            sink = RecordingSink(tail_bytes)
            feed_pieces(new_decoder(sink), pieces_of(data, [cut]))
            assert sink.frames == frames


# ---- payload memory --------------------------------------------------------------------------


def _begin_payload(tail_bytes: int, payload_length: int) -> tuple[FrameDecoder, RecordingSink]:
    """Return a decoder that has had a head and expects its payload."""
    sink = RecordingSink(tail_bytes)
    decoder = new_decoder(sink)
    feed(decoder, encode(m.BufferResponse(1, 0, 0, m.DATA), payload_length))
    assert sink.asked == [(m.BufferResponse(1, 0, 0, m.DATA), payload_length)]
    return decoder, sink


@pytest.mark.parametrize(
    ("tail_bytes", "expected"),
    [
        (0, 1000),
        (10, 1010),
        (RECEIVE_TAIL_BYTES, 1000 + RECEIVE_TAIL_BYTES),
        (5000, 1000 + RECEIVE_TAIL_BYTES),  # a segment larger than the payload
    ],
)
def test_room_offered_for_a_payload(tail_bytes: int, expected: int) -> None:
    decoder, sink = _begin_payload(tail_bytes, 1000)
    buffer = decoder.get_buffer()
    assert buffer.obj is sink.memory
    assert len(buffer) == expected
    buffer[:400] = b"a" * 400
    decoder.buffer_updated(400)
    assert len(decoder.get_buffer()) == expected - 400


def test_payload_exactly_as_long_as_the_memory_then_the_next_head() -> None:
    decoder, sink = _begin_payload(0, 100)
    buffer = decoder.get_buffer()
    assert len(buffer) == 100
    buffer[:] = b"p" * 100
    decoder.buffer_updated(100)
    assert sink.frames == [(m.BufferResponse(1, 0, 0, m.DATA), b"p" * 100)]
    assert not decoder.in_frame
    feed(decoder, wire(NEXT))
    assert sink.frames[1:] == [NEXT]


@pytest.mark.parametrize("extra", range(RECEIVE_TAIL_BYTES + 1))
def test_next_frames_come_in_the_tail(extra: int) -> None:
    # Two small messages, then one with payload: 64 bytes hold both and part of the third.
    behind: list[Frame] = [(m.AddCredit(5, 6), b""), (m.Ping(7), b""), NEXT, NEXT]
    data = wire(*behind)
    decoder, sink = _begin_payload(RECEIVE_TAIL_BYTES, 100)
    buffer = decoder.get_buffer()
    buffer[:100] = b"p" * 100
    buffer[100 : 100 + extra] = data[:extra]
    decoder.buffer_updated(100 + extra)  # the sink has overwritten the segment after this
    feed(decoder, data[extra:])
    assert sink.frames == [(m.BufferResponse(1, 0, 0, m.DATA), b"p" * 100), *behind]


def test_a_whole_frame_with_payload_in_the_tail() -> None:
    decoder, sink = _begin_payload(RECEIVE_TAIL_BYTES, 10)
    data = b"p" * 10 + wire(NEXT)
    assert len(data) < 10 + RECEIVE_TAIL_BYTES
    decoder.get_buffer()[: len(data)] = data
    decoder.buffer_updated(len(data))
    assert sink.frames == [(m.BufferResponse(1, 0, 0, m.DATA), b"p" * 10), NEXT]
    assert not decoder.in_frame


def test_a_full_head_buffer_with_the_start_of_a_payload() -> None:
    small: list[Frame] = [(m.Ping(n), b"") for n in range(100)]
    large: Frame = (m.RegionData(1, 0), bytes(range(256)) * 100)
    data = wire(*small, large)
    assert len(data) > HEAD_BYTES
    sink = RecordingSink()
    decoder = new_decoder(sink)
    for start in range(0, HEAD_BYTES, HEAD_READ_BYTES):
        decoder.get_buffer()[:HEAD_READ_BYTES] = data[start : start + HEAD_READ_BYTES]
        decoder.buffer_updated(HEAD_READ_BYTES)
    assert sink.frames == small
    feed(decoder, data[HEAD_BYTES:])
    assert sink.frames == [*small, large]


def test_empty_payload_asks_for_no_memory() -> None:
    sink = RecordingSink(has_memory=lambda: False)
    decoder = new_decoder(sink)
    frame: Frame = (m.BufferResponse(1, 0, 0, m.DATA), b"")
    feed(decoder, wire(frame))
    assert sink.asked == []
    assert sink.frames == [frame]
    assert not decoder.blocked


# ---- blocked sinks ---------------------------------------------------------------------------


@TAIL
def test_blocked_at_every_position(tail_bytes: int) -> None:
    frames: list[Frame] = [
        (m.Ping(1), b""),
        (m.RegionData(1, 0), b"0123456789" * 9),
        (m.Pong(2), b""),
        NEXT,
    ]
    data = wire(*frames)
    first = len(wire(frames[0])) + len(encode(frames[1][0], 90))
    for cut in range(len(data) + 1):
        memory = False
        sink = RecordingSink(tail_bytes, has_memory=lambda: memory)  # noqa: B023
        decoder = new_decoder(sink)
        decoder.get_buffer()[:cut] = data[:cut]
        decoder.buffer_updated(cut)
        assert decoder.blocked == (cut >= first)
        if decoder.blocked:
            assert decoder.in_frame
            assert sink.frames == frames[:1]
            assert not decoder.unblock()  # still no memory: asked again for the same
            assert sink.asked == [(frames[1][0], 90)] * 2
            memory = True
            assert decoder.unblock()
        memory = True
        feed(decoder, data[cut:])
        assert sink.frames == frames
        assert not decoder.in_frame


def test_unblocked_by_one_payload_and_blocked_by_the_next() -> None:
    grants = iter([False, True, False, True])
    sink = RecordingSink(has_memory=lambda: next(grants))
    decoder = new_decoder(sink)
    data = wire(NEXT, (m.Ping(1), b""), NEXT, (m.Ping(2), b""))
    decoder.get_buffer()[: len(data)] = data
    decoder.buffer_updated(len(data))
    assert decoder.blocked
    assert sink.frames == []
    assert not decoder.unblock()
    assert sink.frames == [NEXT, (m.Ping(1), b"")]
    assert decoder.unblock()
    assert sink.frames == [NEXT, (m.Ping(1), b""), NEXT, (m.Ping(2), b"")]


@pytest.mark.parametrize("behind", [5, 9, 20])  # in the next prefix, control part, payload
@pytest.mark.parametrize("size", range(1, 20))
def test_blocked_by_a_small_payload_with_part_of_a_frame_behind_it(size: int, behind: int) -> None:
    grants = iter([False, True, True])
    sink = RecordingSink(has_memory=lambda: next(grants))
    decoder = new_decoder(sink)
    small: Frame = (m.RegionData(1, 0), b"p" * size)
    data = wire(small, NEXT)
    cut = len(wire(small)) + behind
    decoder.get_buffer()[:cut] = data[:cut]
    decoder.buffer_updated(cut)
    assert decoder.unblock()
    feed(decoder, data[cut:])
    assert sink.frames == [small, NEXT]


def test_blocked_by_a_head_that_came_in_the_tail() -> None:
    grants = iter([True, False, True])
    sink = RecordingSink(has_memory=lambda: next(grants))
    decoder = new_decoder(sink)
    feed(decoder, encode(m.RegionData(1, 0), 50))
    data = b"p" * 50 + wire(NEXT)
    decoder.get_buffer()[: len(data)] = data
    decoder.buffer_updated(len(data))
    assert decoder.blocked
    assert decoder.unblock()
    assert sink.frames == [(m.RegionData(1, 0), b"p" * 50), NEXT]


def test_unblock_without_need_changes_nothing() -> None:
    sink = RecordingSink()
    decoder = new_decoder(sink)
    data = wire(NEXT)
    for index in range(len(data)):
        assert decoder.unblock()
        feed(decoder, data[index : index + 1])
    assert decoder.unblock()
    assert sink.frames == [NEXT]
    assert len(sink.asked) == 1


# ---- long control parts ----------------------------------------------------------------------


@pytest.mark.parametrize("control_bytes", range(HEAD_BYTES - 10, HEAD_BYTES + 3))
@pytest.mark.parametrize("ahead", [0, 1, 300])
def test_control_part_as_long_as_the_head_buffer(control_bytes: int, ahead: int) -> None:
    message = _error_of(control_bytes)
    assert len(encode(message)) == PREFIX_BYTES + control_bytes
    frames: list[Frame] = [*((m.Ping(n), b"") for n in range(ahead)), (message, b""), NEXT]
    sink = RecordingSink()
    feed(new_decoder(sink), wire(*frames))
    assert sink.frames == frames


def test_long_control_part_takes_memory_of_its_own_and_no_byte_of_the_next_frame() -> None:
    message = m.BeginRegion(1, 0, 0, [2**40] * 20_000, 7)
    data = wire((message, b""), NEXT)
    sink = RecordingSink()
    decoder = new_decoder(sink)
    length = len(encode(message))
    fed = 100
    feed(decoder, data[:fed])
    while fed < length:
        assert decoder.in_frame
        buffer = decoder.get_buffer()
        # Room for as many bytes as have come, within the frame.
        assert 0 < len(buffer) <= min(length - fed, max(FIRST_CONTROL_BYTES, fed))
        count = min(len(buffer), 5000)
        feed(decoder, data[fed : fed + count])
        fed += count
    assert fed == length
    assert sink.frames == [(message, b"")]
    assert not decoder.in_frame
    feed(decoder, data[fed:])
    assert sink.frames == [(message, b""), NEXT]
    assert not decoder.in_frame


def test_largest_control_part() -> None:
    message = _error_of(MAX_CONTROL_BYTES)
    sink = RecordingSink()
    feed(new_decoder(sink), wire((message, b"")))
    assert sink.frames == [(message, b"")]


# ---- limits ----------------------------------------------------------------------------------


def _prefix(control_length: int, payload_length: int) -> bytes:
    return control_length.to_bytes(4, "big") + payload_length.to_bytes(4, "big")


@pytest.mark.parametrize("length", [MAX_CONTROL_BYTES + 1, 2**31, 2**32 - 1])
def test_control_part_above_the_limit(length: int) -> None:
    decoder = new_decoder(RecordingSink())
    with pytest.raises(FrameTooLarge) as caught:
        feed(decoder, _prefix(length, 0))
    assert (caught.value.value, caught.value.limit) == (length, MAX_CONTROL_BYTES)
    assert caught.value.remedy


def test_handshake_has_a_smaller_limit() -> None:
    message = _error_of(MAX_HANDSHAKE_CONTROL_BYTES)
    sink = RecordingSink()
    feed(FrameDecoder(sink, 100), wire((message, b"")))
    assert sink.frames == [(message, b"")]
    with pytest.raises(FrameTooLarge) as caught:
        feed(FrameDecoder(RecordingSink(), 100), _prefix(MAX_HANDSHAKE_CONTROL_BYTES + 1, 0))
    assert caught.value.limit == MAX_HANDSHAKE_CONTROL_BYTES


def test_limits_set_while_a_message_is_delivered_hold_for_the_next_in_the_same_read() -> None:
    def on_message(message: m.Message) -> None:
        if isinstance(message, m.HelloAck):
            decoder.handshake_done()
            decoder.max_payload_bytes = 2000

    ack: Frame = (m.HelloAck(1, "tm-a", 2000, 0, 0, "h", 1, "i", 0, 1), b"")
    frames = [
        ack,
        (_error_of(MAX_HANDSHAKE_CONTROL_BYTES + 1), b""),
        (m.RegionData(1, 0), b"x" * 2000),
    ]
    sink = RecordingSink(on_message=on_message)
    decoder = FrameDecoder(sink, 1000)
    feed(decoder, wire(*frames))
    assert sink.frames == frames


@pytest.mark.parametrize("length", [1001, 2**32 - 1])
def test_payload_above_the_limit(length: int) -> None:
    sink = RecordingSink()
    with pytest.raises(FrameTooLarge) as caught:
        feed(new_decoder(sink, 1000), encode(m.RegionData(1, 0), length))
    assert (caught.value.value, caught.value.limit) == (length, 1000)
    assert caught.value.remedy
    assert sink.asked == []


def test_payload_at_the_limit() -> None:
    frame: Frame = (m.RegionData(1, 0), b"x" * 1000)
    sink = RecordingSink()
    feed(new_decoder(sink, 1000), wire(frame))
    assert sink.frames == [frame]


EVENTS = pytest.mark.parametrize("message", [m.TaskEvent(1, 5), m.BufferResponse(1, 0, 0, m.EVENT)])


@EVENTS
def test_event_of_the_largest_size(message: m.Message) -> None:
    sink = RecordingSink()
    feed(new_decoder(sink), wire((message, b"e" * MAX_EVENT_BYTES)))
    assert sink.frames == [(message, b"e" * MAX_EVENT_BYTES)]


@EVENTS
def test_event_above_the_largest_size(message: m.Message) -> None:
    sink = RecordingSink()
    with pytest.raises(FrameTooLarge) as caught:
        feed(new_decoder(sink), encode(message, MAX_EVENT_BYTES + 1))
    assert caught.value.limit == MAX_EVENT_BYTES
    assert sink.asked == []


def test_lengths_are_refused_before_the_control_part_comes() -> None:
    decoder = new_decoder(RecordingSink())
    feed(decoder, _prefix(5, 2**31)[:7])
    with pytest.raises(FrameTooLarge):
        feed(decoder, _prefix(5, 2**31)[7:])


# ---- violations ------------------------------------------------------------------------------


def test_a_frame_without_a_control_part_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="no control part"):
        feed(new_decoder(RecordingSink()), _prefix(0, 0))


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\xff" * 100],
    ids=["http", "tls", "ones"],
)
def test_garbage_is_a_violation(garbage: bytes) -> None:
    with pytest.raises(FrameTooLarge, match="Sluice protocol"):
        feed(FrameDecoder(RecordingSink(), 1000), garbage)


@pytest.mark.parametrize("ready", [False, True], ids=["in the handshake", "after it"])
def test_spark_block_client_is_told_the_remedy(ready: bool) -> None:
    decoder = FrameDecoder(RecordingSink(), 1000)
    if ready:
        decoder.handshake_done()
    # The frame's length, the type of a RPC request, its number, the length of its body.
    request = struct.pack(">qbqi", 21 + 40, 3, 7, 40) + bytes(40)
    with pytest.raises(MalformedMessage, match="Spark's own block client") as caught:
        feed(decoder, request)
    assert "Delta Lake's optimized write" in str(caught.value)
    assert "spark.sluice.enabled=false" in str(caught.value)


@pytest.mark.parametrize(
    ("garbage", "told"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", "Use the HTTP port instead"),
        (b"POST /api HTTP/1.1\r\n\r\n", "Use the HTTP port instead"),
        (b"HTTP/1.1 400 Bad Request\r\n", "Connect to the data port instead"),
    ],
)
@pytest.mark.parametrize("ready", [False, True], ids=["in the handshake", "after it"])
def test_http_is_told_by_its_name_and_not_as_a_length(
    garbage: bytes, told: str, ready: bool
) -> None:
    decoder = FrameDecoder(RecordingSink(), 1000)
    if ready:
        decoder.handshake_done()
    with pytest.raises(FrameTooLarge, match=told) as caught:
        feed(decoder, garbage)
    assert caught.value.value is None


def test_a_control_part_that_is_not_a_message() -> None:
    with pytest.raises(MalformedMessage):
        feed(new_decoder(RecordingSink()), _prefix(3, 0) + b"abc")


@EVERY_MESSAGE
def test_payload_on_a_message_that_must_not_have_one(frame: Frame) -> None:
    message, _ = frame
    sink = RecordingSink()
    decoder = new_decoder(sink)
    if type(message) in CARRIES_PAYLOAD:
        feed(decoder, encode(message, 1))
        assert sink.asked == [(message, 1)]
        return
    with pytest.raises(MalformedMessage, match="must not have a payload"):
        feed(decoder, encode(message, 1))
    assert sink.asked == []
    assert sink.frames == []


def test_payload_behind_a_long_control_part() -> None:
    with pytest.raises(MalformedMessage, match="must not have a payload"):
        feed(new_decoder(RecordingSink()), encode(m.BeginRegion(1, 0, 0, [2**40] * 2000, 7), 1))


def test_frames_before_a_violation_are_delivered() -> None:
    sink = RecordingSink()
    with pytest.raises(ProtocolViolation):
        feed(new_decoder(sink), wire(NEXT, (m.Ping(1), b"")) + _prefix(0, 0))
    assert sink.frames == [NEXT, (m.Ping(1), b"")]


def test_a_violation_behind_a_blocked_payload_comes_out_of_unblock() -> None:
    grants = iter([False, True])
    sink = RecordingSink(has_memory=lambda: next(grants))
    decoder = new_decoder(sink)
    data = wire(NEXT) + _prefix(0, 0)
    decoder.get_buffer()[: len(data)] = data
    decoder.buffer_updated(len(data))
    with pytest.raises(MalformedMessage):
        decoder.unblock()
    assert sink.frames == [NEXT]


def test_errors_of_the_sink_pass_through() -> None:
    class RefusalError(Exception):
        pass

    def refuse(message: m.Message) -> None:
        raise RefusalError

    with pytest.raises(RefusalError):
        feed(new_decoder(RecordingSink(on_message=refuse)), wire((m.Ping(1), b"")))
    with pytest.raises(RefusalError):
        feed(new_decoder(RecordingSink(on_message=refuse)), wire(NEXT))
