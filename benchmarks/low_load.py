"""bench-low-load: packets and CPU time of credit while there is little to send.

Two processes, each with an embedded TaskManager, exchange pipelined data over TCP on the loopback.
The writer sends a buffer of 1 KiB every millisecond; the reader reads it at once. Four kinds take
turns: credit, no credit, and both over mutual TLS. In these kinds a figure ends:

* ``packets_per_buffer``: TCP segments that this machine sent, for each buffer, acknowledgements
  included. All connections of the machine count: let nothing else run.
* ``cpu_us_per_buffer``: CPU time of both processes, timers and the benchmark's own work included.
* ``credits_per_buffer``: buffers that the reader announced, for each that came.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.line_process import line_process, next_command, say
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.tls import make_certificates
from sluice import PartitionLocation, TaskManager
from sluice.protocol.schema import DATA
from sluice.shuffle.taskmanager.embedded.client import EmbeddedClient
from sluice.shuffle.taskmanager.embedded.temporary_config import temporary_config
from tests.support.cpu_time import of_process
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

BUFFER_BYTES: Final = 1024
INTERVAL_SECONDS: Final = 0.001
TURN_SECONDS: Final = 120
APPLICATION: Final = "bench"
MODES: Final = {"credit": "credit", "uncredited": "watermark"}
KINDS: Final = ("credit", "uncredited", "credit_tls", "uncredited_tls")
FIGURES: Final = ("packets_per_buffer", "cpu_us_per_buffer", "credits_per_buffer")


@contextlib.asynccontextmanager
async def taskmanagers(certificates: Path) -> AsyncIterator[dict[str, TaskManager]]:
    """Run a TaskManager for each kind."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for kind in KINDS:
            mode, _, tls = kind.partition("_")
            settings: dict[str, Any] = {"flow_control": MODES[mode]}
            if tls:
                settings |= {
                    "tls_cert_file": certificates / "both.pem",
                    "tls_key_file": certificates / "key.pem",
                    "tls_ca_file": certificates / "ca.pem",
                }
            config = stack.enter_context(temporary_config())
            transport = config.transport.model_copy(update=settings)
            config = config.model_copy(update={"transport": transport})
            found[kind] = await stack.enter_async_context(TaskManager.embedded(config))
        yield found


async def read(client: EmbeddedClient, location: PartitionLocation) -> int:
    """Read the partition to its end; return its buffers."""
    buffers = 0
    async with client.open_gate([location], 0) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            buffers += taken.buffer.data_type == DATA
            if taken.buffer.release is not None:
                taken.buffer.release()
    return buffers


async def consume(certificates: Path) -> None:
    """Read what each line of standard input names; answer with a line."""
    async with taskmanagers(certificates) as by_kind:
        say("ready")
        while (command := await next_command()) is not None:
            kind, fields = command
            taskmanager = by_kind[kind]
            counters = taskmanager.environment.counters
            before = counters.credits_sent
            async with asyncio.timeout(TURN_SECONDS), taskmanager.client(APPLICATION) as client:
                buffers = await read(client, PartitionLocation(*fields))
            say({"buffers": buffers, "credits": counters.credits_sent - before})


def sent_packets() -> int:
    """Return the TCP segments that this machine has sent."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if "Tcp:" in line
    )
    return int(values[names.index("OutSegs")])


async def measure(rounds: int, buffers: int, certificates: Path) -> list[dict[str, float]]:
    """Take all kinds in turns after a warm-up; return the findings of each round."""
    arguments = ("-m", "benchmarks.low_load", "--consume", str(certificates))
    with line_process(*arguments) as reader:
        await reader.answer()
        async with taskmanagers(certificates) as by_kind:
            runs: list[dict[str, float]] = []
            for turn in with_bar(range(rounds + 1), "rounds"):
                run: dict[str, float] = {}
                for kind, taskmanager in by_kind.items():
                    cpu = of_process(os.getpid()) + of_process(reader.pid)
                    packets = sent_packets()
                    async with (
                        taskmanager.client(APPLICATION) as client,
                        client.open_result_partition(turn, 0, 1) as partition,
                    ):
                        reader.tell([kind, list(partition.location)])
                        for _ in range(buffers):
                            await partition.emit_buffer(bytes(BUFFER_BYTES), 0)
                            await asyncio.sleep(INTERVAL_SECONDS)  # the low load
                    found = await reader.answer()
                    cpu = of_process(os.getpid()) + of_process(reader.pid) - cpu
                    count = found["buffers"]
                    run[f"{kind}_packets_per_buffer"] = (sent_packets() - packets) / count
                    run[f"{kind}_cpu_us_per_buffer"] = cpu / count * 1e6
                    run[f"{kind}_credits_per_buffer"] = found["credits"] / count
                runs.append(run)
            return runs[1:]


def main() -> None:
    """Run the benchmark, or its reader's process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--consume", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--buffers", type=int, default=1000, help="of each turn")
    arguments = parser.parse_args()
    if arguments.consume is not None:
        uvloop.run(consume(arguments.consume))
        return
    stop_on_termination()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        make_certificates(Path(directory))
        runs = uvloop.run(measure(arguments.rounds, arguments.buffers, Path(directory)))
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in (f"{kind}_{figure}" for figure in FIGURES for kind in KINDS):
        figures[name], spread[name] = median_and_spread([run[name] for run in runs])
    report = Report("low_load", figures, runs, spread)
    report.write()
    report.show(open_console(), {})


if __name__ == "__main__":
    main()
