"""The page of a shuffle over HTTP: access, limits, errors."""

from __future__ import annotations

import aiohttp
import pytest

from sluice.protocol.access_token import make_access_token
from sluice.protocol.errors import SluiceError
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http import shuffle_pages
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_served import Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.metrics.published_snapshot import DataLoopSilent
from sluice.shuffle.taskmanager.store.shuffle_page import (
    MAX_OUTPUTS,
    OutputDetail,
    ShufflePage,
    ShuffleQuery,
    UnknownShuffle,
)
from tests.protocol.identity_vectors import SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

LOCAL = HttpConfig(http_host="127.0.0.1", http_port=0)
PAGE = ShufflePage("a/b é", 3, 1, 10, (OutputDetail(7),), None)


@pytest.fixture
def asked():
    return []


@pytest.fixture
async def session(asked):
    async def inspect(query):
        asked.append(query)
        if query.application == "nobody":
            raise UnknownShuffle("No application of this name", value=query.application)
        if query.application == "ended":
            raise SluiceError("Data process 1 has ended")
        if query.application == "silent":
            raise DataLoopSilent(1.0, "data process 1")
        return PAGE

    access = HttpAccess(ClusterSecrets([SECRET]))
    server = HttpServer(
        LOCAL, lambda: STATUS, no_drain, lambda: access, None, Operations(inspect=inspect)
    )
    port = await server.start()
    token = make_access_token(SECRET, "status", 0).to_text()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        yield session
    await server.close()


async def test_a_page_is_asked_for_by_application_shuffle_and_range(session, asked):
    async with session.get("/api/v1/shuffles/a%2Fb%20%C3%A9/3?first=5&limit=2") as answer:
        assert answer.status == 200
        document = await answer.json()
    assert asked == [ShuffleQuery("a/b é", 3, 5, 2)]
    assert (document["application_id"], document["next"]) == ("a/b é", None)
    assert document["outputs"][0]["map_attempt_id"] == 7


async def test_the_defaults_begin_at_the_first_map_attempt(session, asked):
    async with session.get("/api/v1/shuffles/app/3") as answer:
        assert answer.status == 200
    assert asked == [ShuffleQuery("app", 3)]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("app/x", 'shuffle = "x" is not a whole number from 0 to '),
        ("app/-1", 'shuffle = "-1" is not'),
        ("app/3?limit=0", f'limit = "0" is not a whole number from 1 to {MAX_OUTPUTS}'),
        (f"app/3?limit={MAX_OUTPUTS + 1}", "is not a whole number"),
        ("app/3?first=" + "9" * 30, "is not a whole number"),
        ("app/3?first=%0A", 'first = "?" is not'),
    ],
)
async def test_a_bad_number_is_refused_with_its_limits(session, asked, path, reason):
    async with session.get(f"/api/v1/shuffles/{path}") as answer:
        assert answer.status == 400
        assert reason in (await answer.json())["error"]
    assert asked == []


@pytest.mark.parametrize(
    ("application", "reason"),
    [
        ("ended", "Data process 1 has ended"),
        ("silent", "data process 1 has not answered for 1.0 s"),
    ],
)
async def test_a_data_process_that_does_not_answer_is_503(session, application, reason):
    async with session.get(f"/api/v1/shuffles/{application}/3") as answer:
        assert (answer.status, await answer.json()) == (503, {"error": reason})


async def test_an_unknown_application_is_404(session):
    async with session.get("/api/v1/shuffles/nobody/3") as answer:
        assert answer.status == 404
        assert "No application of this name" in (await answer.json())["error"]


async def test_a_request_does_not_wait_for_others_without_end(session, monkeypatch):
    monkeypatch.setattr(shuffle_pages, "REST_SECONDS", 60.0)
    monkeypatch.setattr(shuffle_pages, "TURN_SECONDS", 0.05)
    async with session.get("/api/v1/shuffles/app/3") as answer:
        assert answer.status == 200
    async with session.get("/api/v1/shuffles/app/3") as answer:
        assert answer.status == 503
        assert "try again" in (await answer.json())["error"]


def test_the_rest_is_in_proportion_to_the_work():
    assert shuffle_pages.rest_after(0.0001) == shuffle_pages.REST_SECONDS
    assert shuffle_pages.rest_after(0.04) == pytest.approx(2.0)
    assert shuffle_pages.rest_after(10.0) < shuffle_pages.TURN_SECONDS


async def test_names_need_a_token(session, asked):
    async with session.get("/api/v1/shuffles/app/3", headers={"Authorization": ""}) as answer:
        assert answer.status == 401
    assert asked == []
