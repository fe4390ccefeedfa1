"""A tenant of bench-fairness: its applications and their ordinary work."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sluice.protocol.errors import SluiceError
from sluice.protocol.identity import Credential, parse_credential
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PRODUCER,
    ApplicationReleased,
    ReleaseApplication,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.client_gate import ClientGate
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.transport.address import Address
from tests.support.wire_clients import (
    Client,
    read_gate,
    write_map_output,
)

PAUSE_SECONDS: Final = 0.01
"""Between a refusal and the next try."""

SETTLE_SECONDS: Final = 0.2
"""Of exchanges before those whose times count."""

PROBE_BYTES: Final = 1024
PROBE_DEADLINE_SECONDS: Final = 20.0
"""Of all small exchanges of a turn, however slow they are."""

FAILURES: Final = (SluiceError, TimeoutError, OSError, asyncio.IncompleteReadError)


@dataclass(frozen=True, slots=True)
class Load:
    """The work of an application.

    Attributes:
        greedy: The resource that it takes all of; empty: it is an ordinary application.
        part_bytes: Bytes of a subpartition of its map outputs.
        parts: Subpartitions of a map output.
        reads: How often each map output is read.
        window: Shuffles that it keeps; the oldest is released when there are more.
        reconnects: Whether each exchange has new connections.
        tasks: Tasks that do this work at the same time, each with connections of its own.
        applications: Applications among which the connections are divided, if there is a token.
    """

    greedy: str = ""
    part_bytes: int = 64 * 1024
    parts: int = 4
    reads: int = 1
    window: int = 1
    reconnects: bool = False
    tasks: int = 1
    applications: int = 1


class Application:
    """The applications of a tenant, and the account of their work.

    Args:
        name: Its name, and the start of the names of its applications.
        socket: The Unix socket of the TaskManager.
        token: Its token; empty: it is one application without a credential.
        applications: Number of its applications.

    Attributes:
        names: The names of its applications.
        moved_bytes: Bytes written and read so far.
        exchanges: Map outputs written and read so far.
        exchanged: Set with each of them.
        errors: Failed exchanges by the name of their error.
    """

    def __init__(self, name: str, socket: str, token: str = "", applications: int = 1) -> None:
        self.names = [f"{name}.{number}" for number in range(applications)] if token else [name]
        self.address = Address(socket, 0)
        self._token = token
        self._turns = itertools.cycle(self.names)
        self.moved_bytes = 0
        self.exchanges = 0
        self.exchanged = asyncio.Event()
        self.errors: Counter[str] = Counter()
        self._shuffles = itertools.count()

    async def work(self, load: Load) -> None:
        """Do ordinary exchanges until cancelled; after an error with new connections."""
        while True:
            failed = self.errors.total()
            with self.counted_errors():
                async with self.connections() as (writer, reader, releaser):
                    kept: list[int] = []
                    while not load.reconnects or not kept:
                        kept.append(await self.exchange(load, writer, reader))
                        if len(kept) > load.window:
                            await release(releaser, kept.pop(0))
                    for shuffle in kept:
                        await release(releaser, shuffle)
            if self.errors.total() > failed:
                await asyncio.sleep(PAUSE_SECONDS)

    async def exchange(self, load: Load, writer: Client, reader: Client) -> int:
        """Write and read a map output; return its shuffle."""
        shuffle = next(self._shuffles)
        parts = [bytes(load.part_bytes)] * load.parts
        size = load.part_bytes * load.parts
        await write_map_output(writer, shuffle, 0, [parts])
        self.moved_bytes += size
        for _ in range(load.reads):
            (content,) = await read_gate(
                reader, shuffle, [(reader.ack, [0])], 0, load.parts, credit=16
            )
            if len(content) != size:
                raise RuntimeError(f"{len(content)} bytes instead of {size}")
            self.moved_bytes += size
        self.exchanges += 1
        self.exchanged.set()
        return shuffle

    @contextlib.contextmanager
    def counted_errors(self) -> Iterator[None]:
        """Count an error of the TaskManager, or of a connection, instead of raising it."""
        try:
            yield
        except SluiceError as error:
            self.errors[error.code.name] += 1
        except (TimeoutError, OSError) as error:
            self.errors[type(error).__name__] += 1

    async def connect(self, role: int, name: str = "") -> Client:
        """Connect as an application of a name, or as the next one."""
        name = name or next(self._turns)
        return await Client.connect(
            self.address, role, name, credential=self.credential(name, role)
        )

    def credential(self, name: str, role: int) -> Credential | None:
        """Return the credential of an application, if there is a token."""
        if not self._token:
            return None
        driver = parse_credential(self._token, name)
        return driver if role == ROLE_DRIVER else driver.for_tasks()

    @contextlib.asynccontextmanager
    async def connections(self) -> AsyncIterator[tuple[Client, Client, Client]]:
        """Give a connection of each role; they end with the block."""
        opened: list[Client] = []
        name = next(self._turns)
        try:
            opened.append(writer := await self.connect(ROLE_PRODUCER, name))
            opened.append(reader := await self.connect(ROLE_CONSUMER, name))
            opened.append(releaser := await self.connect(ROLE_DRIVER, name))
            yield writer, reader, releaser
        finally:
            for client in opened:
                drop(client)

    async def release(self) -> None:
        """Release everything of the applications."""
        for name in self.names:
            client = await self.connect(ROLE_DRIVER, name)
            client.send(ReleaseApplication())
            await client.expect(ApplicationReleased)
            await client.close()

    async def probe(self, seconds: float) -> dict[str, Any]:
        """Send 1 KiB after 1 KiB through a pipelined partition; return the times of it."""
        times: list[float] = []
        with self.counted_errors():
            async with (
                asyncio.timeout(PROBE_DEADLINE_SECONDS),
                await ShuffleClient.connect(
                    self.address,
                    self.names[0],
                    credential=self.credential(self.names[0], ROLE_DRIVER),
                ) as client,
                client.open_result_partition(next(self._shuffles), 0, 1) as partition,
                client.open_gate([partition.location], 0) as gate,
            ):
                await exchange(partition, gate, SETTLE_SECONDS)
                times = await exchange(partition, gate, seconds)
                await partition.finish()
                while await gate.next_buffer_or_event() is not None:
                    pass
        # An application without a single exchange has waited for the whole time.
        times = times or [PROBE_DEADLINE_SECONDS * 1000]
        return {"p99_ms": sorted(times)[len(times) * 99 // 100], "exchanges": len(times)}


async def exchange(partition: ResultPartition, gate: ClientGate, seconds: float) -> list[float]:
    """Send buffers one by one; return the milliseconds of each."""
    found = []
    payload = bytes(PROBE_BYTES)
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


def drop(client: Client) -> None:
    """End a connection without a word, if it is not lost."""
    if client.lost is None:
        with contextlib.suppress(AssertionError):
            client.vanish()


async def release(client: Client, shuffle: int) -> None:
    """Release a shuffle."""
    client.send(ReleaseShuffle(shuffle))
    await client.expect(ShuffleReleased)
