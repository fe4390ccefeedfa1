"""Memory under TLS: leases, watermarks, and receiving into the handler's buffers."""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.schema import (
    DATA,
    ROLE_PRODUCER,
    AddCredit,
    BufferResponse,
    Pong,
    RegionData,
    encode,
)
from sluice.transport.connection import Connection
from sluice.transport.tls_transport import TlsTransport
from tests.support.certificates import Authority
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


async def test_no_lease_ends_before_its_plain_bytes_could_have_left(
    config: TransportConfig,
) -> None:
    """Encrypted bytes are more than plain ones, so the mark is late and never early."""
    sizes = [random.Random(size).randint(1, SEGMENT) for size in range(60)]
    async with a_service(config) as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        released: list[int] = []
        ends: list[int] = []
        for number, size in enumerate(sizes):
            connection.send(EVENT, bytes(size), functools.partial(released.append, number))
            ends.append(transport.get_write_buffer_size())
        gone = 0
        while left := transport.get_write_buffer_size():
            transport.let_through(min(left, 997))
            gone += min(left, 997)
            connection.send_together([])  # nothing
            connection._out.release_drained()
            assert all(ends[number] <= gone for number in released)
        await turns()
        assert released == list(range(len(sizes)))
        transport.flow()
        await end(handler)


# ---- watermarks --------------------------------------------------------------------------------


async def test_the_watermarks_count_what_the_kernel_has_not_taken(
    config: TransportConfig,
) -> None:
    async with a_service(config) as service:
        handler, transport = await held(service, config)
        connection = handler.connection
        while connection.writable:
            assert connection.write_buffer_bytes <= 2 * SEGMENT
            connection.send(EVENT, bytes(1000))
        assert 2 * SEGMENT < connection.write_buffer_bytes < 2 * SEGMENT + 1200
        transport.let_through(connection.write_buffer_bytes - SEGMENT - 2)
        assert not connection.writable
        transport.let_through(1)
        assert connection.writable
        assert handler.writable_calls == 1
        transport.flow()
        await end(handler)


async def test_a_stopped_writer_goes_on_by_itself(
    authority: Authority, config: TransportConfig
) -> None:
    async with a_service(config) as service:
        with await TlsPeer.open(service.address, authority.client_context()) as peer:
            await peer.shake_hands()
            handler = await service.handler()
            connection = handler.connection
            small_send_buffer(connection)
            peak = sent = 0

            def send_on() -> None:
                nonlocal sent, peak
                while connection.writable and sent < BUFFERS:
                    connection.send(Pong(sent), pattern(sent))
                    sent += 1
                    peak = max(peak, connection.write_buffer_bytes)

            handler.on_writable = send_on
            send_on()
            assert sent < BUFFERS
            for number in range(BUFFERS):
                assert await peer.read_frame() == (Pong(number), pattern(number))
            assert peak <= 2 * SEGMENT + SEGMENT + 32 + 3 * RECORD_OVERHEAD
            assert handler.writable_calls > 1


def has_more_than(handler: RecordingHandler, number: int) -> bool:
    return len(handler.received) > number


# ---- receiving ---------------------------------------------------------------------------------


async def test_frames_of_all_sizes_come_into_the_handlers_memory(
    config: TransportConfig,
) -> None:
    """Records and frames end at different places; many frames come in one read."""
    chance = random.Random(20)
    payloads = [chance.randbytes(chance.choice((1, 5, 60, 1000, SEGMENT))) for _ in range(600)]
    async with a_service(config) as service:
        client = await open_client(service.address, config, **PRODUCER)
        server = await service.handler()

        def send_on() -> None:
            while client.connection.writable and len(sent) < len(payloads):
                sent.append(payloads[len(sent)])
                client.connection.send(RegionData(0, len(sent)), sent[-1])
                server.connection.send(AddCredit(0, len(sent)))

        sent: list[bytes] = []
        client.on_writable = send_on
        send_on()
        await server.until(lambda: len(server.received) == len(payloads))
        expected = [(RegionData(0, n), payload) for n, payload in enumerate(payloads, 1)]
        assert server.received == expected
        await client.until(lambda: len(client.received) == len(payloads))
        assert client.received[-1] == (AddCredit(0, len(payloads)), b"")
        assert server.supplier.lent == 0
        await end(client)


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


async def test_a_connection_may_end_while_it_does_not_read(config: TransportConfig) -> None:
    async with a_service(config) as service:
        service.segments = 1
        client = await open_client(service.address, config, **PRODUCER)
        server = await service.handler()
        server.keep_memory = True
        for number in range(50):
            client.connection.send(RegionData(0, number), pattern(number))
        await server.until(lambda: server.supplier.refused)
        server.connection.resume_reading()  # no memory: without effect
        server.connection.close()
        await server.until_lost()
        server.connection.resume_reading()
        await client.until_lost()
        assert len(server.received) == 1
