"""Deadlines and places of HTTP connections, seen from their clients."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec import structs

from sluice.protocol.access_token import SCOPE_ADMIN, make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.counters import BoundedCounts
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.status.reasons import ANSWER_UNREAD
from tests.support.fakes import no_drain
from tests.support.mini_cluster import eventually
from tools.docs.sample_status import STATUS

PATIENCE_SECONDS = 20
SOON = 0.2
"""A deadline that passes in the test."""
LATE = 3600.0
"""A deadline that does not pass."""
UNREAD_BYTES = 32 << 20
"""More than the kernel keeps for a client."""
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECRET = bytes(32)
MAY_DRAIN = b"Authorization: Bearer %s\r\n\r\n" % (
    make_access_token(SECRET, SCOPE_ADMIN, 0).to_text().encode()
)
OK = b"HTTP/1.1 200 OK\r\n"


def access() -> HttpAccess:
    return HttpAccess(ClusterSecrets([SECRET]))


@contextlib.asynccontextmanager
async def serving(drain=no_drain, status=STATUS, dropped=None, **limits):
    config = HttpConfig(
        http_host="127.0.0.1",
        http_port=0,
        **({"http_request_timeout_seconds": LATE, "http_idle_timeout_seconds": LATE} | limits),
    )
    server = HttpServer(config, lambda: status, drain, access, dropped)
    port = await server.start()
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        return clients[-1]

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield connect
    finally:
        for client in clients:
            await client.close()
        await server.close()


class Client:
    def __init__(self, reader, writer) -> None:
        self.reader = reader
        self.writer = writer

    async def get(self) -> bytes:
        """Return the first line of the answer to a good request."""
        self.writer.write(GET)
        return await self.answer()

    async def answer(self) -> bytes:
        line = await self.reader.readline()
        head = await self.reader.readuntil(b"\r\n\r\n")
        lengths = [each for each in head.lower().split(b"\r\n") if b"content-length" in each]
        await self.reader.readexactly(int(lengths[0].partition(b":")[2]))
        return line

    async def ended(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.mark.parametrize("begun", [b"", b"G", GET[:-2]], ids=["nothing", "a letter", "no end"])
async def test_a_request_that_does_not_come_in_time_ends_its_connection(begun):
    dropped = BoundedCounts()
    async with serving(dropped=dropped, http_request_timeout_seconds=SOON) as connect:
        half = await connect()
        half.writer.write(begun)
        assert await half.ended() == b""
    assert dropped == {"request": 1}


async def test_a_request_that_comes_bit_by_bit_has_the_same_deadline():
    async with serving(http_request_timeout_seconds=SOON) as connect:
        slow = await connect()

        async def drip() -> None:
            while True:
                slow.writer.write(b"X")
                await asyncio.sleep(SOON / 10)

        dripping = asyncio.ensure_future(drip())
        try:
            answer = await slow.ended()
        finally:
            dripping.cancel()
        assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))


async def test_a_second_request_has_the_deadline_of_a_request_and_not_that_of_idleness():
    async with serving(http_request_timeout_seconds=SOON) as connect:
        client = await connect()
        assert await client.get() == OK
        await asyncio.sleep(2 * SOON)  # idle for longer than a request may take
        assert await client.get() == OK
        client.writer.write(GET[:5])
        assert await client.ended() == b""


async def test_an_idle_connection_ends():
    dropped = BoundedCounts()
    async with serving(dropped=dropped, http_idle_timeout_seconds=SOON) as connect:
        client = await connect()
        assert await client.get() == OK
        assert await client.ended() == b""
    assert dropped == {"idle": 1}


async def test_a_body_that_does_not_come_is_not_waited_for():
    async with serving(http_request_timeout_seconds=SOON) as connect:
        client = await connect()
        client.writer.write(
            b"POST /api/v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n" + MAY_DRAIN
        )
        assert await client.answer() == OK
        client.writer.write(b"x")
        assert await client.ended() == b""


async def test_an_answer_that_nobody_reads_ends_its_connection():
    long = structs.replace(STATUS, version="v" * UNREAD_BYTES)
    dropped = BoundedCounts()
    async with serving(status=long, dropped=dropped, http_request_timeout_seconds=SOON) as connect:
        client = await connect()
        client.writer.write(b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\n" + MAY_DRAIN)
        await client.reader.readuntil(b"\r\n\r\n")  # it is being sent
        await eventually(lambda: dropped == {ANSWER_UNREAD: 1})
        assert len(await client.ended()) < UNREAD_BYTES


async def test_a_request_that_is_served_has_no_deadline():
    async def drain(migrate: bool) -> None:
        await asyncio.sleep(3 * SOON)

    limits = {"http_request_timeout_seconds": SOON, "http_idle_timeout_seconds": SOON}
    async with serving(drain, **limits) as connect:
        client = await connect()
        client.writer.write(
            b"POST /api/v1/drain?wait_seconds=60 HTTP/1.1\r\nHost: x\r\n" + MAY_DRAIN
        )
        assert await client.answer() == OK


async def test_the_connection_that_has_waited_longest_makes_room():
    dropped = BoundedCounts()
    async with serving(dropped=dropped, http_max_connections=2) as connect:
        first, second = await connect(), await connect()
        assert await first.get() == OK
        assert await second.get() == OK
        assert await first.get() == OK  # so that the second has waited longer
        third = await connect()
        assert await third.get() == OK
        assert await second.ended() == b""
        assert await first.get() == OK
        assert await third.get() == OK
    assert dropped == {"made room": 1}  # and not those that their clients end


async def test_a_connection_is_refused_while_all_others_are_served():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def drain(migrate: bool) -> None:
        begun.set()
        await go_on.wait()

    async with serving(drain, http_max_connections=1) as connect:
        served = await connect()
        served.writer.write(
            b"POST /api/v1/drain?wait_seconds=60 HTTP/1.1\r\nHost: x\r\n" + MAY_DRAIN
        )
        await begun.wait()
        refused = await connect()
        answer = await refused.ended()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in answer
        go_on.set()
        assert await served.answer() == OK
        later = await connect()
        assert await later.get() == OK


# ---- clients that close their sending half -------------------------------------------------------


@pytest.mark.parametrize("before", [0, 2], ids=["the first request", "the third request"])
async def test_a_client_that_closes_its_sending_half_gets_its_answer(before):
    async with serving() as connect:
        client = await connect()
        for _ in range(before):
            assert await client.get() == OK
        client.writer.write(GET)
        client.writer.write_eof()
        answer = await client.ended()  # the deadlines do not pass: the server closes
        assert answer.startswith(OK)
        assert b'{"state": "ready"}' in answer


async def test_a_client_that_closes_its_sending_half_during_a_request_gets_its_answer():
    begun, ends = asyncio.Event(), asyncio.Event()

    async def drain(migrate: bool) -> None:
        begun.set()
        await ends.wait()

    async with serving(drain) as connect:
        client = await connect()
        client.writer.write(
            b"POST /api/v1/drain?wait_seconds=60 HTTP/1.1\r\nHost: x\r\n" + MAY_DRAIN
        )
        await begun.wait()
        client.writer.write_eof()
        ends.set()
        assert (await client.ended()).startswith(OK)


async def test_a_long_answer_is_whole_for_a_client_that_closes_its_sending_half():
    long = structs.replace(STATUS, taskmanager_id="x" * UNREAD_BYTES)
    async with serving(status=long) as connect:
        client = await connect()
        client.writer.write(b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\n" + MAY_DRAIN)
        client.writer.write_eof()
        head, _, body = (await client.ended()).partition(b"\r\n\r\n")
        lengths = [each for each in head.split(b"\r\n") if b"Content-Length" in each]
        assert len(body) == int(lengths[0].partition(b":")[2]) > UNREAD_BYTES


async def test_an_idle_client_that_closes_its_sending_half_is_closed_at_once():
    async with serving() as connect:
        for requests in (0, 1):
            client = await connect()
            for _ in range(requests):
                assert await client.get() == OK
            client.writer.write_eof()
            assert await client.ended() == b""


async def test_half_a_request_of_such_a_client_has_the_deadline_of_a_request():
    async with serving(http_request_timeout_seconds=SOON) as connect:
        client = await connect()
        client.writer.write(GET[:-2])
        client.writer.write_eof()
        assert await client.ended() == b""
