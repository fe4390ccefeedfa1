"""bench-waits: what finding the waits of a busy TaskManager costs its event loop.

A thousand gates of ten channels wait, for one of four causes. A figure is the CPU time of one
``waits_of`` in milliseconds: the best of 20 calls.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Report, open_console
from sluice.shuffle.taskmanager.serve.channel_times import WAITING_FOR_CREDIT
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.status.waits import waits_of
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import open_gate

CAUSES: Final = ("credit", "same", "distinct", "many")
"""Gates wait for credit, for the same map outputs, for other subpartitions each, or for map outputs
of a shuffle each."""

REGION_BYTES: Final = 32 * 1024
CALLS: Final = 20


def main() -> int:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=10)
    options = parser.parse_args()
    causes = {
        f"{cause}_milliseconds": asyncio.run(_measure(cause, options.gates, options.channels))
        for cause in CAUSES
    }
    figures = {name: min(times) for name, times in causes.items()}
    spread = {name: (min(times), max(times)) for name, times in causes.items()}
    report = Report("waits", figures, [causes], spread)
    report.show(open_console())
    report.write()
    return 0


async def _measure(cause: str, gates: int, channels: int) -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        patience = {"partition_request_timeout_seconds": 600}
        async with mini_cluster(Path(directory), 1, check=False, **patience) as cluster:
            environment = cluster[0]
            client = await cluster.consumer(0)
            if cause == "credit":
                for map_attempt_id in range(channels):
                    await cluster.write(0, map_attempt_id, [[bytes(REGION_BYTES)]])
            sources = [(client.ack, [each]) for each in range(channels)]
            for gate in range(gates):
                shuffle_id = gate if cause == "many" else 1
                first = gate if cause == "distinct" else 0
                number = gate * (channels + 1)
                open_gate(
                    client, shuffle_id, sources, first, first + 1, first_number=number, credit=2
                )
            if cause == "credit":
                await eventually(lambda: _without_credit(environment) == gates)
            else:
                await eventually(
                    lambda: environment.partitions.waiting_requests == gates * channels
                )
            return _milliseconds(environment)


def _without_credit(environment: NetworkEnvironment) -> int:
    """Return the gates with a channel that waits for credit."""
    handlers = environment.handlers.values()
    gates = [
        times
        for handler in handlers
        if isinstance(handler, ConsumerHandler)
        for times in handler.gate_times.values()
    ]
    return sum(times.counts[WAITING_FOR_CREDIT] > 0 for times in gates)


def _milliseconds(environment: NetworkEnvironment) -> list[float]:
    times = []
    for _ in range(CALLS):
        began = time.process_time()
        waits_of(environment)
        times.append(1000 * (time.process_time() - began))
    return times


if __name__ == "__main__":
    sys.exit(main())
