"""Cost of a buffer, a wait and a handshake, without sockets: ``python -m benchmarks.micro``.

Each number is the best of many short rounds, in microseconds per operation, on one thread. The two
framing rows include the copies that stand for ``recv()``; the row before has their cost.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, repeat
from typing import Final

from crc32c import crc32c

from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake, Admission
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import (
    SALT_BYTES,
    SECRET_BYTES,
    ClusterSecrets,
    Credential,
    SubmitToken,
)
from sluice.protocol.limits import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    MAGIC,
    NONCE_BYTES,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
    VERSION,
)
from sluice.protocol.schema import decode_control, encode
from sluice.shuffle.counters import ServingSeconds
from sluice.shuffle.histogram import Histogram
from sluice.shuffle.memory import MemorySegment, NetworkBufferPool
from sluice.shuffle.taskmanager.ingest.wait_times import Waiter, Waiting
from sluice.shuffle.taskmanager.serve.channel_times import (
    SENDING,
    WAITING_FOR_CREDIT,
    ChannelTimes,
)

FRAMES: Final = 64
"""Frames of the stream that the framing rows decode: 2 MiB, which stays in the CPU's cache."""

HOT: Final[tuple[m.Message, ...]] = (
    m.BufferResponse(3, 70_000, 12, m.DATA),
    m.ChecksummedBuffer(3, 70_000, 12, m.DATA, 0xDEADBEEF),
    m.AddCredit(3, 8),
    m.RegionData(3, 1 << 20),
)


class _Sink:
    """Gives the same segment for every payload, as a pool that recycles at once would."""

    def __init__(self, tail_bytes: int) -> None:
        self._segment = memoryview(bytearray(DEFAULT_SEGMENT_SIZE_BYTES + tail_bytes))
        self.messages = 0

    def payload_buffer(self, message: m.Message, length: int) -> memoryview:
        return self._segment

    def message_received(self, message: m.Message, payload_length: int) -> None:
        self.messages += 1


