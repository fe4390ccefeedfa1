"""A sink that records, and ways of feeding a decoder, as a driver would."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from sluice.protocol.framing import FrameDecoder
from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.protocol.schema import Message, encode

Frame = tuple[Message, bytes]

SCRIBBLE = 0xAA


def wire(*frames: Frame) -> bytes:
    """Return the bytes of frames one after the other."""
    return b"".join(encode(message, len(payload)) + payload for message, payload in frames)


class RecordingSink:
    """Keeps what a decoder reports; overwrites payload memory at once, as if it were recycled.

    Args:
        tail_bytes: Room behind each payload.
        has_memory: Asked for each payload; False blocks the decoder.
        on_message: Called with each message, after it was recorded.
    """

    def __init__(
        self,
        tail_bytes: int = RECEIVE_TAIL_BYTES,
        has_memory: Callable[[], bool] = lambda: True,
        on_message: Callable[[Message], None] = lambda message: None,
    ) -> None:
        self.frames: list[Frame] = []
        self.asked: list[tuple[Message, int]] = []
        self.memory: bytearray | None = None
        self._tail_bytes = tail_bytes
        self._has_memory = has_memory
        self._on_message = on_message

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        assert self.memory is None, "asked for memory while the payload before is under way"
        assert length > 0
        self.asked.append((message, length))
        if not self._has_memory():
            return None
        self.memory = bytearray(length + self._tail_bytes)
        return memoryview(self.memory)

    def message_received(self, message: Message, payload_length: int) -> None:
        payload = b""
        if payload_length:
            memory, self.memory = self.memory, None
            assert memory is not None
            payload = bytes(memory[:payload_length])
            memory[:] = bytes([SCRIBBLE]) * len(memory)
        self.frames.append((message, payload))
        self._on_message(message)


def feed(decoder: FrameDecoder, data: bytes, unblock_tries: int = 1000) -> None:
    """Give ``data`` to a decoder in reads as large as it takes; unblock it whenever it blocks."""
    position = 0
    while position < len(data):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        decoder.buffer_updated(count)
        tries = 0
        while decoder.blocked:
            assert decoder.unblock() is not decoder.blocked
            tries += 1
            assert tries <= unblock_tries


def feed_pieces(decoder: FrameDecoder, pieces: Iterable[bytes]) -> None:
    """Feed piece after piece: no read brings bytes of two pieces."""
    for piece in pieces:
        feed(decoder, piece)


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut ``data`` at the given positions."""
    edges = [0, *sorted(cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def new_decoder(sink: RecordingSink, max_payload_bytes: int = 32 * 1024) -> FrameDecoder:
    """Return a decoder whose handshake is over."""
    decoder = FrameDecoder(sink, max_payload_bytes)
    decoder.handshake_done()
    return decoder
