"""A small streaming job with checkpoints, once inside Python programs and once through daemons.

::

    orders (2 tasks)   ──▶ ┐                                     ┌─▶ sums         ┐
                           ├ union ─▶ parse ─chained─▶ keyed sum ┤                ├ sink
    payments (2 tasks) ──▶ ┘          (2 tasks, keyed state)     └─▶ large (side) ┘

Sources write records with event times, watermarks and the barriers of two checkpoints. A task stops
reading each channel at a barrier until all have it, and its keyed state is then the checkpoint. It
must hold exactly the records that the sources had written before the barrier.

The job runs on two TaskManagers: first on two that are embedded in this program, with tasks beside
them in one event loop, then through two daemons. The results must be the same.

    python examples/python/streaming_checkpoints.py
    python examples/python/streaming_checkpoints.py --endpoints host1:7337,host2:7337
"""

import argparse
import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import uvloop

from sluice import HashSelector, MsgpackSerializer, PartitionLocation, ShuffleClient, TaskManager
from sluice.protocol.events import CheckpointBarrier
from sluice.protocol.schema import BLOCKING_EVENT
from sluice.shuffle.client.shuffle_environment import ShuffleEnvironment
from sluice.shuffle.dataflow.operator_outputs import (
    BroadcastingOutput,
    ChainingOutput,
    Output,
    OutputTag,
    Pending,
    RecordWriterOutput,
)
from sluice.shuffle.dataflow.stream_elements import (
    LatencyMarker,
    StreamElement,
    StreamElementSerializer,
    StreamRecord,
    StreamStatus,
    Watermark,
)
from sluice.shuffle.dataflow.union_input_gate import UnionInputGate
from sluice.shuffle.records.record_reader import ChannelRecord, RecordReader
from sluice.spark_integration.local_taskmanager import LocalTaskManager

ORDERS, PAYMENTS, SUMS, SIDE = 1, 2, 3, 4
"""The shuffles."""
TASKS = 2
"""Of each source, and of the keyed sum."""
KEYS = 20
CHECKPOINTS = 2
"""They are numbered from 1; each source has written that many thirds of its records before it."""
LARGE = OutputTag("large")
LARGE_AMOUNT = 95
LAST = Watermark(1 << 60)

ELEMENTS: StreamElementSerializer[list[object]] = StreamElementSerializer(MsgpackSerializer())


class Result(NamedTuple):
    """The result of a run."""

    sums: dict[str, int]
    large: int
    checkpoints: dict[int, Counter[str]]


# ---- the sources --------------------------------------------------------------------------------


def records_of(shuffle: int, task: int, count: int) -> Iterator[tuple[str, int, int]]:
    """Give the key, the amount and the time of each record of a source's task."""
    for number in range(count):
        mixed = (number * 7919 + task * 104729 + shuffle * 31) % 1_000_003
        yield f"key{mixed % KEYS}", mixed % 100, number


async def source(
    environment: ShuffleEnvironment,
    shuffle: int,
    task: int,
    count: int,
    opened: "asyncio.Future[PartitionLocation]",
) -> None:
    """Write all records, a watermark after each hundred, and a barrier for each checkpoint."""
    async with environment.open_result_partition(shuffle, task, TASKS) as partition:
        opened.set_result(partition.location)
        selector = HashSelector[StreamElement[list[object]]](key_of)
        writer = partition.record_writer(ELEMENTS, selector)
        for key, amount, time_ms in records_of(shuffle, task, count):
            for number in range(1, CHECKPOINTS + 1):
                if time_ms == barrier_time_ms(number, count):
                    writer.broadcast_event(
                        CheckpointBarrier(number, time_ms, False), BLOCKING_EVENT
                    )
            await done(writer.emit(StreamRecord([key, amount], time_ms)))
            if time_ms % 100 == 0:
                await done(writer.broadcast_emit(Watermark(time_ms)))
        await done(writer.broadcast_emit(LAST))


def barrier_time_ms(checkpoint: int, count: int) -> int:
    """Return the time of the first record behind a checkpoint's barrier."""
    return checkpoint * count // (CHECKPOINTS + 1)


def key_of(element: StreamElement[list[object]]) -> bytes:
    """Return the key by which records are spread over the tasks of the keyed sum."""
    return str(element.value[0]).encode() if isinstance(element, StreamRecord) else b""


async def done(pending: Pending) -> None:
    """Wait for back pressure to end, if there is any."""
    if pending is not None:
        await pending


