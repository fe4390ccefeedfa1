"""A TaskManager with connections in memory, and the invariants for any input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

import sluice.shuffle.taskmanager.cluster.peer_connector
from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import (
    FIRST_CONTROL_BYTES,
    MAX_LARGE_PAYLOAD_BYTES,
    PREFIX_BYTES,
    VERSION,
)
from sluice.protocol.schema import (
    FLOW_CREDIT,
    ROLE_PRODUCER,
    ErrorResponse,
    Hello,
    HelloAck,
    Message,
    PartitionFinished,
    Ping,
    Pong,
    decode_control,
)
from sluice.protocol.states import ALLOWED_WHEN_OPEN, Side
from sluice.shuffle.names import ShuffleKey
from sluice.transport.access import Accepting
from sluice.transport.config import TransportConfig
from sluice.transport.connection import Connection, ConnectionHandler, HandlerFactory
from tests.support.fuzz_streams import (
    REMOTE_ID,
    SEGMENT_SIZE_BYTES,
    SHUFFLE,
    STORED_ATTEMPTS,
    hello,
    map_output,
)
from tests.support.memory_transport import MemoryTransport
from tests.support.mini_cluster import (
    eventually,
    mini_cluster,
    network_leftovers,
    storage_leftovers,
    until_clean,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from sluice.protocol.identity import Credential
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from sluice.transport.peer_networks import PeerNetworks
    from tests.support.fuzz_streams import Step
    from tests.support.memory_budget import MemoryBudget

CLEAN_SECONDS = 20.0
"""Time in which everything must be given back; it takes milliseconds."""

LOOK_AGAIN_SECONDS = 0.001

MAX_STORED_BYTES = 2 * 1024 * 1024
"""Bytes that the fuzzer may commit before everything is released."""

CONFIG = TransportConfig(write_low_watermark_bytes=4096, write_high_watermark_bytes=8192)
KEY = ShuffleKey("app", SHUFFLE)


class Complaints(logging.Handler):
    """Collects errors that must never be logged or reported to the event loop."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self.found.append(text)

    def from_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.found.append(f"event loop: {context}")


class Listening:
    """Passes everything on to a handler, and notes which messages there were.

    Args:
        handler: The handler.
        connection: Its connection.
        heard: Where they are noted.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        connection: Connection,
        heard: set[tuple[Side, int, type[Message]]],
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._heard = heard
        self.payload_buffer = handler.payload_buffer
        self.writable = handler.writable
        self.connection_lost = handler.connection_lost

    def message_received(self, message: Message, payload_length: int) -> None:
        state = self._connection.state
        self._heard.add((state.side, state.role, type(message)))
        self._handler.message_received(message, payload_length)


class MadeConnections:
    """Stands in for :func:`sluice.transport.connector.connect`: another TaskManager shakes hands.

    Attributes:
        heard: The types of the messages that handlers got, by side and role of their connection.
        peers: Connections that were made.
        transports: Those of all connections.
    """

    def __init__(self) -> None:
        self.heard: set[tuple[Side, int, type[Message]]] = set()
        self.peers: asyncio.Queue[MemoryTransport] = asyncio.Queue()
        self.transports: list[MemoryTransport] = []

    async def connect(
        self,
        address: object,
        hello: Hello,
        handler_factory: HandlerFactory,
        config: TransportConfig,
        segment_size_bytes: int,
        *_: Credential | PeerNetworks | Callable[[Connection], None] | None,
    ) -> tuple[Connection, HelloAck]:
        """Make a connection, and answer its Hello."""
        factory = self.listened(handler_factory)
        connection = Connection(config, segment_size_bytes, factory, hello=hello)
        transport = self.keep(connection)
        ack = HelloAck(
            VERSION, REMOTE_ID, SEGMENT_SIZE_BYTES, FLOW_CREDIT, 0, "127.0.0.1", 1, "i", 0, 1
        )
        connection.message_received(ack, 0)
        self.peers.put_nowait(transport)
        return connection, ack

    def listened(self, factory: HandlerFactory) -> HandlerFactory:
        """Note the messages that a factory's handlers get."""
        return lambda connection, greeting: Listening(
            factory(connection, greeting), connection, self.heard
        )

    def keep(self, connection: Connection) -> MemoryTransport:
        """Give a connection its transport."""
        transport = MemoryTransport(connection)
        self.transports.append(transport)
        return transport


async def play(
    transport: MemoryTransport, steps: Iterable[Step], fed: Callable[[Step], None]
) -> None:
    """Send the bytes of a fuzzer, as far as the connection reads.

    Args:
        transport: The connection.
        steps: The bytes.
        fed: Called after each step.
    """
    for step in steps:
        if step.hold:
            transport.hold()
        else:
            transport.flow()
        goes_on = await transport.feed(step.data)
        fed(step)
        if not goes_on:
            return
        for _ in range(step.turns):
            await asyncio.sleep(0)


