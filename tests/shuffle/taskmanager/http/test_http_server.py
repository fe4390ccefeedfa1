from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from msgspec import structs

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http import http_pages
from sluice.shuffle.taskmanager.http.http_server import HttpServer, logger
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from sluice.shuffle.taskmanager.status.warnings import find_warnings
from sluice.transport import descriptors
from tests.support.fakes import no_drain
from tests.support.raises_code import raises_code
from tools.docs.sample_status import STATUS

LOCAL = HttpConfig(http_host="127.0.0.1", http_port=0)


class Shown:
    """The status that the server shows, changed by a test."""

    def __init__(self) -> None:
        self.status = STATUS

    def become(self, state) -> None:
        self.status = structs.replace(self.status, state=state)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
async def client(shown):
    server = HttpServer(LOCAL, lambda: shown.status, no_drain)
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session
    await server.close()


async def test_status_is_the_snapshot_as_json(client):
    async with client.get("/api/v1/status") as answer:
        assert answer.status == 200
        shown = TaskManagerStatus.from_json(await answer.json())
    assert structs.replace(shown, warnings=()) == STATUS
    assert shown.warnings == find_warnings(STATUS, time.time())


async def test_metrics_are_in_the_prometheus_text_format(client):
    async with client.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert 'sluice_received_bytes_total{leg="producer"} 1001.0' in await answer.text()


async def test_metrics_in_the_format_that_the_scraper_prefers(client):
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with client.get("/metrics", headers=accept) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await answer.text()).endswith("# EOF\n")


@pytest.mark.parametrize(
    ("state", "healthy", "ready"),
    [("starting", 200, 503), ("ready", 200, 200), ("draining", 200, 503), ("stopped", 503, 503)],
)
async def test_health_and_readiness_by_state(client, shown, state, healthy, ready):
    shown.become(state)
    async with client.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (healthy, {"state": state})
    async with client.get("/readyz") as answer:
        reason = None if ready == 200 else f"state is {state}"
        assert (answer.status, await answer.json()) == (
            ready,
            {"ready": ready == 200, "reason": reason},
        )


async def test_each_request_sees_the_state_of_its_moment(client, shown):
    async with client.get("/metrics") as answer:
        assert "sluice_gates 1.0" in await answer.text()
    shown.status = structs.replace(STATUS, gates=())
    async with client.get("/metrics") as answer:
        assert "sluice_gates 0.0" in await answer.text()


@pytest.mark.parametrize(
    ("method", "path", "code"), [("GET", "/x", 404), ("POST", "/metrics", 405)]
)
async def test_anything_else_is_refused(client, method, path, code):
    async with client.request(method, path) as answer:
        assert answer.status == code


async def test_a_port_in_use_is_named_with_the_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HttpServer(
            HttpConfig(http_host="127.0.0.1", http_port=port), lambda: STATUS, no_drain
        )
        with raises_code(ErrorCode.CONFIGURATION) as caught:
            await server.start()
    assert str(caught.value) == (
        f"HTTP cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop the process that has it (`ss -ltnp` names it), set http_port to a free port or 0, "
        "or set http_host to another address"
    )


async def test_an_address_of_another_host_is_refused():
    server = HttpServer(HttpConfig(http_host="192.0.2.1", http_port=0), lambda: STATUS, no_drain)
    with raises_code(ErrorCode.CONFIGURATION, "^HTTP .*Cannot assign requested address"):
        await server.start()


async def test_closing_twice_and_without_a_start():
    never_started = HttpServer(LOCAL, lambda: STATUS, no_drain)
    await never_started.close()
    server = HttpServer(LOCAL, lambda: STATUS, no_drain)
    port = await server.start()
    await server.close()
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_request_before_the_thread_serves_is_answered(monkeypatch, shown):
    may_serve = threading.Event()

    @asynccontextmanager
    async def serving_late(*args):
        may_serve.wait(10)
        async with serving(*args) as snapshot:
            yield snapshot

    serving = http_pages.serving
    monkeypatch.setattr(http_pages, "serving", serving_late)
    server = HttpServer(LOCAL, lambda: shown.status, no_drain)
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        await writer.drain()
        may_serve.set()
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        async with session.get("/readyz") as answer:
            assert answer.status == 200
    await server.close()


async def test_its_share_of_descriptors_is_counted_before_others_take_them(monkeypatch, shown):
    found: list[int] = []
    began = threading.Event()

    @asynccontextmanager
    async def serving_late(served, sockets, name, most_connections, *args):
        found.append(most_connections)
        began.set()
        yield

    monkeypatch.setattr(http_pages, "serving", serving_late)
    monkeypatch.setattr(descriptors, "free_descriptors", lambda: 80)
    server = HttpServer(LOCAL, lambda: shown.status, no_drain)
    await server.start()
    monkeypatch.setattr(descriptors, "free_descriptors", lambda: 0)
    await asyncio.to_thread(began.wait, 10)
    await server.close()
    assert found == [10]


async def test_a_thread_that_cannot_serve_closes_the_port_and_says_why(monkeypatch, shown):
    failed = asyncio.Event()

    def fail(*args):
        raise MemoryError("in the test")

    monkeypatch.setattr(http_pages, "serving", fail)
    said: list[str] = []

    def say(text, *args):
        said.append(text % args)
        failed.set()

    monkeypatch.setattr(logger, "error", say)
    server = HttpServer(LOCAL, lambda: shown.status, no_drain)
    port = await server.start()
    await failed.wait()
    assert said == [f"the HTTP port 127.0.0.1:{port} does not answer: MemoryError: in the test"]
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_closing_before_the_thread_serves_leaves_nothing_open(shown):
    server = HttpServer(LOCAL, lambda: shown.status, no_drain)
    port = await server.start()
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
