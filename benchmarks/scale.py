"""bench-scale: the work of one host of a large cluster while a shuffle is read, by simulation.

``benchmarks.simulation`` plays a host of clusters of up to 1,000 hosts, 10,000 map tasks and 10,000
reduce tasks, in virtual time. Real TaskManagers in this process do the same shuffle at a small size
over loopback, and their messages are counted: the agreement tells how far the simulation can be
trusted. The table and the chart of ``docs/internals/performance.md`` come from here (``--docs``).
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import uvloop
from rich.table import Table

from benchmarks.exchange import environment
from benchmarks.line_chart import Line, Panel, draw
from benchmarks.report import Report, open_console
from benchmarks.simulation import (
    APPLICATION_ID,
    MAP_ATTEMPT_ID,
    Outcome,
    Setting,
    Workload,
    simulate,
)
from sluice.protocol.schema import DATA, ROLE_PEER, BufferResponse, Message
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport import connector, listener
from sluice.transport.connection import Connection
from sluice.transport.write_side import Release
from tests.support.wire_clients import consumer, open_gate, producer, write_map_output

HOSTS = (10, 30, 100, 300, 1000)
TASKS_PER_HOST = 10
"""Map tasks, and as many reduce tasks."""
BYTES_PER_HOST = 1_000_000_000
"""Of map output: the cluster grows with its data, and blocks become smaller."""

SMALL = Workload(hosts=4, maps=16, reducers=16, block_bytes=100_000, slots_per_host=2)
SMALL_SETTING = Setting(floating_buffers=8)
"""So few that a channel has more to send than it can have buffers, as in a large job."""
SMALL_DEADLINE_SECONDS = 60.0
SHUFFLE_ID = 1

DOCS = Path(__file__).resolve().parent.parent / "docs"
DOCUMENT = DOCS / "internals" / "performance.md"
CHART = DOCS / "images" / "scale.svg"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

COLUMNS = (
    "hosts",
    "maps = reducers",
    "block bytes",
    "connections",
    "requests",
    "data frames",
    "credit messages",
    "credit waits",
    "control bytes / data",
    "channels at a time",
    "buffers, MiB",
    "buffers without the limit, MiB",
)


def workload_of(hosts: int) -> Workload:
    """Return the workload of a cluster of this many hosts."""
    tasks = hosts * TASKS_PER_HOST
    return Workload(hosts, tasks, tasks, BYTES_PER_HOST // (TASKS_PER_HOST * tasks))


def sweep(all_hosts: Iterable[int] = HOSTS) -> list[tuple[Workload, Outcome, Outcome]]:
    """Simulate each cluster, with the limit of open channels and without."""
    return [
        (work, simulate(work), simulate(work, Setting(most_open_channels=None)))
        for work in map(workload_of, all_hosts)
    ]


def rows_of(results: Sequence[tuple[Workload, Outcome, Outcome]]) -> list[tuple[str, ...]]:
    """The rows of the table, a cell for each of ``COLUMNS``."""
    segment_mib = Setting().segment_size_bytes / 2**20
    return [
        (
            f"{work.hosts:,}",
            f"{work.maps:,}",
            f"{work.block_bytes:,}",
            # One to each peer for the data read here, one from each for the data read there.
            f"{2 * (work.hosts - 1):,}",
            f"{seen.messages['PartitionRequest']:,}",
            f"{data_frames(seen):,}",
            f"{seen.messages['AddCredit']:,}",
            f"{seen.credit_waits:,}",
            f"{seen.control_bytes / seen.data_bytes:.2%}",
            f"{seen.most_open_channels:,}",
            f"{seen.most_segments * segment_mib:.1f}",
            f"{unlimited.most_segments * segment_mib:.1f}",
        )
        for work, seen, unlimited in results
    ]


def data_frames(seen: Outcome) -> int:
    """Return the frames with data: all BufferResponses but the one that ends each channel."""
    return seen.messages["BufferResponse"] - seen.messages["PartitionRequest"]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---:|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def document_with(table: str, document: str) -> str:
    """``document`` with another table between its marks.

    Raises:
        ValueError: It has no marks.
    """
    before, rest = document.split(BEGIN, 1)
    return before + BEGIN + "\n" + table + "\n" + END + rest.split(END, 1)[1]


# ---- the same for real, at a small size ----------------------------------------------------------


class PeerMessages:
    """Counts the messages that TaskManagers of this process send each other."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.data_bytes = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Count the messages of connections that are made before the end of the block."""
        count = self._count

        class Counting(Connection):
            def send(
                self,
                message: Message,
                payload: memoryview | bytes = b"",
                release: Release | None = None,
                more: Sequence[memoryview | bytes] = (),
            ) -> None:
                count(self, message, len(payload) + sum(map(len, more)))
                super().send(message, payload, release, more)

            def send_together(self, messages: Iterable[Message]) -> None:
                kept = list(messages)
                for message in kept:
                    count(self, message, 0)
                super().send_together(kept)

        with (
            mock.patch.object(connector, "Connection", Counting),
            mock.patch.object(listener, "Connection", Counting),
        ):
            yield

    def _count(self, connection: Connection, message: Message, length: int) -> None:
        if connection.role != ROLE_PEER:
            return
        self.messages[type(message).__name__] += 1
        if type(message) is BufferResponse and message.data_type == DATA:
            self.data_bytes += length