class Target(MadeConnections):
    """A TaskManager to speak to.

    Args:
        environment: Its network environment.
        complaints: Where its bugs show.
    """

    def __init__(self, environment: NetworkEnvironment, complaints: Complaints) -> None:
        super().__init__()
        self.environment = environment
        self.complaints = complaints
        self.others: set[str] = set()
        """Applications besides that of :data:`KEY`; the next check releases them."""
        self.fed_bytes = 0
        """Bytes that the fuzzer has sent since the last check."""
        self.memory_budget: MemoryBudget | None = None
        """Checked after every step of a fuzzer."""
        self.ended = False
        """True when an example has failed; later checks are skipped."""

    def accept(self) -> MemoryTransport:
        """Let the TaskManager accept a connection."""
        environment = self.environment
        return self.keep(
            Connection(
                CONFIG,
                SEGMENT_SIZE_BYTES,
                self.listened(environment._accepted),
                accepting=Accepting(
                    environment._offer(),
                    environment.access,
                    control_memory=environment.listener.control_memory,
                ),
            )
        )

    async def stock(self) -> None:
        """Commit the map outputs of the fuzzer; release all when they have become many."""
        store = self.environment.store
        if store.statistics().stored_bytes > MAX_STORED_BYTES:
            self.environment.applications.release(KEY.application_id)
        if all(store.lookup(KEY, n) is not None for n in STORED_ATTEMPTS):
            return
        # The whole shuffle, because it takes no attempts that a driver has released alone.
        self.environment.partitions.release_shuffle(KEY)
        # The memory tier has room again when its own journal has the release.
        await eventually(lambda: not any(tier.used_bytes for tier in store.tiers()))
        transport = self.accept()
        await transport.feed(hello(ROLE_PRODUCER))
        for attempt in STORED_ATTEMPTS:
            for part in map_output(attempt, attempt):
                assert await transport.feed(part)
        await eventually(
            lambda: (
                [type(said) for said in sent(transport)].count(PartitionFinished)
                == len(STORED_ATTEMPTS)
            )
        )
        await transport.end()

    async def play(self, transport: MemoryTransport, steps: list[Step]) -> None:
        """Send the bytes of a fuzzer, as far as the connection reads."""
        await play(transport, steps, self._fed)

    async def check(self) -> None:
        """End everything; nothing is left, nothing was a bug, all that was said is the protocol."""
        await self._end_all()
        released, self.others = self.others, set()
        if len(self.environment.copies.replication.holdings):  # else it makes copies for ever
            released.add(KEY.application_id)
        for application_id in released:
            self.environment.applications.release(application_id)
        await self._until_clean()
        for transport in self.transports:
            check_sent(transport)
        self.transports.clear()
        self.fed_bytes = 0
        while not self.peers.empty():
            self.peers.get_nowait()
        assert not self.complaints.found, self.complaints.found

    def _fed(self, step: Step) -> None:
        """Check that control parts and unread answers take no more than their bytes are worth."""
        self.fed_bytes += len(step.data)
        said = sum(len(transport.written) for transport in self.transports)
        most = 2 * self.fed_bytes + said + len(self.transports) * 2 * FIRST_CONTROL_BYTES
        assert self.environment.listener.control_memory.used_bytes <= most
        if self.memory_budget is not None:
            self.memory_budget.check()

    async def _end_all(self) -> None:
        for transport in self.transports:
            await transport.end()

    async def _until_clean(self) -> None:
        """Wait until all is released; the wait is short, because a leak does not go away."""
        replication = self.environment.copies.replication
        try:
            async with asyncio.timeout(CLEAN_SECONDS):
                while network_leftovers(self.environment) or replication.waiting:
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
                    await self._end_all()  # a copy of what was committed late has begun meanwhile
        except TimeoutError:
            raise AssertionError(f"left behind: {network_leftovers(self.environment)}") from None


@contextlib.asynccontextmanager
async def target(directory: Path, **settings: Any) -> AsyncIterator[Target]:
    """Start a TaskManager for a fuzzer; at the end all memory is back in its pool."""
    complaints = Complaints()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(complaints.from_loop)
    logging.getLogger().addHandler(complaints)
    try:
        async with mini_cluster(
            directory,
            1,
            check=False,
            segment_size_bytes=SEGMENT_SIZE_BYTES,
            memory_tier_bytes=64 * 1024,
            peer_idle_timeout_seconds=0,
            partition_request_timeout_seconds=0.05,
            map_output_resume_timeout_seconds=0.05,
            **settings,
        ) as cluster:
            made = Target(cluster[0], complaints)
            with mock.patch.object(
                sluice.shuffle.taskmanager.cluster.peer_connector, "connect", made.connect
            ):
                yield made
                if not made.ended:
                    await made.check()
                    made.environment.applications.release(KEY.application_id)
                    await until_clean(made.environment, storage_leftovers)
    finally:
        logging.getLogger().removeHandler(complaints)
        loop.set_exception_handler(None)


def sent(transport: MemoryTransport) -> list[Message]:
    """Return the complete messages that a connection has sent so far."""
    data = bytes(transport.written)
    messages: list[Message] = []
    position = 0
    while len(data) - position >= PREFIX_BYTES:
        control, payload = (
            int.from_bytes(data[position + at : position + at + 4]) for at in (0, 4)
        )
        start = position + PREFIX_BYTES
        if len(data) < start + control + payload:
            break
        messages.append(decode_control(data[start : start + control]))
        assert payload <= MAX_LARGE_PAYLOAD_BYTES
        position = start + control + payload
    assert position == len(data), "the last frame is not complete"
    return messages


def check_sent(transport: MemoryTransport) -> None:
    """Check that the output is legal for any input, and that its errors are documented."""
    connection = transport.connection
    side = Side.CONNECTED if connection.state.side is Side.ACCEPTED else Side.ACCEPTED
    role = connection.state.role
    legal = {Hello, HelloAck, ErrorResponse, Ping, Pong}
    if role:
        legal |= ALLOWED_WHEN_OPEN[side, role]
    for message in sent(transport):
        assert type(message) in legal, message
        if type(message) is ErrorResponse:
            assert message.code in set(ErrorCode), message
            # By its text: the code may be one that another TaskManager made up, passed on.
            assert not message.message.startswith("Internal error"), message
