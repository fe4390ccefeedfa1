"""Event streams: what they send and to whom, how many there are, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from msgspec import structs

from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.counters import BoundedCounts
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http import http_pages
from sluice.shuffle.taskmanager.http.event_streams import EventStreams
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.metrics.published_snapshot import Pages
from tests.protocol.identity_vectors import SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus

PATIENCE_SECONDS = 30
EVENTS = "/api/v1/events"
TOKEN = make_access_token(SECRET, "status", 0).to_text()


class Taken:
    """A status that differs each time."""

    def __init__(self, status: TaskManagerStatus = STATUS) -> None:
        self.count = 0
        self._status = status

    def __call__(self) -> TaskManagerStatus:
        self.count += 1
        return structs.replace(self._status, uptime_seconds=float(self.count))


@contextlib.asynccontextmanager
async def serving(status=lambda: STATUS, secrets=None, dropped=None, **http):
    config = HttpConfig(http_host="127.0.0.1", http_port=0, **http)
    server = HttpServer(config, status, no_drain, lambda: HttpAccess(secrets), dropped)
    port = await server.start()
    try:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        ):
            yield session, server
    finally:
        await server.close()


def quick_streams(snapshot, pages, access, max_streams):
    return EventStreams(snapshot, pages, access, max_streams, event_seconds=0.001)


@pytest.fixture
def quick(monkeypatch):
    """Send events as fast as snapshots come."""

    monkeypatch.setattr(http_pages, "EventStreams", quick_streams)


async def next_event(answer) -> tuple[str, dict[str, Any]]:
    """Return the kind and the document of the next event; comments are skipped."""
    lines: list[str] = []
    while True:
        line = (await answer.content.readuntil(b"\n")).decode().rstrip("\n")
        if line:
            lines.append(line)
        elif lines == [":"]:
            lines = []
        else:
            kind, data = lines
            return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_an_event_is_the_status(quick):
    async with serving() as (client, _), client.get(EVENTS) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        kind, document = await next_event(answer)
        assert kind == "status"
        async with client.get("/api/v1/status") as status:
            assert document == await status.json()


async def test_events_come_with_new_snapshots(quick):
    taken = Taken()
    async with (
        serving(taken, http_snapshot_interval_seconds=0.001) as (client, _),
        client.get(EVENTS) as answer,
    ):
        seen = [(await next_event(answer))[1]["uptime_seconds"] for _ in range(5)]
        assert seen == sorted(set(seen))


async def test_all_streams_share_a_snapshot_and_its_encoding(quick, monkeypatch):
    taken = Taken()
    encoded = []
    encode = Pages.event

    async def counted(pages, published):
        page = await encode(pages, published)
        encoded.append(id(page.body))
        return page

    monkeypatch.setattr(Pages, "event", counted)
    # After the burst that is allowed there is no further snapshot.
    async with (
        serving(taken, http_snapshot_interval_seconds=3600) as (client, _),
        client.get(EVENTS) as first,
        client.get(EVENTS) as second,
    ):
        latest = 0.0
        while latest < 20:
            _, document = await next_event(first)
            latest = document["uptime_seconds"]
        while (await next_event(second))[1]["uptime_seconds"] < 20:
            pass
        assert taken.count == 20
        assert len(set(encoded)) <= 20


async def test_without_a_new_snapshot_a_comment_shows_that_the_stream_lives(quick):
    async with (
        serving(http_snapshot_interval_seconds=3600) as (client, _),
        client.get(EVENTS) as answer,
    ):
        async for line in answer.content:
            if line == b":\n":
                break


async def test_a_stream_needs_a_token():
    async with serving(secrets=ClusterSecrets([SECRET])) as (client, _):
        async with client.get(EVENTS) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with client.get(EVENTS, headers=headers) as answer:
            assert (await next_event(answer))[0] == "status"


async def test_a_stream_ends_when_its_token_expires(quick, monkeypatch):
    headers = {"Authorization": f"Bearer {make_access_token(SECRET, 'status', 50).to_text()}"}
    now = 49.0
    monkeypatch.setattr("sluice.shuffle.taskmanager.http.http_access.time.time", lambda: now)
    async with serving(Taken(), secrets=ClusterSecrets([SECRET])) as (client, _):
        async with client.get(EVENTS, headers=headers) as answer:
            await next_event(answer)
            now = 51.0
            await answer.content.read()  # to its end
        async with client.get(EVENTS, headers=headers) as answer:
            assert answer.status == 401


async def test_there_are_few_streams_and_room_for_other_requests(quick):
    async with serving(http_max_connections=6) as (client, _), contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            answer = await stack.enter_async_context(client.get(EVENTS))
            assert (await next_event(answer))[0] == "status"
        async with client.get(EVENTS) as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "5"
            assert "close a status page, or read" in (await refused.json())["error"]
        async with client.get("/healthz") as health:
            assert health.status == 200


async def test_a_client_that_goes_makes_room_for_another_one(quick):
    async with serving(http_max_connections=2) as (client, _):
        for _ in range(3):
            async with client.get(EVENTS) as answer:
                while answer.status == 503:  # until the server notices that the last one has gone
                    answer.close()
                    answer = await client.get(EVENTS)
                assert (await next_event(answer))[0] == "status"
                answer.close()


class NoticedCounts(BoundedCounts):
    """Counts that tell another thread of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = threading.Event()

    def bump(self, key, count=1) -> None:
        super().bump(key, count)
        self.noticed.set()


