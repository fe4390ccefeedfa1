"""Memory under TLS: leases, watermarks, and receiving into the handler's buffers."""

from __future__ import annotations

import asyncio
import functools
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import (
    DATA,
    ROLE_PRODUCER,
    BufferResponse,
    RegionData,
    encode,
)
from sluice.transport.connection import MAX_ENCRYPTED_BYTES, Connection
from sluice.transport.tls_transport import TlsTransport
from tests.support.certificates import Authority
from tests.support.fakes import FakeConnection
from tests.support.intercepting_transport import InterceptingTransport, intercept
from tests.support.memory_supplier import MemorySupplier
from tests.support.peers import (
    BUFFERS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    Service,
    a_config,
    a_producer,
    a_service,
    end,
    open_client,
    pattern,
    small_send_buffer,
    start_sending,
    turns,
    until,
)
from tests.support.tls_files import load_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from sluice.transport.address import Address
    from sluice.transport.config import TransportConfig


EVENT = RegionData(0, 0)
PRODUCER = {"role": ROLE_PRODUCER, "application_id": "app"}
HEAD = len(encode(EVENT))
RECORD_OVERHEAD = 22
"""Bytes that TLS 1.3 adds to a record: head 5, content type 1, tag 16."""


RECORD = 16 * 1024
"""Most plain bytes in a record."""
PACE_BYTES = 1500
"""Encrypted bytes that a slow peer takes at a time."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def config(authority: Authority) -> TransportConfig:
    return a_config(**authority.settings())


class TlsPeer(RawPeer):
    """A peer that speaks TLS without the code under test, at the pace of the test."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    @classmethod
    async def open(cls, address: Address, context: ssl.SSLContext) -> TlsPeer:
        peer = cls((await RawPeer.connect(address, receive_buffer_bytes=4096)).sock, context)
        while True:
            try:
                peer._tls.do_handshake()
            except ssl.SSLWantReadError:
                await peer._turn(65536)
                continue
            await RawPeer.send(peer, peer._out.read())
            return peer

    async def _turn(self, most: int) -> bool:
        await super().send(self._out.read())
        # A record must be here as a whole before its first byte can be read.
        data = await super().read(max(most, PACE_BYTES))
        self._in.write(data)
        return bool(data)

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await super().send(self._out.read())

    async def read(self, most: int = 65536) -> bytes:
        while True:
            try:
                return self._tls.read(most)
            except ssl.SSLWantReadError:
                if not await self._turn(most):
                    return b""


# ---- leases ------------------------------------------------------------------------------------


async def wrong_buffers(authority: Authority, config: TransportConfig, segments: int) -> int:
    """Send buffers to a peer that reads slowly; return how many arrived with other content.

    Each release scribbles over the memory at once.
    """
    async with a_service(config) as service:
        with await TlsPeer.open(service.address, authority.client_context()) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            small_send_buffer(handler.connection)
            supplier = MemorySupplier(segments, SEGMENT)
            start_sending(handler, supplier, BUFFERS)
            wrong = most_waiting = 0
            for number in range(BUFFERS):
                message, payload = await peer.read_frame(most=PACE_BYTES)
                assert message == BufferResponse(0, number, 0, DATA)
                wrong += payload != pattern(number)
                most_waiting = max(most_waiting, handler.connection.write_buffer_bytes)
                await turns(1)
            assert most_waiting > SEGMENT / 2  # the peer was slow enough to matter
            await until(lambda: supplier.lent == 0)  # the last ones too, without further sends
            assert handler.connection.leased_buffers == 0
            return wrong


@pytest.mark.parametrize("segments", [2, 5, 64])
async def test_memory_may_be_reused_as_soon_as_it_is_released(
    authority: Authority, config: TransportConfig, segments: int
) -> None:
    assert await wrong_buffers(authority, config, segments) == 0


