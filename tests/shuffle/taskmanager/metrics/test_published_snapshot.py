"""Snapshots of the data loop for the HTTP thread: their number, their age, their absence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request

import aiohttp
import pytest
from msgspec import structs
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from sluice.protocol.access_token import SCOPE_ADMIN, make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.metrics.metrics import registry
from sluice.shuffle.taskmanager.metrics.published_snapshot import (
    BURST,
    REST_FOR_WORK,
    DataLoopSilent,
    Pages,
    Published,
    PublishedSnapshot,
)
from sluice.shuffle.taskmanager.store.store_status import TierStatus
from tests.support.fakes import no_drain
from tools.docs.sample_status import EMPTY_STATUS, STATUS

PATIENCE_SECONDS = 20
LONG = 3600.0
REQUESTS = 2 * BURST
SECRET = bytes(32)
MAY_DRAIN = {"Authorization": f"Bearer {make_access_token(SECRET, SCOPE_ADMIN, 0).to_text()}"}


class Taken:
    """Snapshots that were taken of a data loop."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.count = 0
        self.threads: set[str] = set()
        self._seconds = seconds
        self._error = error

    def __call__(self):
        self.count += 1
        self.threads.add(threading.current_thread().name)
        ends = time.thread_time() + self._seconds
        while time.thread_time() < ends:
            pass  # the work of taking it
        if self._error is not None:
            raise self._error
        return structs.replace(STATUS, uptime_seconds=float(self.count))


async def published(taken, interval=LONG, answer=PATIENCE_SECONDS) -> PublishedSnapshot:
    return PublishedSnapshot(asyncio.get_running_loop(), taken, interval, answer)


async def test_a_flood_sees_few_snapshots():
    taken = Taken()
    snapshots = await published(taken)
    seen = [(await snapshots.latest()).status.uptime_seconds for _ in range(REQUESTS)]
    assert taken.count == BURST
    assert seen == [*range(1, BURST), *[BURST] * (REQUESTS - BURST + 1)]


async def test_requests_at_the_same_time_share_a_snapshot():
    taken = Taken()
    snapshots = await published(taken)
    found = await asyncio.gather(*(snapshots.latest() for _ in range(REQUESTS)))
    assert taken.count == 1
    assert {id(each) for each in found} == {id(found[0])}


async def test_snapshots_come_again_with_time():
    taken = Taken()
    snapshots = await published(taken, interval=0.001)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while taken.count < BURST + 3:
            await snapshots.latest()
            await asyncio.sleep(0)


async def test_a_snapshot_that_costs_much_is_taken_seldom():
    interval = 0.05
    taken = Taken(seconds=interval * BURST / REST_FOR_WORK * 2)
    snapshots = await published(taken, interval=interval)
    for _ in range(REQUESTS):
        await snapshots.latest()
    assert taken.count == 1


async def test_what_was_forgotten_is_taken_again():
    taken = Taken()
    snapshots = await published(taken)
    for _ in range(REQUESTS):
        await snapshots.latest()
    snapshots.forget()
    assert (await snapshots.latest()).status.uptime_seconds == BURST + 1


