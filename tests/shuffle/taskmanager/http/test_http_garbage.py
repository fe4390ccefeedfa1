"""Whatever comes to the HTTP port: refused or dropped, and the next request is served."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from sluice.protocol.schema import ROLE_PRODUCER, BeginRegion
from sluice.shuffle.counters import BoundedCounts
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http import bad_requests
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.status.reasons import BAD_REQUEST
from tests.support.fakes import no_drain
from tests.support.fuzz_streams import frame, hello
from tools.docs.sample_status import STATUS

PATIENCE_SECONDS = 20

GARBAGE = {
    "a hello of ours": hello(ROLE_PRODUCER),
    "a long frame of ours": frame(BeginRegion(0, 0, 0, [2**60] * 50_000, 0)),
    "zeros": bytes(100_000),
    "random bytes": random.Random(4).randbytes(100_000) + b"\r\n\r\n",
    "a line without end": b"GET /" + b"a" * 200_000,
    "headers without end": b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    "a negative length": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a bad chunk": (
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n\r\n"
    ),
    "an unknown version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "the start of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
}


async def get(port: int) -> bytes:
    """Return the first line of the answer to a good request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_answered_or_dropped_and_the_next_is_served(name, caplog):
    # A machine with other work makes turns of the loop slow, of which debug mode would warn.
    asyncio.get_running_loop().slow_callback_duration = PATIENCE_SECONDS
    server = HttpServer(HttpConfig(http_host="127.0.0.1", http_port=0), lambda: STATUS, no_drain)
    port = await server.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(OSError):  # also ENOTCONN, of an end that came first
                writer.write(GARBAGE[name])
                writer.write_eof()
                await writer.drain()
                answer = await reader.read()
                assert not answer or answer.startswith((b"HTTP/1.0 4", b"HTTP/1.1 4"))
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            assert await get(port) == b"HTTP/1.1 200 OK\r\n"
    finally:
        await server.close()
    assert {record.name for record in caplog.records} <= {bad_requests.__name__}
    assert not [record for record in caplog.records if record.exc_info]


async def test_open_connections_do_not_stop_others():
    """Two hundred that say nothing or half a request; closing the server ends them."""
    server = HttpServer(HttpConfig(http_host="127.0.0.1", http_port=0), lambda: STATUS, no_drain)
    port = await server.start()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _, writer in opened[::2]:
            writer.write(b"GET /metrics HTTP/1.1\r\nHo")
        assert await get(port) == b"HTTP/1.1 200 OK\r\n"
        await server.close()
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def failed_with(error: Exception, peer: str | None = "10.0.0.1") -> BoundedCounts:
    """Return what is counted when the HTTP server logs an error of a connection."""
    counted = BoundedCounts()
    try:
        raise error
    except type(error):
        bad_requests.server_logger(counted).exception("Error handling request from %s", peer)
    return counted


def test_a_client_that_goes_away_is_no_bad_request(caplog):
    assert not failed_with(ConnectionResetError("gone"))
    assert not caplog.records
    with caplog.at_level("DEBUG"):
        failed_with(ConnectionResetError("gone"))
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("DEBUG", None)]


def test_an_error_of_the_parser_is_counted_and_one_line(caplog):
    assert failed_with(BadHttpMessage("no\nrequest")) == {BAD_REQUEST: 1}
    (record,) = caplog.records
    assert record.getMessage() == "refusing a request of 10.0.0.1: BadHttpMessage: no"
    assert not record.exc_info


@pytest.mark.parametrize("peer", ["", None])
def test_a_client_of_the_unix_socket_is_named_as_one(caplog, peer):
    failed_with(BadHttpMessage("no"), peer)
    (record,) = caplog.records
    assert record.getMessage() == "refusing a request of the Unix socket: BadHttpMessage: no"


def test_an_error_of_ours_keeps_its_traceback(caplog):
    assert not failed_with(RuntimeError("ours"))
    (record,) = caplog.records
    assert record.exc_info
