"""The description of the HTTP port is that of the port."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web

from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.http.api_routes import ROUTES
from sluice.shuffle.taskmanager.http.http_served import LiveSettings, Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.http.openapi import document, encoded
from sluice.shuffle.taskmanager.store.shuffle_page import ShufflePage, ShuffleQuery
from tests.support.fakes import no_drain
from tools.docs.openapi_document import DOCUMENT
from tools.docs.sample_status import STATUS


async def nothing(*given) -> None:
    pass


async def inspect(query: ShuffleQuery) -> ShufflePage:
    return ShufflePage()


@pytest.fixture
async def served(monkeypatch):
    """Serve, and yield the application and the client of the test."""
    made: list[web.Application] = []

    class Runner(web.AppRunner):
        def __init__(self, app, **given) -> None:
            made.append(app)
            super().__init__(app, **given)

    monkeypatch.setattr(web, "AppRunner", Runner)
    server = HttpServer(
        HttpConfig(http_host="127.0.0.1", http_port=0),
        lambda: STATUS,
        no_drain,
        operations=Operations(
            undrain=nothing, inspect=inspect, settings=LiveSettings(TaskManagerConfig, nothing)
        ),
    )
    url = f"http://127.0.0.1:{await server.start()}"
    async with aiohttp.ClientSession(url) as session:
        async with session.get("/api/v1/openapi.json") as answer:
            body = await answer.read()
        yield made[0], body
    await server.close()


def test_the_committed_document_is_the_generated_one():
    assert DOCUMENT.read_bytes() == encoded(), "run: make docs"


async def test_the_document_is_served(served):
    _, body = served
    assert body == encoded()


async def test_each_route_has_a_row_in_the_table(served):
    app, _ = served
    found = {(each.method, each.resource.canonical) for each in app.router.routes()}
    has = {(method, path) for method, path in found if method != "HEAD"}
    assert has == {(each.method, each.path) for each in ROUTES}, "add a row to api_routes.py"


def test_references_lead_to_schemas():
    made = document()
    text = json.dumps(made)
    names = {each.partition('"')[0] for each in text.split("#/components/schemas/")[1:]}
    assert names <= made["components"]["schemas"].keys()


def test_every_field_of_the_status_is_described():
    fields = document()["components"]["schemas"]["TaskManagerStatus"]["properties"]
    assert fields.keys() == json.loads(STATUS.encode()).keys()