async def run_small(work: Workload, directory: Path) -> PeerMessages:
    """Do a shuffle with real TaskManagers on loopback; return their messages."""
    counted = PeerMessages()
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(SMALL_DEADLINE_SECONDS):
        hosts = [
            await stack.enter_async_context(_host(directory, number))
            for number in range(work.hosts)
        ]
        acks = {}
        for attempt in range(work.maps):
            writer = await producer(hosts[attempt % work.hosts].address, APPLICATION_ID)
            parts = [bytes(work.block_bytes)] * work.reducers
            await write_map_output(writer, SHUFFLE_ID, MAP_ATTEMPT_ID + attempt, [parts])
            acks[attempt % work.hosts] = writer.ack
            await writer.close()
        sources = [
            (ack, range(MAP_ATTEMPT_ID + number, MAP_ATTEMPT_ID + work.maps, work.hosts))
            for number, ack in acks.items()
        ]

        async def slot(host: NetworkEnvironment, partitions: Iterable[int]) -> None:
            reader = await consumer(host.address, APPLICATION_ID)
            for partition in partitions:
                gate = open_gate(reader, SHUFFLE_ID, sources, partition, partition + 1, credit=16)
                await gate.read_all()
                await gate.close()
            await reader.close()

        with counted.watch():
            await asyncio.gather(
                *(
                    slot(
                        host,
                        range(number, work.reducers, work.hosts)[first :: work.slots_per_host],
                    )
                    for number, host in enumerate(hosts)
                    for first in range(work.slots_per_host)
                )
            )
    return counted


@contextlib.asynccontextmanager
async def _host(directory: Path, number: int) -> AsyncIterator[NetworkEnvironment]:
    buffers = {"floating_buffers_per_stored_gate": SMALL_SETTING.floating_buffers}
    host = f"127.0.0.{number + 2}"
    async with environment(directory, host, buffers=buffers) as running:
        yield running


def agreement(work: Workload, seen: Outcome, counted: PeerMessages) -> dict[str, float]:
    """Return counted over simulated messages, for each quantity; 1 where they agree."""
    ratios = {
        f"{name}_counted_over_simulated": counted.messages[name] / (work.hosts * number)
        for name, number in sorted(seen.messages.items())
    }
    ratios["data_bytes_counted_over_simulated"] = counted.data_bytes / (
        work.hosts * seen.data_bytes
    )
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, check against a real run, print; ``--docs`` renews the document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--docs", action="store_true", help=f"renew the table of {DOCUMENT.name} and the chart"
    )
    options = parser.parse_args(arguments)
    console = open_console()
    results = sweep()
    rows = rows_of(results)
    table = Table(title="one host of a cluster, simulated")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    with tempfile.TemporaryDirectory(prefix="sluice-scale-") as directory:
        counted = uvloop.run(run_small(SMALL, Path(directory)))
    figures = agreement(SMALL, simulate(SMALL, SMALL_SETTING), counted)
    _, largest, _ = results[-1]
    figures["requests_at_1000_hosts"] = largest.messages["PartitionRequest"]
    figures["segments_at_1000_hosts"] = largest.most_segments
    runs = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    report = Report("scale", figures, runs, {})
    report.show(console)
    console.print(f"Written: {report.write()}", soft_wrap=True)
    if options.docs:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(document_with(markdown(rows), document), encoding="utf-8")
        draw_chart(results)
    return 0


def draw_chart(results: Sequence[tuple[Workload, Outcome, Outcome]]) -> None:
    """Draw messages and memory of a host over the number of hosts."""
    segment_mib = Setting().segment_size_bytes / 2**20
    draw(
        CHART,
        [f"{work.hosts:,}" for work, _, _ in results],
        "hosts",
        [
            Panel(
                "messages of a host",
                [
                    Line("requests", [s.messages["PartitionRequest"] for _, s, _ in results]),
                    Line("data frames", [data_frames(s) for _, s, _ in results]),
                    Line("credit messages", [s.messages["AddCredit"] for _, s, _ in results]),
                ],
            ),
            Panel(
                "buffers of a host, MiB",
                [
                    Line(
                        "64 channels a gate", [s.most_segments * segment_mib for _, s, _ in results]
                    ),
                    Line("all channels", [u.most_segments * segment_mib for _, _, u in results]),
                ],
                logarithmic=True,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