async def test_a_client_that_does_not_read_is_closed(quick):
    taken = Taken(structs.replace(STATUS, gates=STATUS.gates * 2000))
    dropped = NoticedCounts()
    limits = {"http_request_timeout_seconds": 0.2, "http_snapshot_interval_seconds": 0.001}
    async with serving(taken, dropped=dropped, **limits) as (client, _):
        port = client._base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64)
        writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"200"
        # The stream of asyncio stops to read when its small buffer is full.
        assert await asyncio.to_thread(dropped.noticed.wait, PATIENCE_SECONDS)
        assert dropped == {"answer": 1}
        writer.close()


async def test_a_silent_data_loop_is_told(monkeypatch):
    def fail():
        raise AssertionError("never called")

    loop = asyncio.new_event_loop()
    loop.close()

    def silent_streams(snapshot, *args):
        snapshot._data_loop = loop
        return quick_streams(snapshot, *args)

    monkeypatch.setattr(http_pages, "EventStreams", silent_streams)
    async with serving(fail) as (client, _), client.get(EVENTS) as answer:
        kind, document = await next_event(answer)
        assert kind == "silent"
        assert "has not answered" in document["error"]


async def test_a_snapshot_that_fails_is_told_and_the_next_one_is_sent(quick, caplog):
    taken = Taken()

    def status():
        if taken.count < 2:
            taken.count += 1
            raise ValueError("this status fails")
        return taken()

    async with serving(status) as (client, _), client.get(EVENTS) as answer:
        for _ in range(2):
            kind, document = await next_event(answer)
            assert kind == "silent"
            assert document["error"] == "the status failed (ValueError): see the log"
        assert (await next_event(answer))[0] == "status"
    failed = [each for each in caplog.records if each.exc_info]
    assert [str(each.exc_info[1]) for each in failed] == ["this status fails"]


async def test_a_request_for_the_headers_of_the_stream_is_refused():
    async with serving() as (client, _), client.head(EVENTS) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")


async def test_closing_the_server_ends_all_streams():
    async with serving() as (client, server):
        first, second = [await client.get(EVENTS) for _ in range(2)]
        await next_event(first)
        await server.close()
        for answer in (first, second):
            with contextlib.suppress(aiohttp.ClientError):
                await answer.content.read()
            answer.close()
