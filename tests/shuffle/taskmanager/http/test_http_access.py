"""Who gets names and who drains: with a cluster secret, without one, on the loopback by choice."""

from __future__ import annotations

import contextlib
import time

import aiohttp
import pytest

from sluice.protocol.access_token import make_access_token
from sluice.protocol.errors import SluiceError
from sluice.protocol.identity import ClusterSecrets, SubmitToken
from sluice.shuffle.counters import BoundedCounts
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http import http_access
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.transport.access import SocketUser
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

SECRETS = ClusterSecrets([SECRET, OTHER_SECRET])
STATUS_TOKEN = make_access_token(SECRET, "status", 0).to_text()
STRANGER = SocketUser(65534, (65534,))
ADMIN_TOKEN = make_access_token(SECRET, "admin", 0).to_text()


@contextlib.asynccontextmanager
async def serving(http=None, **access):
    counts = BoundedCounts()
    server = HttpServer(
        HttpConfig(http_host="127.0.0.1", http_port=0, **(http or {})),
        lambda: STATUS,
        no_drain,
        lambda: HttpAccess(refused=counts, **access),
    )
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session, counts
    await server.close()


@pytest.fixture
def from_another_host(monkeypatch):
    """Let every request come from elsewhere, which one host cannot show otherwise."""
    monkeypatch.setattr(http_access, "_is_on_loopback", lambda request: False)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_health_and_metrics_need_no_token(path):
    async with serving(secrets=SECRETS) as (client, counts), client.get(path) as answer:
        assert answer.status == 200
        text = await answer.text()
        assert not counts
    names = {each.application_id for each in STATUS.applications}
    assert names
    assert not [name for name in names if name in text]


@pytest.mark.parametrize("secret", [SECRET, OTHER_SECRET], ids=["first", "second"])
@pytest.mark.parametrize("scope", ["status", "admin"])
async def test_a_token_of_each_accepted_secret_reads_names(secret, scope):
    token = make_access_token(secret, scope, int(time.time()) + 60).to_text()
    async with serving(secrets=SECRETS) as (client, counts):
        async with client.get("/api/v1/status", headers=bearer(token)) as answer:
            assert answer.status == 200
            assert (await answer.json())["applications"][0]["application_id"] == "app-1"
        assert not counts


@pytest.mark.parametrize(
    ("headers", "reason", "challenge"),
    [
        ({}, "no token", 'scope="status"'),
        ({"Authorization": "Basic YTpi"}, "no token", 'scope="status"'),
        ({"Authorization": "Bearer"}, "no token", 'scope="status"'),
        (bearer("x"), "wrong token", 'scope="status", error="invalid_token"'),
        (
            bearer(make_access_token(bytes(32), "admin", 0).to_text()),
            "wrong token",
            'scope="status", error="invalid_token"',
        ),
        (
            bearer(SubmitToken.make(SECRET).to_text()),
            "wrong token",
            'scope="status", error="invalid_token"',
        ),
        (
            bearer(make_access_token(SECRET, "status", 5).to_text()),
            "expired",
            'scope="status", error="invalid_token"',
        ),
    ],
)
async def test_without_a_good_token_there_are_no_names(headers, reason, challenge):
    async with serving(secrets=SECRETS) as (client, counts):
        async with client.get("/api/v1/status", headers=headers) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == f'Bearer realm="sluice", {challenge}'
            body = await answer.json()
        assert body.keys() == {"error"}
        assert "sluice token create --access status" in body["error"]
        assert "app-1" not in body["error"]
        assert counts == {reason: 1}


async def test_draining_takes_an_admin_token(from_another_host):
    async with serving(secrets=SECRETS) as (client, counts):
        async with client.post("/api/v1/drain", headers=bearer(STATUS_TOKEN)) as refused:
            assert refused.status == 403
            assert refused.headers["WWW-Authenticate"] == (
                'Bearer realm="sluice", scope="admin", error="insufficient_scope"'
            )
            assert "sluice token create --access admin" in (await refused.json())["error"]
        async with client.post("/api/v1/drain") as refused:
            assert refused.status == 401
        async with client.post("/api/v1/drain", headers=bearer(ADMIN_TOKEN)) as answer:
            assert (answer.status, await answer.json()) == (200, {"state": "ready", "busy": False})
        assert counts == {"wrong scope": 1, "no token": 1}