async def test_an_error_is_that_of_each_who_asked():
    snapshots = await published(Taken(error=ValueError("broken")))
    found = await asyncio.gather(*(snapshots.latest() for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["broken"] * 3


async def test_a_data_loop_that_has_ended_is_silent():
    ended = asyncio.new_event_loop()
    ended.close()
    snapshots = PublishedSnapshot(ended, lambda: STATUS, LONG, PATIENCE_SECONDS)
    with pytest.raises(DataLoopSilent):
        await snapshots.latest()
    with pytest.raises(DataLoopSilent):
        await snapshots.drain(no_drain, 0.0)


async def test_a_data_loop_that_does_not_answer_is_silent_once_and_for_all_who_ask():
    other = asyncio.new_event_loop()  # which does not run
    try:
        snapshots = PublishedSnapshot(other, lambda: STATUS, LONG, 0.05)
        with pytest.raises(DataLoopSilent, match="has not answered for"):
            await snapshots.latest()
        began = snapshots._asked_at
        with pytest.raises(DataLoopSilent):
            await snapshots.latest()
        assert snapshots._asked_at == began  # nothing more was asked for
    finally:
        other.close()


@pytest.mark.parametrize("status", [STATUS, EMPTY_STATUS], ids=["full", "empty"])
async def test_pages_made_in_pieces_are_those_made_at_once(status):
    pages, snapshot = Pages(lambda seconds: None), Published(status)
    page = await pages.status(snapshot)
    assert json.loads(page.body) == json.loads(status.encode())
    whole = registry(lambda: status)
    for accept, encode in (
        ("", generate_latest),
        ("application/openmetrics-text; version=1.0.0", openmetrics.generate_latest),
    ):
        made = (await pages.metrics(snapshot, accept)).body
        assert of_sluice(made) == of_sluice(encode(whole))
        assert (await pages.metrics(snapshot, accept)).body is made
    assert made.endswith(b"# EOF\n")
    assert made.count(b"# EOF") == 1


def of_sluice(page: bytes) -> list[bytes]:
    """Return the lines without those of the process, which change."""
    return [line for line in page.splitlines() if b"process_" not in line]


@contextlib.asynccontextmanager
async def serving(status, drain=no_drain, **keys):
    config = HttpConfig(http_host="127.0.0.1", http_port=0, **keys)
    server = HttpServer(config, status, drain, lambda: HttpAccess(ClusterSecrets([SECRET])))
    port = await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


async def test_snapshots_are_taken_on_the_data_loop_and_pages_made_elsewhere():
    taken = Taken()
    async with serving(taken) as url, aiohttp.ClientSession(url, headers=MAY_DRAIN) as client:
        for path in ("/metrics", "/healthz", "/readyz", "/api/v1/status"):
            async with client.get(path) as answer:
                assert answer.status == 200
    assert taken.threads == {threading.current_thread().name}


def asked_in_the_way(url: str, method: str = "GET") -> tuple[int, dict[str, object]]:
    """Ask without letting the event loop of this thread run."""
    asked = urllib.request.Request(url, headers=MAY_DRAIN, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def test_a_data_loop_in_the_way_is_told_by_every_page():
    async with serving(lambda: STATUS, http_answer_timeout_seconds=0.1) as url:
        status, body = asked_in_the_way(f"{url}/healthz")
        assert (status, body["state"]) == (503, "unresponsive")
        assert "has not answered" in str(body["reason"])
        status, body = asked_in_the_way(f"{url}/readyz")
        assert (status, body["ready"]) == (503, False)
        pages = ("/metrics", "GET"), ("/api/v1/status", "GET"), ("/api/v1/drain", "POST")
        for path, method in pages:
            status, body = asked_in_the_way(url + path, method)
            assert status == 503
            assert "has not answered" in str(body["error"])
        async with aiohttp.ClientSession(url) as client, client.get("/healthz") as answer:
            assert answer.status == 200  # it runs again


async def test_a_status_that_cannot_be_taken_is_an_error_of_the_server(caplog):
    async with (
        serving(Taken(error=ValueError("broken"))) as url,
        aiohttp.ClientSession(url) as client,
        client.get("/metrics") as answer,
    ):
        assert answer.status == 500
    assert "broken" in caplog.text


async def test_draining_happens_on_the_data_loop_and_ends_the_wait_in_time():
    threads: set[str] = set()
    moving: list[bool] = []
    waits = asyncio.Event()

    async def drain(migrate: bool) -> None:
        moving.append(migrate)
        threads.add(threading.current_thread().name)
        await waits.wait()

    away = TierStatus(directory="/away", unread=True)
    status = structs.replace(STATUS, storage=(*STATUS.storage, away))
    async with serving(lambda: status, drain) as url, aiohttp.ClientSession(url) as client:
        async with client.post("/api/v1/drain?wait_seconds=0.05", headers=MAY_DRAIN) as answer:
            assert await answer.json() == {"state": "ready", "busy": True}
        waits.set()
        async with client.post("/api/v1/drain?wait_seconds=inf", headers=MAY_DRAIN) as answer:
            assert await answer.json() == {"state": "ready", "busy": False}
        path = "/api/v1/drain?wait_seconds=5&migrate=true"
        async with client.post(path, headers=MAY_DRAIN) as answer:
            copies = STATUS.copies
            told = {"moved": copies.moved, "staying": copies.staying, "reason": copies.reason}
            told |= {"state": "ready", "busy": False, "unread": ["/away"]}
            assert await answer.json() == told
        assert moving == [False, False, True]
        for wrong in ("wait_seconds=x", "wait_seconds=nan", "migrate=perhaps"):
            path = f"/api/v1/drain?{wrong}"
            async with client.post(path, headers=MAY_DRAIN) as answer:
                assert answer.status == 400
    assert threads == {threading.current_thread().name}
