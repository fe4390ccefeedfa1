"""Cost of a record on its way through buffers: ``python -m benchmarks.micro_records``.

Each number is the best of many short rounds, in microseconds per record, on one thread. A round
writes a batch of records into the buffers of a partition, or reads it from them; the partition here
only hands out segments, so that the rows show the record layer's own work.
"""

import argparse
import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import pyarrow

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import EndOfPartition, encode_event
from sluice.protocol.limits import DEFAULT_SEGMENT_SIZE_BYTES
from sluice.protocol.messages import DATA, EVENT
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.memory import NetworkBuffer, NetworkBufferPool
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.selectors import ChannelSelector, HashSelector, RoundRobinSelector
from sluice.shuffle.records.serializers import (
    ArrowSerializer,
    BytesSerializer,
    Int64Serializer,
    MsgpackSerializer,
    StringSerializer,
    ValueSerializer,
    ViewSerializer,
)
from sluice.shuffle.records.stream_elements import StreamElementSerializer, StreamRecord

RECORDS: Final = 1000
RECORD_BYTES: Final = 100
SUBPARTITIONS: Final = 16


class _Sink:
    """A partition without readers: each buffer is free again when it is finished."""

    is_available = True

    def __init__(self, num_subpartitions: int) -> None:
        self.num_subpartitions = num_subpartitions
        self._pool = NetworkBufferPool(4 * (num_subpartitions + 1), DEFAULT_SEGMENT_SIZE_BYTES)
        self._local = self._pool.create_local_pool("benchmark", num_subpartitions + 1, None)

    def request_builder(self, subpartition: int) -> BufferBuilder:
        segment = self._local.request_segment_nowait()
        if segment is None:
            raise RuntimeError("no segment: a buffer was not given back")
        return BufferBuilder(NetworkBuffer(segment, 0, self._local.recycle))

    async def wait_for_builder(self, subpartition: int) -> BufferBuilder:
        return self.request_builder(subpartition)

    def add_consumer(
        self, consumer: BufferConsumer, subpartition: int, partial_record_bytes: int = 0
    ) -> None:
        consumer.close()

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        raise NotImplementedError

    def flush(self, subpartition: int) -> None:
        pass

    def flush_all(self) -> None:
        pass

    async def wait_available(self) -> None:
        pass

    async def finish(self) -> None:
        self.release()

    def fail(self, error: SluiceError) -> None:
        raise error

    def release(self) -> None:
        self._local.destroy()
        self._pool.destroy()


class _Source:
    """A gate with one channel whose buffers are there already."""

    def __init__(self, stream: memoryview) -> None:
        step = DEFAULT_SEGMENT_SIZE_BYTES
        self._queue = deque(
            BufferOrEvent(0, OutgoingBuffer(stream[start : start + step], None, DATA))
            for start in range(0, len(stream), step)
        )
        end = encode_event(EndOfPartition(0, 0))
        self._queue.append(BufferOrEvent(0, OutgoingBuffer(end, None, EVENT)))

    def poll(self) -> BufferOrEvent | None:
        return self._queue.popleft() if self._queue else None

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        return self.poll()


def _best_us(work: Callable[[], object], rounds: int) -> float:
    """Return the least time of ``work`` per record, in microseconds."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - begin)
    return best / RECORDS / 1000


def _measure_writing(
    values: Sequence[Any],
    serializer: ValueSerializer[Any],
    selector: ChannelSelector[Any],
    num_subpartitions: int,
    rounds: int,
) -> Iterable[tuple[str, float]]:
    writer: RecordWriter[Any] = RecordWriter(_Sink(num_subpartitions), serializer, selector)

    def singly() -> None:
        for value in values:
            if writer.emit(value) is not None:
                raise RuntimeError("the writer had to wait")

    def at_once() -> None:
        if writer.emit_batch(values) is not None:
            raise RuntimeError("the writer had to wait")

    yield "emit", _best_us(singly, rounds)
    yield "emit_batch", _best_us(at_once, rounds)
    asyncio.run(writer.finish())


async def _read_singly(reader: RecordReader[Any]) -> int:
    count = 0
    while (element := await reader.next()) is not None:
        count += isinstance(element, ChannelRecord)
    return count


async def _read_batches(reader: RecordReader[Any]) -> int:
    count = 0
    while (element := await reader.read_batch()) is not None:
        if isinstance(element, ChannelRecords):
            count += len(element.values)
    return count


def _measure_reading(
    values: Sequence[Any], serializer: ValueSerializer[Any], rounds: int
) -> Iterable[tuple[str, float]]:
    payloads = [bytes(serializer.serialize(value)) for value in values]
    stream = memoryview(b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads))
    with asyncio.Runner() as runner:
        for name, read in (("next", _read_singly), ("read_batch", _read_batches)):

            def work(read: Callable[[RecordReader[Any]], Coroutine[Any, Any, int]] = read) -> None:
                if runner.run(read(RecordReader(_Source(stream), serializer, 1))) != len(values):
                    raise RuntimeError("records were lost")

            yield name, _best_us(work, rounds)


def measure(rounds: int = 100) -> Iterable[tuple[str, float]]:
    """Measure, and yield each row's name and its microseconds per record.

    Args:
        rounds: Number of measurements of each row; the best counts.
    """
    content = [bytes([index % 256]) * RECORD_BYTES for index in range(RECORDS)]
    rows = pyarrow.RecordBatch.from_pydict({"value": content})
    kinds: list[tuple[str, ValueSerializer[Any], Sequence[Any]]] = [
        ("bytes", BytesSerializer(), content),
        ("views", ViewSerializer(), content),
        ("text", StringSerializer(), [each.hex()[:RECORD_BYTES] for each in content]),
        ("int64", Int64Serializer(), range(RECORDS)),
        ("msgpack", MsgpackSerializer(), [[index, "x" * 90] for index in range(RECORDS)]),
        (
            "stream elements",
            StreamElementSerializer(BytesSerializer()),
            [StreamRecord(each, 1) for each in content],
        ),
        (f"Arrow batch of {RECORDS} rows", ArrowSerializer(), [rows]),
    ]
    for kind, serializer, values in kinds:
        for name, microseconds in (
            *_measure_writing(values, serializer, RoundRobinSelector(), 1, rounds),
            *_measure_reading(values, serializer, rounds),
        ):
            yield f"{kind}: {name}", microseconds
    for name, selector in (
        ("round robin", RoundRobinSelector[Any]()),
        ("hash", HashSelector[Any]()),
    ):
        for what, microseconds in _measure_writing(
            content, BytesSerializer(), selector, SUBPARTITIONS, rounds
        ):
            yield f"bytes: {what}, {SUBPARTITIONS} subpartitions, {name}", microseconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100, help="measurements of each row")
    arguments = parser.parse_args()
    print(f"{RECORDS} records of about {RECORD_BYTES} bytes a batch, 32 KiB segments")
    for name, microseconds in measure(arguments.rounds):
        print(f"{name:<46} {microseconds:8.3f} µs")


if __name__ == "__main__":
    main()
