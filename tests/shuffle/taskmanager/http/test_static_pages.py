"""The files of the status page: their headers, and what may be in them."""

from __future__ import annotations

import re

import aiohttp
import pytest

from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.http.static_pages import FOLDER
from tests.protocol.identity_vectors import SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

PATHS = {
    "/": "text/html",
    "/cluster": "text/html",
    "/pages/page.js": "text/javascript",
    "/pages/page.css": "text/css",
    "/pages/icon.svg": "image/svg+xml",
}
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")


@pytest.fixture
async def client():
    config = HttpConfig(http_host="127.0.0.1", http_port=0)
    access = HttpAccess(ClusterSecrets([SECRET]))
    server = HttpServer(config, lambda: STATUS, no_drain, lambda: access)
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session
    await server.close()
    assert not access.refused


@pytest.mark.parametrize(("path", "content_type"), PATHS.items())
async def test_the_pages_need_no_token_and_have_no_names(client, path, content_type):
    async with client.get(path) as answer:
        assert answer.status == 200
        assert answer.content_type == content_type
        assert answer.charset == "utf-8"
        text = await answer.text()
    assert STATUS.applications[0].application_id not in text
    assert STATUS.taskmanager_id not in text


@pytest.mark.parametrize("path", PATHS)
async def test_a_browser_loads_nothing_from_elsewhere(client, path):
    async with client.get(path) as answer:
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert policy == [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_nothing_else_in_the_folder_is_served(client):
    for path in ("/pages/", "/pages/status.html", "/pages/../static_pages.py", "/pages/%2e%2e/x"):
        async with client.get(path) as answer:
            assert answer.status == 404


def test_every_file_of_the_folder_is_served():
    assert len(list(FOLDER.iterdir())) == len(PATHS)


@pytest.mark.parametrize("name", ["status.html", "cluster.html"])
def test_addresses_are_relative_and_nothing_is_inline(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    addresses = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert addresses
    assert not [each for each in addresses if each.startswith("/") or ":" in each]
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|\son\w+=", text)


def test_the_script_makes_no_markup_of_texts():
    assert not MARKUP.search((FOLDER / "page.js").read_text(encoding="utf-8"))