# ---- the operators ------------------------------------------------------------------------------


class Parse:
    """Turns a list into a key and an amount, for the next operator of the same task."""

    def __init__(self, output: Output[list[object]]) -> None:
        self._output = output

    def process_record(self, record: StreamRecord[list[object]]) -> Pending:
        """Check and pass on."""
        key, amount = record.value
        return self._output.collect(StreamRecord([str(key), int(str(amount))], record.timestamp_ms))

    def process_watermark(self, watermark: Watermark) -> Pending:
        """Pass on."""
        return self._output.emit_watermark(watermark)

    def process_stream_status(self, status: StreamStatus) -> Pending:
        """Pass on."""
        return self._output.emit_stream_status(status)

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass on."""
        return self._output.emit_latency_marker(marker)


class KeyedSum(Parse):
    """Adds up the amounts of each key; large ones go to a side output too."""

    def __init__(self, output: Output[list[object]]) -> None:
        super().__init__(output)
        self.state: Counter[str] = Counter()

    def process_record(self, record: StreamRecord[list[object]]) -> Pending:
        """Add an amount."""
        key, amount = str(record.value[0]), int(str(record.value[1]))
        self.state[key] += amount
        return self._output.collect_side(LARGE, record) if amount >= LARGE_AMOUNT else None

    async def emit_sums(self) -> None:
        """Write the sum of each key at the end."""
        for key, total in sorted(self.state.items()):
            await done(self._output.collect(StreamRecord([key, total])))


class Alignment:
    """Watermarks and barriers of all channels of a task."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._watermarks: dict[int, int] = {}
        self._blocked: list[int] = []
        self.watermark = -1

    def watermark_came(self, channel: int, watermark: Watermark) -> bool:
        """Return whether event time advances: it is the earliest time of all channels."""
        self._watermarks[channel] = watermark.timestamp_ms
        earliest = min(self._watermarks.values())
        if len(self._watermarks) < self._channels or earliest <= self.watermark:
            return False
        self.watermark = earliest
        return True

    def aligned(self, channel: int) -> list[int]:
        """Return the channels to go on with, once each has had the barrier."""
        self._blocked.append(channel)
        if len(self._blocked) < self._channels:
            return []
        blocked, self._blocked = self._blocked, []
        return blocked


