"""The two ends that transport tests put on a connection, and a peer that speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sluice.protocol.limits import MAGIC, PREFIX_BYTES, VERSION
from sluice.protocol.schema import (
    DATA,
    FLOW_CREDIT,
    ROLE_PEER,
    ROLE_PRODUCER,
    BufferResponse,
    Hello,
    HelloAck,
    Message,
    decode_control,
    encode,
)
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig
from sluice.transport.connector import connect
from sluice.transport.listener import Listener
from tests.support.memory_supplier import MemorySupplier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sluice.protocol.errors import SluiceError
    from sluice.transport.connection import Connection

SEGMENT = 4096
BUFFERS = 400
"""Buffers of a long transfer."""
PATIENCE_SECONDS = 60
"""Longest wait of a test for an event that must come."""


def a_config(**changes: Any) -> TransportConfig:
    return TransportConfig(**({"bind_host": "127.0.0.1", "data_port": 0} | changes))


def a_hello(**changes: Any) -> Hello:
    hello = Hello(MAGIC, VERSION, VERSION, ROLE_PEER, "", b"", SEGMENT, FLOW_CREDIT, 0, "tests")
    return replace(hello, **changes)


def a_producer(**changes: Any) -> Hello:
    """A Hello of the role whose messages upwards carry large payloads."""
    return a_hello(role=ROLE_PRODUCER, application_id="app", **changes)


def an_ack(**changes: Any) -> HelloAck:
    ack = HelloAck(VERSION, "tm-1", SEGMENT, FLOW_CREDIT, 0, "127.0.0.1", 7337, "i-1", 0, 1)
    return replace(ack, **changes)


class RecordingHandler:
    """Keeps its messages; receives into a bounded supply of memory."""

    def __init__(
        self,
        connection: Connection,
        greeting: Hello | HelloAck,
        supplier: MemorySupplier | None = None,
    ) -> None:
        self.connection = connection
        self.greeting = greeting
        self.supplier = supplier or MemorySupplier(4, SEGMENT)
        self.keep_memory = False
        """True: payload memory is not given back when its message has come."""
        self.kept: list[memoryview] = []
        self.received: list[tuple[Message, bytes]] = []
        self.writable_calls = 0
        self.on_writable: Callable[[], None] = lambda: None
        self.on_message: Callable[[Message], None] = lambda message: None
        self.lost: list[SluiceError] = []
        self._memory: memoryview | None = None
        self._changed = asyncio.Event()

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        self.connection.state.check(message)
        self._memory = self.supplier.take()
        self._changed.set()
        return self._memory

    def message_received(self, message: Message, payload_length: int) -> None:
        payload = b""
        if payload_length:
            memory, self._memory = self._memory, None
            assert memory is not None
            payload = bytes(memory[:payload_length])
            if self.keep_memory:
                self.kept.append(memory)
            else:
                self.supplier.give(memory)
        self.received.append((message, payload))
        self._changed.set()
        self.on_message(message)

    def writable(self) -> None:
        self.writable_calls += 1
        self._changed.set()
        self.on_writable()

    def connection_lost(self, error: SluiceError) -> None:
        if self._memory is not None:
            self.supplier.give(self._memory)
            self._memory = None
        self.lost.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_lost(self) -> SluiceError:
        await self.until(lambda: self.lost)
        return self.lost[0]


class Service:
    """A listener whose connections get recording handlers."""

    def __init__(self, config: TransportConfig, **ack: Any) -> None:
        self.handlers: list[RecordingHandler] = []
        self.segments = 4
        self.refuse: Exception | None = None
        self._ack = an_ack(**ack)
        self._arrived = asyncio.Event()
        self.listener = Listener(
            config, self._ack.segment_size_bytes, self._handle, lambda: self._ack
        )

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.listener.port)

    async def handler(self, index: int = 0) -> RecordingHandler:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.handlers) <= index:
                self._arrived.clear()
                await self._arrived.wait()
        return self.handlers[index]

    def _handle(self, connection: Connection, greeting: Hello | HelloAck) -> RecordingHandler:
        if self.refuse is not None:
            raise self.refuse
        supplier = MemorySupplier(self.segments, self._ack.segment_size_bytes)
        handler = RecordingHandler(connection, greeting, supplier)
        self.handlers.append(handler)
        self._arrived.set()
        return handler


@contextlib.asynccontextmanager
async def a_service(config: TransportConfig | None = None, **ack: Any) -> AsyncIterator[Service]:
    service = Service(config or a_config(), **ack)
    await service.listener.start()
    try:
        yield service
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.listener.close()


async def open_client(
    address: Address, config: TransportConfig | None = None, **hello: Any
) -> RecordingHandler:
    """Connect with a recording handler."""
    connection, _ = await connect(
        address, a_hello(**hello), RecordingHandler, config or a_config(), SEGMENT
    )
    handler = connection._handler
    assert isinstance(handler, RecordingHandler)
    return handler


async def end(handler: RecordingHandler) -> None:
    """Close a connection and wait until it is gone."""
    handler.connection.close()
    await handler.until_lost()


class RawPeer:
    """A socket that speaks bytes, at the pace of the test."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = bytearray()

    @classmethod
    async def connect(
        cls,
        address: Address | Path,
        receive_buffer_bytes: int | None = None,
        source: str | None = None,
    ) -> RawPeer:
        if not isinstance(address, Address):
            address = Address(str(address), 0)
        sock = socket.socket(socket.AF_INET if address.port else socket.AF_UNIX)
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source is not None:
            sock.bind((source, 0))
        target = tuple(address) if address.port else address.host
        try:
            await asyncio.get_running_loop().sock_connect(sock, target)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End with a reset instead of an orderly end (on a Unix socket: an end)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        """End the sending side."""
        self.sock.shutdown(socket.SHUT_WR)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_message(self, message: Message, payload: bytes = b"") -> None:
        await self.send(encode(message, len(payload)) + payload)

    async def shake_hands(self, **hello: Any) -> HelloAck:
        await self.send_message(a_hello(**hello))
        ack, _ = await self.read_frame()
        assert type(ack) is HelloAck, ack
        return ack

    async def read(self, most: int = 65536) -> bytes:
        """Return the next bytes; b"" at the end or after a reset."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await asyncio.get_running_loop().sock_recv(self.sock, most)
            except ConnectionError:
                return b""

    async def read_exactly(self, count: int, most: int = 65536) -> bytes:
        while len(self._received) < count:
            data = await self.read(min(most, count - len(self._received)))
            if not data:
                raise EOFError(f"{len(self._received)} of {count} bytes")
            self._received += data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def read_frame(self, most: int = 65536) -> tuple[Message, bytes]:
        prefix = await self.read_exactly(PREFIX_BYTES, most)
        control = await self.read_exactly(int.from_bytes(prefix[:4], "big"), most)
        payload = await self.read_exactly(int.from_bytes(prefix[4:], "big"), most)
        return decode_control(control), payload

    async def read_to_end(self) -> bytes:
        while data := await self.read():
            self._received += data
        taken = bytes(self._received)
        self._received.clear()
        return taken


async def turns(count: int = 3) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until a condition without an event holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def small_send_buffer(connection: Connection) -> None:
    """Let the kernel take little at once, so that a slow peer is felt soon."""
    transport = connection._transport
    assert transport is not None
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def pattern(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SEGMENT // 4)


def start_sending(handler: RecordingHandler, supplier: MemorySupplier, buffers: int) -> None:
    """Send numbered buffers while writable; each release scribbles over its memory at once."""
    connection = handler.connection
    sent = 0

    def send_on() -> None:
        nonlocal sent
        while connection.writable and sent < buffers:
            memory = supplier.take()
            if memory is None:
                return
            memory[:SEGMENT] = pattern(sent)
            message = BufferResponse(0, sent, 0, DATA)
            sent += 1  # before the send: it may release, and so come back here
            connection.send(message, memory[:SEGMENT], functools.partial(supplier.give, memory))

    handler.on_writable = send_on
    supplier.on_free = send_on
    send_on()