async def test_control_the_test_above_sees_an_encryption_that_comes_too_late(
    authority: Authority, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = TlsTransport.writelines

    def late(transport: TlsTransport, chunks: Iterable[bytes]) -> None:
        asyncio.get_running_loop().call_soon(exact, transport, chunks)

    monkeypatch.setattr(TlsTransport, "writelines", late)
    assert await wrong_buffers(authority, config, 64) > 0


async def held(
    service: Service, config: TransportConfig, **hello: Any
) -> tuple[RecordingHandler, InterceptingTransport]:
    """Return a client whose encrypted bytes are held back."""
    tls = load_tls(config)
    assert tls is not None
    connection = Connection(config, SEGMENT, RecordingHandler, hello=a_producer(**hello))
    secured = TlsTransport(connection, tls, 10, "127.0.0.1")
    made = intercept(secured)
    await asyncio.get_running_loop().create_connection(lambda: secured, *service.address)
    assert connection.opened is not None
    await connection.opened
    handler = connection._handler
    assert isinstance(handler, RecordingHandler)
    await until(lambda: not made[0].get_write_buffer_size())
    made[0].hold()
    return handler, made[0]


async def test_a_lease_ends_when_all_of_its_encrypted_bytes_are_gone(
    config: TransportConfig,
) -> None:
    async with a_service(config) as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        released: list[int] = []
        connection.send(EVENT, bytes(100), lambda: released.append(1))
        assert connection.write_buffer_bytes == HEAD + 100 + RECORD_OVERHEAD
        await turns()
        assert transport.limits[-1] == (0, 0)  # the drain watch, at the loop's own transport
        transport.let_through(connection.write_buffer_bytes - 1)
        await turns()
        assert not released
        transport.let_through(1)
        assert released == [1]
        assert transport.limits[-1] == (SEGMENT + 1, 2 * SEGMENT)
        transport.flow()
        await end(handler)


@pytest.mark.parametrize(
    ("messages", "payload_bytes", "records"),
    [
        (1, 0, 1),
        (5, 0, 1),
        (5, 100, 1),
        (1, SEGMENT, 1),
        # The head of the last message fits, and its payload does not.
        (RECORD // SEGMENT, SEGMENT, 2),
        (RECORD // HEAD, 0, 1),
        (RECORD // HEAD + 1, 0, 2),
    ],
)
async def test_messages_that_are_sent_together_share_records(
    config: TransportConfig, messages: int, payload_bytes: int, records: int
) -> None:
    async with a_service(config) as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        connection.cork()
        for _ in range(messages):
            connection.send(EVENT, bytes(payload_bytes))
        connection.uncork()
        plain = messages * (HEAD + payload_bytes)
        assert connection.write_buffer_bytes == plain + records * RECORD_OVERHEAD
        transport.flow()
        server = await service.handler()
        await server.until(lambda: server.connection.traffic.bytes_in >= plain)
        await end(handler)


# ---- watermarks --------------------------------------------------------------------------------


def has_more_than(handler: RecordingHandler, number: int) -> bool:
    return len(handler.received) > number


# ---- receiving ---------------------------------------------------------------------------------


async def test_a_handler_without_memory_stops_reading_and_goes_on(
    config: TransportConfig,
) -> None:
    """Bytes that were decrypted, received or still in the kernel come in order and once."""
    count = 200
    async with a_service(config) as service:
        service.segments = 2
        client = await open_client(service.address, config, **PRODUCER)
        server = await service.handler()
        server.keep_memory = True
        for number in range(count):
            client.connection.send(RegionData(0, number), pattern(number))
        for number in range(count):
            await server.until(functools.partial(has_more_than, server, number))
            if number == 0:
                await until(lambda: server.supplier.refused)  # it stands still
                await turns(20)
                assert len(server.received) == 2
            server.supplier.give(server.kept.pop(0))
            server.connection.resume_reading()
        assert server.received == [(RegionData(0, n), pattern(n)) for n in range(count)]
        await end(client)


def test_a_message_that_is_encrypted_is_shorter() -> None:
    """Its encrypted bytes are memory that no budget counts, until the kernel takes them."""
    connection = FakeConnection()
    assert connection.most_of_a_message_bytes == MAX_LARGE_PAYLOAD_BYTES
    connection.is_encrypted = True
    assert connection.most_of_a_message_bytes == MAX_ENCRYPTED_BYTES