def _best_us(work: Callable[[], None], operations: int, rounds: int) -> float:
    """Return the least time of ``work`` per operation, in microseconds."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - begin)
    return best / operations / 1000


def _repeated(call: Callable[[], object], count: int) -> Callable[[], None]:
    def work() -> None:
        for _ in repeat(None, count):
            call()

    return work


def _feed(decoder: FrameDecoder, stream: memoryview, read_bytes: int) -> None:
    position = 0
    end = len(stream)
    while position < end:
        buffer = decoder.get_buffer()
        count = min(len(buffer), end - position, read_bytes)
        buffer[:count] = stream[position : position + count]
        position += count
        decoder.buffer_updated(count)


def _copy(stream: memoryview, target: memoryview) -> None:
    step = len(target)
    for position in range(0, len(stream) - step + 1, step):
        target[:] = stream[position : position + step]


def measure(rounds: int = 100, count: int = 2_000) -> Iterable[tuple[str, float]]:
    """Measure, and yield each row's name and its microseconds per operation.

    Args:
        rounds: Number of measurements of each row; the best counts.
        count: Operations per round in the rows without payload.
    """
    for message in HOT:
        name = type(message).__name__
        control = memoryview(encode(message))[PREFIX_BYTES:]
        yield (
            f"encode {name}",
            _best_us(_repeated(partial(encode, message, 1), count), count, rounds),
        )
        yield (
            f"decode {name}",
            _best_us(_repeated(partial(decode_control, control), count), count, rounds),
        )

    small = memoryview(encode(m.AddCredit(3, 8)) * count)
    sink = _Sink(0)
    decoder = FrameDecoder(sink, DEFAULT_SEGMENT_SIZE_BYTES)
    yield (
        "frame AddCredit, many in a read",
        _best_us(lambda: _feed(decoder, small, 1 << 16), count, rounds),
    )

    payload = bytes(DEFAULT_SEGMENT_SIZE_BYTES)
    one = encode(m.BufferResponse(3, 70_000, 12, m.DATA), len(payload)) + payload
    stream = memoryview(one * FRAMES)
    target = memoryview(bytearray(DEFAULT_SEGMENT_SIZE_BYTES))
    repeats = 4
    yield (
        "copy of 32 KiB alone",
        _best_us(_repeated(lambda: _copy(stream, target), repeats), FRAMES * repeats, rounds),
    )
    yield (
        "CRC-32C of 32 KiB",
        _best_us(_repeated(partial(crc32c, target, 3), count), count, rounds),
    )
    for name, tail_bytes in (("with tail", RECEIVE_TAIL_BYTES), ("without tail", 0)):
        sink = _Sink(tail_bytes)
        decoder = FrameDecoder(sink, DEFAULT_SEGMENT_SIZE_BYTES)
        elapsed = _best_us(
            _repeated(
                partial(_feed, decoder, stream, 1 << 20),
                repeats,
            ),
            FRAMES * repeats,
            rounds,
        )
        if sink.messages != FRAMES * repeats * rounds:
            raise RuntimeError(f"decoded {sink.messages} messages of {FRAMES * repeats * rounds}")
        yield f"frame of 32 KiB {name}", elapsed


def measure_pools(rounds: int = 100, count: int = 2_000) -> Iterable[tuple[str, float]]:
    """Measure taking from and giving to a local pool; rows and arguments as :func:`measure`."""
    network = NetworkBufferPool(64, 1024)
    pool = network.create_local_pool("plain", 2, 8)
    charged = network.create_local_pool("by channel", 2, 8, max_buffers_per_channel=10)

    def segment() -> None:
        if (taken := pool.request_segment_nowait()) is not None:
            pool.recycle(taken)

    def segment_of_a_channel() -> None:
        if (taken := charged.request_segment_nowait(3)) is not None:
            charged.recycle(taken)

    def buffer() -> None:
        if (taken := pool.request_buffer_nowait()) is not None:
            taken.recycle()

    # One segment goes round: each recycle serves the listener, which queues again.
    small = network.create_local_pool("one segment", 1, 1)
    hand = [one for one in (small.request_segment_nowait(),) if one is not None]

    def keep(one: MemorySegment | None) -> bool:
        if one is None:
            return False
        hand.append(one)
        small.add_listener(keep)
        return True

    small.add_listener(keep)
    for name, call in (
        ("pool: take and recycle a segment", segment),
        ("pool: ... counted by channel", segment_of_a_channel),
        ("pool: take and recycle a buffer", buffer),
        ("pool: recycle to a listener", lambda: small.recycle(hand.pop())),
    ):
        yield name, _best_us(_repeated(call, count), count, rounds)


def measure_handshake(rounds: int = 100, count: int = 20) -> Iterable[tuple[str, float]]:
    """Measure handshakes, both sides together and without sockets; rows as :func:`measure`."""
    hello = m.Hello(MAGIC, VERSION, VERSION, m.ROLE_CONSUMER, "application", b"", 0, 0, 0, "task")
    offer = m.HelloAck(
        VERSION, "taskmanager", 32768, m.FLOW_CREDIT, 0, "host", 7337, "instance", 0, 1
    )
    secret = bytes(SECRET_BYTES)
    rules = Admission(ClusterSecrets([secret]), anonymous=True, knows_application=lambda _: False)
    task = SubmitToken.make(secret).application(bytes(SALT_BYTES)).for_tasks()

    def shake_hands(credential: Credential | None) -> None:
        connects = ConnectingHandshake(hello, credential, bytes(NONCE_BYTES))
        accepts = AcceptingHandshake(offer, rules, bytes(NONCE_BYTES))
        waiting: tuple[m.Message, ...] = (connects.hello,)
        while waiting:
            answers = [each for one in waiting for each in accepts.receive(one, b"", 0).replies]
            waiting = tuple(
                each for one in answers for each in connects.receive(one, b"", 0).replies
            )

    for name, credential in (("handshake: no credential", None), ("handshake: proofs", task)):
        call = partial(shake_hands, credential)
        yield name, _best_us(_repeated(call, count), count, rounds)


def measure_times(rounds: int = 100, count: int = 2_000) -> Iterable[tuple[str, float]]:
    """Measure how the data path records times; rows and arguments as :func:`measure`.

    The rows of a wait begin one and end it, and read the clock twice.
    """
    seconds = 0.000_7
    histogram = Histogram()
    channels = ChannelTimes(ServingSeconds(), Histogram())
    channels.open(SENDING)
    waiter = Waiter(Waiting())

    def wait_of_a_channel() -> None:
        since = channels.change(SENDING, WAITING_FOR_CREDIT, 0.0)
        channels.change(WAITING_FOR_CREDIT, SENDING, since)

    def wait_of_a_producer() -> None:
        waiter.begin()
        waiter.end()

    for name, call in (
        ("histogram: record a time", partial(histogram.record, seconds)),
        ("channel: a wait for credit", wait_of_a_channel),
        ("producer: a wait for credit", wait_of_a_producer),
    ):
        yield name, _best_us(_repeated(call, count), count, rounds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100, help="measurements of each row")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    for name, microseconds in chain(
        measure(rounds), measure_pools(rounds), measure_times(rounds), measure_handshake(rounds)
    ):
        print(f"{name:<34} {microseconds:8.3f} µs")


if __name__ == "__main__":
    main()