async def keyed_sum(
    environment: ShuffleEnvironment,
    task: int,
    inputs: Sequence[Sequence[PartitionLocation]],
    opened: "Sequence[asyncio.Future[PartitionLocation]]",
) -> dict[int, Counter[str]]:
    """Read the union of both sources, and write sums and large records."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        gates = [await enter(environment.open_gate(locations, task)) for locations in inputs]
        outputs = []
        for shuffle, tag, told in zip((SUMS, SIDE), (None, LARGE), opened, strict=True):
            partition = await enter(environment.open_result_partition(shuffle, task, 1))
            told.set_result(partition.location)
            outputs.append(RecordWriterOutput(partition.record_writer(ELEMENTS), tag))
        operator = KeyedSum(BroadcastingOutput(outputs))
        chain = Parse(ChainingOutput(operator))
        union = UnionInputGate([gate.gate for gate in gates])
        reader: RecordReader[StreamElement[list[object]]] = RecordReader(
            union, ELEMENTS, union.channels
        )
        stack.callback(reader.close)
        checkpoints = await read(reader, union, chain, operator)
        await operator.emit_sums()
        return checkpoints


async def read(
    reader: RecordReader[StreamElement[list[object]]],
    union: UnionInputGate,
    chain: Parse,
    operator: KeyedSum,
) -> dict[int, Counter[str]]:
    """Read to the end; return the state at each checkpoint."""
    alignment = Alignment(union.channels)
    states: dict[int, Counter[str]] = {}
    while (taken := await reader.next()) is not None:
        if isinstance(taken, ChannelRecord):
            element = taken.value
            if isinstance(element, StreamRecord):
                await done(chain.process_record(element))
            elif isinstance(element, Watermark) and alignment.watermark_came(
                taken.channel_index, element
            ):
                await done(chain.process_watermark(Watermark(alignment.watermark)))
        elif isinstance(taken.event, CheckpointBarrier) and (
            blocked := alignment.aligned(taken.channel_index)
        ):
            states[taken.event.checkpoint_id] = operator.state.copy()
            for channel in blocked:
                union.resume_consumption(channel)
    return states


async def sink(
    environment: ShuffleEnvironment, locations: Sequence[PartitionLocation]
) -> list[list[object]]:
    """Read the values of all records of some partitions."""
    async with environment.open_gate(locations, 0) as gate:
        return [
            element.value
            async for element in gate.records(ELEMENTS)
            if isinstance(element, StreamRecord)
        ]


# ---- the job ------------------------------------------------------------------------------------


async def run_job(environments: Sequence[ShuffleEnvironment], count: int) -> Result:
    """Run all tasks, on the TaskManagers in turn; return what they found."""
    loop = asyncio.get_running_loop()

    def on(task: int) -> ShuffleEnvironment:
        return environments[task % len(environments)]

    opened: dict[int, list[asyncio.Future[PartitionLocation]]] = {
        shuffle: [loop.create_future() for _ in range(TASKS)]
        for shuffle in (ORDERS, PAYMENTS, SUMS, SIDE)
    }
    async with asyncio.TaskGroup() as tasks:
        for shuffle in (ORDERS, PAYMENTS):
            for task in range(TASKS):
                tasks.create_task(source(on(task), shuffle, task, count, opened[shuffle][task]))
        inputs = [await asyncio.gather(*opened[shuffle]) for shuffle in (ORDERS, PAYMENTS)]
        summing = [
            tasks.create_task(
                keyed_sum(on(task), task, inputs, [opened[SUMS][task], opened[SIDE][task]])
            )
            for task in range(TASKS)
        ]
        sinks = [
            tasks.create_task(sink(on(shuffle), await asyncio.gather(*opened[shuffle])))
            for shuffle in (SUMS, SIDE)
        ]
    sums, large = (each.result() for each in sinks)
    checkpoints = {number: Counter[str]() for number in range(1, CHECKPOINTS + 1)}
    for each in summing:
        for number, state in each.result().items():
            checkpoints[number] += state
    return Result({str(key): int(str(total)) for key, total in sums}, len(large), checkpoints)


def expected(count: int) -> Result:
    """Compute the result without a shuffle."""
    sums: Counter[str] = Counter()
    checkpoints = {number: Counter[str]() for number in range(1, CHECKPOINTS + 1)}
    large = 0
    for shuffle in (ORDERS, PAYMENTS):
        for task in range(TASKS):
            for key, amount, time_ms in records_of(shuffle, task, count):
                sums[key] += amount
                large += amount >= LARGE_AMOUNT
                for number, checkpoint in checkpoints.items():
                    if time_ms < barrier_time_ms(number, count):
                        checkpoint[key] += amount
    return Result(dict(sums), large, checkpoints)


@contextlib.asynccontextmanager
async def embedded() -> AsyncIterator[list[ShuffleEnvironment]]:
    """Two TaskManagers in this program."""
    async with (
        TaskManager.embedded() as first,
        TaskManager.embedded() as second,
        first.client("streaming") as one,
        second.client("streaming") as other,
    ):
        yield [one, other]


@contextlib.asynccontextmanager
async def daemons(endpoints: Sequence[str]) -> AsyncIterator[list[ShuffleEnvironment]]:
    """Clients of two daemons."""
    application = f"streaming-{os.getpid()}"
    async with (
        await ShuffleClient.connect(endpoints[0], application) as one,
        await ShuffleClient.connect(endpoints[-1], application) as other,
    ):
        yield [one, other]


async def compare(endpoints: Sequence[str], count: int) -> None:
    """Run the job both ways, and compare."""
    right = expected(count)
    for name, ways in (("embedded", embedded()), ("daemons", daemons(endpoints))):
        async with asyncio.timeout(120), ways as environments:
            found = await run_job(environments, count)
        if found != right:
            raise SystemExit(f"{name}: the result is WRONG: {found}, not {right}")
        print(
            f"{name}: {2 * TASKS * count:,} records, {len(found.sums)} keys, "
            f"{found.large:,} large ones on the side output; both checkpoints are exact"
        )
    print("The results are the same")


def main() -> None:
    """Run the job inside this program, then through daemons."""
    parser = argparse.ArgumentParser(description="A streaming job with checkpoints, run both ways.")
    parser.add_argument("--endpoints", help="two TaskManagers that run, with a comma between them")
    parser.add_argument("--records", type=int, default=20_000, help="of each source task")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.endpoints:
            endpoints = options.endpoints.split(",")
        else:
            own = [stack.enter_context(LocalTaskManager()) for _ in range(2)]
            endpoints = [each.endpoint for each in own]
        uvloop.run(compare(endpoints, options.records))


if __name__ == "__main__":
    main()
