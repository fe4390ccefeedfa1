"""A daemon that has no file descriptors left: it goes on, refuses at once, and serves again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import ROLE_PRODUCER, ErrorResponse, HelloAck
from tests.support.daemon import TIMEOUT_SECONDS, Daemon
from tests.support.raw_client import RawClient
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

pytestmark = pytest.mark.slow  # all of it together

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluice.protocol.schema import Message
    from sluice.transport.address import Address

SPARE = 6
"""Descriptors that the daemon may still open."""

CLIENTS = 20

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


@pytest.fixture(params=["uvloop", "asyncio"])
def daemon(request, tmp_path: Path) -> Iterator[Daemon]:
    never = 1000  # probes of the directories open files
    with Daemon(tmp_path, event_loop=request.param, health_check_seconds=never) as started:
        assert is_ready(started)  # its thread for HTTP has opened all that it needs
        yield started


def limit_descriptors(daemon: Daemon, spare: int) -> None:
    """Set the limit of a running daemon to what it has open and some more."""
    limit = len(os.listdir(f"/proc/{daemon.pid}/fd")) + spare
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (limit, hard))


def is_ready(daemon: Daemon) -> bool:
    """Ask, and read to the end of the connection: then the daemon has closed its descriptor."""
    address = (daemon.host, daemon.http_port)
    with socket.create_connection(address, TIMEOUT_SECONDS) as client:
        client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        return client.makefile("rb").read().partition(b"\r\n")[0].endswith(b" 200 OK")


async def greet(address: Address) -> tuple[RawClient, Message | None]:
    """Connect and say Hello; return the answer, None if the connection ended without."""
    client = await RawClient.connect(address)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        return client, await client.greet(ROLE_PRODUCER)
    return client, None


@one_loop
async def test_connections_are_refused_until_there_are_descriptors(daemon):
    address = daemon.address
    writer = await producer(address)
    reader = await consumer(address)
    limit_descriptors(daemon, SPARE)
    served: list[RawClient] = []
    refused: list[RawClient] = []
    answers: list[Message | None] = []
    for _ in range(CLIENTS):
        client, answer = await greet(address)
        (served if isinstance(answer, HelloAck) else refused).append(client)
        if not isinstance(answer, HelloAck):
            answers.append(answer)
    assert len(served) == SPARE
    told = [answer for answer in answers if isinstance(answer, ErrorResponse)]
    assert told
    for answer in told:
        assert (answer.code, answer.retryable) == (ErrorCode.TOO_MANY_CONNECTIONS, True)
        assert "limit of open files" in answer.message
    line = await asyncio.to_thread(daemon.wait_for_log, "cannot accept connections")
    assert "Too many open files" in line
    assert f"data port 127.0.0.1:{daemon.data_port}" in line

    # Who is connected does not notice, and the daemon can be seen to live.
    await write_map_output(writer, 1, 1, [[b"in need"]])
    assert await read_gate(reader, 1, [(reader.ack, [1])], 0, 1) == [b"in need"]
    assert await asyncio.to_thread(is_ready, daemon)

    # Each that goes makes room for another one.
    for _ in range(SPARE):
        await served.pop(0).close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                client, answer = await greet(address)
                if isinstance(answer, HelloAck):
                    break
                await client.close()
        served.append(client)
    for client in (*served, *refused):
        await client.close()
    await asyncio.to_thread(daemon.wait_for_log, "accepts connections again")
    assert await asyncio.to_thread(is_ready, daemon)
    await writer.close()
    await reader.close()
    assert daemon.end() == 0
    assert daemon.log.count("cannot accept connections") < CLIENTS
    assert "Traceback" not in daemon.log
