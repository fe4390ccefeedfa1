"""bench-http-flood: an exchange of 1 KiB while others flood the HTTP port, over the same without.

A TaskManager in a process of its own; a client that writes a pipelined partition and reads it back,
buffer by buffer, over the Unix socket; and four scrapers in a third process that ask for
``/metrics`` again as soon as they have an answer. Turns alternate after a warm-up: quiet, flooded
over connections that stay open (``kept``), and flooded with a new connection for each request
(``fresh``).

* ``kept_p99_over_quiet``, ``fresh_p99_over_quiet``: the 99th percentile of the time from the write
  of a buffer to its arrival, over that of the quiet turn of the same round; ``..._p50_...`` the
  medians. They miss their aim if HTTP work delays the data loop, by its own time or because it
  holds the interpreter.
* ``kept_requests_per_second``, ``fresh_requests_per_second``: answers that the scrapers got.
* ``quiet_p99_ms``: the 99th percentile of the quiet turns.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.line_process import line_process, next_command, say
from benchmarks.processes import stop_on_termination
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.taskmanagers import TaskManagers
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.client_gate import ClientGate
from sluice.shuffle.client.result_partition import ResultPartition

HOST: Final = "127.0.0.1"
BUFFER_BYTES: Final = 1024
SCRAPERS: Final = 4
FLOODS: Final = ("kept", "fresh")
SETTLE_SECONDS: Final = 0.5
"""Time of a flood before it is measured: what the TaskManager allows at once is used up then."""

TURN_DEADLINE_SECONDS: Final = 60.0
AIMS: Final = {"kept_p99_over_quiet": "≤ 2", "fresh_p99_over_quiet": "≤ 2"}


async def scrape_kept(port: int) -> None:
    """Ask for the metrics over one connection until cancelled."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        while True:
            await scrape(reader, writer)
            Answers.count += 1
    finally:
        writer.close()


async def scrape_fresh(port: int) -> None:
    """Ask for the metrics over a new connection each time until cancelled."""
    while True:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            await scrape(reader, writer)
            Answers.count += 1
        finally:
            writer.close()


async def scrape(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request and read its answer."""
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: benchmark\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    lengths = [line for line in lines if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0].partition(b":")[2]))


class Answers:
    """Counts the answers that all scrapers of this process have got."""

    count = 0


async def again(port: int, kind: str) -> None:
    """Scrape until cancelled, also when the TaskManager ends a connection."""
    once = scrape_kept if kind == "kept" else scrape_fresh
    while True:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await once(port)


async def flood(port: int) -> None:
    """In the child: flood while told to; answer the end of each flood with its requests."""
    say("ready")
    scrapers: list[asyncio.Task[None]] = []
    while (command := await next_command()) is not None:
        for scraper in scrapers:
            scraper.cancel()
        if scrapers:
            await asyncio.wait(scrapers)
            say(Answers.count)
        Answers.count = 0
        loop = asyncio.get_running_loop()
        scrapers = [
            loop.create_task(again(port, command)) for _ in range(SCRAPERS if command else 0)
        ]


async def exchange(partition: ResultPartition, gate: ClientGate, seconds: float) -> list[float]:
    """Send buffers one by one; return the milliseconds of each."""
    found = []
    payload = bytes(BUFFER_BYTES)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await partition.emit_buffer(payload, 0)
        taken = await gate.next_buffer_or_event()
        found.append((time.perf_counter() - began) * 1000)
        if taken is None:
            raise RuntimeError("the partition has ended")
        if taken.buffer.release is not None:
            taken.buffer.release()
    return found


async def measure(
    taskmanagers: TaskManagers, rounds: int, seconds: float
) -> list[dict[str, float]]:
    """Take all kinds of turns after a warm-up; return the findings of each round."""
    port = int(taskmanagers.metrics_urls[0].rpartition(":")[2].partition("/")[0])
    endpoint = taskmanagers.endpoints.format(host=HOST)
    runs: list[dict[str, float]] = []
    with line_process("-m", "benchmarks.http_flood", "--flood", str(port)) as scrapers:
        await scrapers.answer()
        async with (
            await ShuffleClient.connect(endpoint, "bench") as client,
            client.open_result_partition(1, 0, 1) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            await exchange(partition, gate, seconds)
            for _ in range(rounds):
                run: dict[str, float] = {}
                for kind in ("quiet", *FLOODS):
                    if kind != "quiet":
                        scrapers.tell(kind)
                        await asyncio.sleep(SETTLE_SECONDS)
                    async with asyncio.timeout(TURN_DEADLINE_SECONDS + seconds):
                        times = await exchange(partition, gate, seconds)
                    run[f"{kind}_p50_ms"] = statistics.median(times)
                    run[f"{kind}_p99_ms"] = percentile(times, 0.99)
                    run[f"{kind}_exchanges"] = len(times)
                    if kind != "quiet":
                        scrapers.tell("")
                        answers = await scrapers.answer()
                        run[f"{kind}_requests_per_second"] = answers / (seconds + SETTLE_SECONDS)
                        for name in ("p99", "p50"):
                            over = run[f"{kind}_{name}_ms"] / run[f"quiet_{name}_ms"]
                            run[f"{kind}_{name}_over_quiet"] = over
                runs.append(run)
            await partition.finish()
            while await gate.next_buffer_or_event() is not None:
                pass
    return runs


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    """Run the benchmark, or its scrapers' process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flood", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    arguments = parser.parse_args()
    if arguments.flood is not None:
        uvloop.run(flood(arguments.flood))
        return
    stop_on_termination()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        TaskManagers(Path(directory), hosts=[HOST], memory_tier="64 MiB") as taskmanagers,
    ):
        runs = uvloop.run(measure(taskmanagers, arguments.rounds, arguments.seconds))
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in [name for name in runs[0] if not name.endswith("_exchanges")]:
        figures[name], spread[name] = median_and_spread([run[name] for run in runs])
    report = Report("http_flood", figures, runs, spread)
    report.write()
    report.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
