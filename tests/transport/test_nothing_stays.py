"""A connection that is gone is freed at once: nothing of it waits for the cyclic collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import UnexpectedMessage
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.schema import (
    DATA,
    BeginRegion,
    BufferResponse,
    ErrorResponse,
    Ping,
    RegionData,
    encode,
)
from sluice.protocol.states import ConnectionState
from sluice.transport.backlog import Backlog
from sluice.transport.connection import Connection
from sluice.transport.errors import ConnectionLost
from sluice.transport.frame_deadline import FrameDeadline
from sluice.transport.greeting import Greeting
from sluice.transport.loop_protocol import LoopProtocol
from sluice.transport.tls_transport import TlsTransport
from sluice.transport.write_side import WriteSide
from tests.support.certificates import Authority
from tests.support.peers import (
    PATIENCE_SECONDS,
    RawPeer,
    RecordingHandler,
    Service,
    a_config,
    a_hello,
    a_producer,
    a_service,
    open_client,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sluice.transport.config import TransportConfig

KINDS = (
    Backlog,
    Connection,
    ConnectionState,
    FrameDeadline,
    FrameDecoder,
    Greeting,
    LoopProtocol,
    RecordingHandler,
    TlsTransport,
    WriteSide,
)

LONG = encode(BeginRegion(1, 0, 0, [2**40] * 20_000, 7))


def living() -> Counter[str]:
    """Count the objects of connections."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextlib.asynccontextmanager
async def freed_service(**changes: object) -> AsyncIterator[Service]:
    """Give a service; afterwards nothing of its connections is left."""
    before = living()
    async with a_service(a_config(**changes)) as service:
        yield service
        async with asyncio.timeout(PATIENCE_SECONDS):
            while service.listener.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
        service.handlers.clear()
        await turns(10)
        assert living() - before == Counter()
        assert service.listener.control_memory.used_bytes == 0


async def closes(peer: RawPeer) -> None:
    peer.sock.close()


async def resets(peer: RawPeer) -> None:
    peer.reset()


async def stops_in_a_control_part(peer: RawPeer) -> None:
    await peer.send(LONG[:50_000])
    peer.sock.close()


async def stops_in_a_payload(peer: RawPeer) -> None:
    await peer.send(encode(RegionData(1, 0), 1000) + bytes(500))
    peer.sock.close()


async def breaks_the_rules(peer: RawPeer) -> None:
    await peer.send(encode(BufferResponse(0, 0, 0, DATA)))
    answer, _ = await peer.read_frame()
    assert type(answer) is ErrorResponse
    await peer.read_to_end()


async def sends_garbage(peer: RawPeer) -> None:
    await peer.send(b"\0\0\0\4\0\0\0\0\xc1\xc1\xc1\xc1")
    answer, _ = await peer.read_frame()
    assert type(answer) is ErrorResponse
    await peer.read_to_end()


async def never_reads(peer: RawPeer) -> None:
    pings = encode(Ping(1)) * 10_000
    with contextlib.suppress(ConnectionError, TimeoutError):
        while True:
            await peer.send(pings)
    peer.sock.close()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    "ends",
    [
        closes,
        resets,
        stops_in_a_control_part,
        stops_in_a_payload,
        breaks_the_rules,
        sends_garbage,
        never_reads,
    ],
)
async def test_an_accepted_connection_is_freed(
    ends: Callable[[RawPeer], Awaitable[None]],
) -> None:
    async with freed_service() as service:
        with await RawPeer.connect(service.address, receive_buffer_bytes=4096) as peer:
            await peer.shake_hands(role=a_producer().role, application_id="app")
            await service.handler()
            await ends(peer)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n\r\n", encode(Ping(1))])
async def test_a_connection_that_never_opened_is_freed(first: bytes) -> None:
    async with freed_service() as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.send(first)
            if first:
                await peer.read_to_end()


@pytest.mark.usefixtures("without_collector")
async def test_a_connection_whose_handler_refuses_it_is_freed() -> None:
    async with freed_service() as service:
        service.refuse = UnexpectedMessage("Not here")
        with await RawPeer.connect(service.address) as peer:
            await peer.send_message(a_hello())
            await peer.read_to_end()
        service.refuse = None


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("who", ["this side", "the other side", "an error"])
async def test_a_connection_that_this_side_made_is_freed(who: str) -> None:
    async with freed_service() as service:
        client = await open_client(service.address)
        handler = await service.handler()
        if who == "this side":
            client.connection.close()
        elif who == "the other side":
            handler.connection.close()
        else:
            client.connection.fail(UnexpectedMessage("Not like this"))
        await client.until_lost()
        await handler.until_lost()
        del client, handler


async def close(config: TransportConfig, service: Service) -> None:
    client = await open_client(service.address, config)
    client.connection.close()
    await client.until_lost()


async def vanish(config: TransportConfig, service: Service) -> None:
    client = await open_client(service.address, config)
    client.connection.abort(ConnectionLost("gone"))
    await client.until_lost()


async def fail_handshake(config: TransportConfig, service: Service) -> None:
    with await RawPeer.connect(service.address) as peer:
        await peer.send_message(a_hello())  # without TLS
        await peer.read_to_end()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Authority(tmp_path_factory.mktemp("authority")).settings()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("ends", [close, vanish, fail_handshake])
async def test_a_tls_connection_is_freed(
    tls: dict[str, Any], ends: Callable[[TransportConfig, Service], Awaitable[None]]
) -> None:
    async with freed_service(**tls) as service:
        await ends(a_config(**tls), service)
