"""Records per second from a producer to a consumer through two TaskManagers.

Producer, consumer and both TaskManagers are processes of their own. The producer writes the records
of a pipelined partition with one subpartition; the consumer, on the other TaskManager, reads them.
*single* makes a call for each record on both sides, *batch* moves many records per call.

    python examples/python/throughput.py
    python examples/python/throughput.py --seconds 10 --record-bytes 1000
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import uvloop

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.spark_integration.local_taskmanager import LocalTaskManager

BATCH_RECORDS = 500


async def consume(endpoint: str, application: str, fields: tuple[object, ...], batch: bool) -> int:
    """Read all records; return their number."""
    location = PartitionLocation(*fields)  # type: ignore[arg-type]
    records = 0
    async with (
        await ShuffleClient.connect(endpoint, application) as client,
        client.open_gate([location], 0) as gate,
    ):
        reader = gate.reader(BytesSerializer())
        if batch:
            while (taken := await reader.read_batch()) is not None:
                if isinstance(taken, ChannelRecords):
                    records += len(taken.values)
        else:
            while (element := await reader.next()) is not None:
                if isinstance(element, ChannelRecord):
                    records += 1
    return records


def consumer(timeout_seconds: float, *arguments: object) -> int:
    """Run the consumer in this process."""
    return uvloop.run(asyncio.wait_for(consume(*arguments), timeout_seconds))  # type: ignore[arg-type]


async def measure(
    endpoints: list[str],
    processes: ProcessPoolExecutor,
    options: argparse.Namespace,
    *,
    batch: bool,
) -> float:
    """Write for a while; return records per second until the last one was read."""
    application = f"throughput-{os.getpid()}"
    record = bytes(options.record_bytes)
    records = [record] * BATCH_RECORDS
    written = 0
    timeout = 3 * options.seconds + 60
    async with asyncio.timeout(timeout), await ShuffleClient.connect(
        endpoints[0], application
    ) as client:  # fmt: skip
        async with client.open_result_partition(1, int(batch), 1) as partition:
            location = tuple(partition.location)
            reading = processes.submit(
                consumer, timeout, endpoints[-1], application, location, batch
            )
            writer = partition.record_writer(BytesSerializer())
            # The consumer's process starts meanwhile: time begins when both pools are in use.
            while partition.writer.is_available:
                await emit(writer.emit_batch(records))
                written += BATCH_RECORDS
            await emit(writer.emit_batch(records))
            written += BATCH_RECORDS
            before, began = written, time.perf_counter()
            while time.perf_counter() < began + options.seconds:
                if batch:
                    await emit(writer.emit_batch(records))
                else:
                    for each in records:
                        if (pending := writer.emit(each)) is not None:
                            await pending
                written += BATCH_RECORDS
            seconds = time.perf_counter() - began
        read = await asyncio.wrap_future(reading)
    if read != written:
        raise SystemExit(f"The result is WRONG: {written} records written, {read} read")
    return (written - before) / seconds


async def emit(pending: object) -> None:
    """Wait for back pressure, if there is any."""
    if pending is not None:
        await pending  # type: ignore[misc]


def main() -> None:
    """Measure both ways and print the figures."""
    parser = argparse.ArgumentParser(description="Records per second through two TaskManagers.")
    parser.add_argument("--endpoints", help="TaskManagers that run, with commas between them")
    parser.add_argument("--seconds", type=float, default=5, help="for each way of writing")
    parser.add_argument("--record-bytes", type=int, default=100)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.endpoints:
            endpoints = options.endpoints.split(",")
        else:
            endpoints = [stack.enter_context(LocalTaskManager()).endpoint for _ in range(2)]
        spawn = multiprocessing.get_context("spawn")
        processes = stack.enter_context(ProcessPoolExecutor(1, spawn))
        for batch in (False, True):
            rate = uvloop.run(measure(endpoints, processes, options, batch=batch))
            print(
                f"{'batch' if batch else 'single'}: {rate:,.0f} records of"
                f" {options.record_bytes} bytes/s, {rate * options.record_bytes / 1e6:,.0f} MB/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