async def test_with_a_secret_the_own_host_needs_a_token_too():
    async with serving(secrets=SECRETS) as (client, counts):
        for method, path in (("GET", "/api/v1/status"), ("POST", "/api/v1/drain")):
            async with client.request(method, path) as answer:
                assert answer.status == 401
        assert counts == {"no token": 2}


async def test_names_on_the_loopback_by_choice():
    async with serving(secrets=SECRETS, names_on_loopback=True) as (client, counts):
        async with client.get("/api/v1/status") as answer:
            assert answer.status == 200
        async with client.get("/api/v1/status", headers=bearer("x")) as answer:
            assert answer.status == 401  # a token that is given is looked at
        async with client.post("/api/v1/drain") as answer:
            assert answer.status == 401
        assert counts == {"wrong token": 1, "no token": 1}


async def test_names_on_the_loopback_are_not_for_other_hosts(from_another_host):
    async with (
        serving(secrets=SECRETS, names_on_loopback=True) as (client, _),
        client.get("/api/v1/status") as answer,
    ):
        assert answer.status == 401


@pytest.mark.parametrize("page", ["/api/v1/status", "/metrics/applications"])
@pytest.mark.parametrize("keys", [{}, {"secrets": SECRETS, "names_on_loopback": True}])
async def test_names_without_a_token_need_a_host_of_this_taskmanager(page, keys):
    async with serving(own_names=["Node-1.example"], **keys) as (client, counts):
        for host in ("127.0.0.1:7338", "[::1]:7338", "LOCALHOST", "node-1.example:7338"):
            async with client.get(page, headers={"Host": host}) as answer:
                assert answer.status == 200
        for host in ("rebound.example:7338", "", "localhost.rebound.example", "127.0.0.1.example"):
            async with client.get(page, headers={"Host": host}) as answer:
                assert answer.status == 403
                assert "names another host" in (await answer.json())["error"]
        assert counts == {"other name": 4}


async def test_health_and_metrics_need_no_host_of_this_taskmanager():
    async with serving() as (client, counts):
        for page in ("/metrics", "/healthz", "/readyz"):
            async with client.get(page, headers={"Host": "taskmanager-1"}) as answer:
                assert answer.status == 200
        assert not counts


async def test_without_a_secret_only_the_unix_socket_drains(tmp_path, monkeypatch):
    path = tmp_path / "http.sock"
    async with serving(http={"http_socket_path": path}) as (client, counts):
        async with client.post("/api/v1/drain") as answer:
            assert answer.status == 403
            assert "http_socket_path" in (await answer.json())["error"]
            assert "WWW-Authenticate" not in answer.headers
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://rebound.example", connector=connector) as local:
            async with local.get("/api/v1/status") as answer:
                assert answer.status == 200
            async with local.post("/api/v1/drain") as answer:
                assert answer.status == 200
            monkeypatch.setattr("sluice.transport.access.peer_user", lambda sock: STRANGER)
            async with local.post("/api/v1/drain") as answer:
                assert answer.status == 403
        assert counts == {"not the socket": 1, "other user": 1}
    assert not path.exists()


async def test_the_unix_socket_needs_a_token_where_there_is_a_secret(tmp_path):
    path = tmp_path / "http.sock"
    async with serving(secrets=SECRETS, http={"http_socket_path": path}) as (_, counts):
        assert path.stat().st_mode & 0o777 == 0o600
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as local:
            async with local.post("/api/v1/drain") as answer:
                assert answer.status == 401
            async with local.post("/api/v1/drain", headers=bearer(ADMIN_TOKEN)) as answer:
                assert answer.status == 200
        assert counts == {"no token": 1}


async def test_a_unix_socket_that_cannot_be_made_is_reported(tmp_path):
    path = tmp_path / "http.sock"
    path.write_text("of somebody else")
    with pytest.raises(SluiceError, match="HTTP cannot listen on the Unix socket"):
        async with serving(http={"http_socket_path": path}):
            pass
    assert path.read_text() == "of somebody else"
