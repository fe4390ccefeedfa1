"""Attacks on the HTTP port: half requests that take every descriptor, and a flood of requests."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import ROLE_DRIVER, ROLE_PRODUCER, HelloAck, Ping, Pong
from sluice.shuffle.taskmanager.metrics.published_snapshot import BURST
from tests.attack.hostile import Hostile
from tests.attack.rig import AttackedDaemon, commit, read
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluice.transport.address import Address

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000
OPEN_FILES = 136
HALF_REQUESTS = 4 * OPEN_FILES
HALF = b"GET /metrics HTTP/1.1\r\nHost: victim\r\nX-Slow: "
SCRAPERS = 4
SNAPSHOT_SECONDS = 20
"""Longer than the HTTP thread needs for an answer on any machine: its share of a core is small."""
ANSWERS = 15
"""Of each scraper, at least: together far more than the snapshots that are allowed at once."""


LIMITED = ("sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$0" "$@"', str(SLUICE))


@pytest.fixture
def confined(tmp_path: Path, start: Callable[..., AttackedDaemon]) -> AttackedDaemon:
    """A TaskManager that can open few files, and cannot raise the limit."""
    return start(tmp_path, program=LIMITED, http_request_timeout_seconds=1)


class Scraper:
    """A client of the HTTP port that keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Scraper:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of an answer."""
        self.send(f"GET {path} HTTP/1.1\r\nHost: victim\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)\r\ncontent-length: (\d+)\r\n", head)
            assert length is not None, head
            body = await self._reader.readexactly(int(length[1]))
        return int(head.split()[1]), body.decode()

    async def ended(self) -> bytes:
        """Wait for the end of the connection; return what came before it."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read()
        return b""

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def ask(port: int, path: str) -> int:
    """Return the status of the answer to a request over a new connection."""
    client = await Scraper.connect(port)
    try:
        status, _ = await client.get(path)
    finally:
        await client.close()
    return status


async def is_served(address: Address) -> None:
    """Check that a data connection is accepted and answered."""
    client = await Hostile.reach(address)
    assert isinstance(await client.greet(ROLE_DRIVER), HelloAck)
    client.send_message(Ping(7))
    assert await client.expect(Pong) == Pong(7)
    await client.close()


@one_loop
async def test_half_requests_keep_nobody_out(confined):
    """More of them than the TaskManager has descriptors, twice."""
    for _ in range(2):
        halves = [await Scraper.connect(confined.http_port) for _ in range(HALF_REQUESTS)]
        for half in halves:
            half.send(HALF)
        for address in (confined.address, confined.socket):
            await is_served(address)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert await ask(confined.http_port, path) == 200
        # Also those that had a place end, though they send a little all the time.
        for half in halves[-SCRAPERS:]:
            half.send(b"x")
        for half in halves:
            assert await half.ended() == b""
            await half.close()
    for address in (confined.address, confined.socket):
        await is_served(address)
    assert await ask(confined.http_port, "/healthz") == 200


@one_loop
async def test_silent_data_connections_do_not_take_every_descriptor(confined):
    """The oldest make room for the newest; admitted clients are still served."""
    known = await Hostile.at(confined)
    assert isinstance(await known.greet(ROLE_PRODUCER), HelloAck)
    silent = [await Hostile.at(confined) for _ in range(HALF_REQUESTS)]
    for client in silent[:OPEN_FILES]:
        assert await client.until_refused() is None
    known.send_message(Ping(7))
    assert await known.expect(Pong) == Pong(7)
    await is_served(confined.socket)
    assert await ask(confined.http_port, "/healthz") == 200
    for client in (*silent, known):
        await client.close()


@one_loop
async def test_a_flood_of_requests_takes_nothing_from_an_application(
    tmp_path, start, secret_file, victim
):
    daemon = start(
        tmp_path, cluster_secret_files=secret_file, http_snapshot_interval_seconds=SNAPSHOT_SECONDS
    )
    began = time.monotonic()
    pages: list[list[str]] = [[] for _ in range(SCRAPERS)]
    enough = asyncio.Event()

    async def flood(got: list[str]) -> None:
        scraper = await Scraper.connect(daemon.http_port)
        try:
            while not enough.is_set():
                status, page = await scraper.get("/metrics")
                assert status == 200
                got.append(page)
        finally:
            await scraper.close()

    async with asyncio.TaskGroup() as scrapers:
        for got in pages:
            scrapers.create_task(flood(got))
        try:
            attempt = 0
            while attempt < ANSWERS or any(len(got) < ANSWERS for got in pages):
                attempt += 1
                if attempt <= ANSWERS:  # more could reach the quota, if the scrapers are slow
                    await commit(daemon.address, victim, attempt, RECORDS)
                assert await read(daemon.socket, victim, [min(attempt, ANSWERS)]) == RECORDS
        finally:
            enough.set()
    # The flood does not make the data path take more snapshots than it may in that time.
    most = BURST + 1 + (time.monotonic() - began) / SNAPSHOT_SECONDS
    assert len(set[str]().union(*pages)) <= most
    assert await ask(daemon.http_port, "/healthz") == 200
