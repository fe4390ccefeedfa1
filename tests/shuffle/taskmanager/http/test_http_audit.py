"""Each request that changes something is one line: who, what, and the outcome."""

from __future__ import annotations

import os
import stat
import time

import aiohttp
import pytest

from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.http.audit_entry import AUDIT
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_audit import MAX_CHANGE_CHARACTERS
from sluice.shuffle.taskmanager.http.http_served import LiveSettings, Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.process.audit_file import AuditFile
from tests.protocol.identity_vectors import SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

TOKEN = make_access_token(SECRET, "admin", int(time.time()) + 3600)
BEARER = {"Authorization": f"Bearer {TOKEN.to_text()}"}


class Audited:
    """A server whose audit log is a file, and the client of its tests."""

    def __init__(self, directory, secrets) -> None:
        self.path = directory / "audit.log"
        self.socket = directory / "h"
        config = TaskManagerConfig()

        async def change(changes) -> None:
            if self.change is not None:
                await self.change(changes)

        self.change = None

        self.server = HttpServer(
            HttpConfig(
                http_host="127.0.0.1",
                http_port=0,
                http_socket_path=self.socket,
            ),
            lambda: STATUS,
            no_drain,
            lambda: HttpAccess(secrets),
            operations=Operations(settings=LiveSettings(lambda: config, change)),
        )
        self.url = ""

    async def __aenter__(self):
        self.file = AuditFile.open(self.path)
        self.url = f"http://127.0.0.1:{await self.server.start()}"
        return self

    async def __aexit__(self, *error) -> None:
        await self.server.close()
        self.file.close()

    async def ask(self, method: str, path: str, *, unix: bool = False, **given) -> int:
        connector = aiohttp.UnixConnector(str(self.socket)) if unix else None
        async with (
            aiohttp.ClientSession(self.url, connector=connector) as session,
            session.request(method, path, **given) as answer,
        ):
            return answer.status

    def lines(self) -> list[str]:
        """Return the lines without their times; all are there after the close."""
        return [line.split(" ", 2)[2] for line in self.path.read_text().splitlines()]


@pytest.fixture
def audited(tmp_path):
    return Audited(tmp_path, ClusterSecrets([SECRET]))


async def test_a_change_names_the_token_the_address_and_the_values(audited):
    async with audited:
        body = {"level": "debug"}
        assert await audited.ask("PUT", "/api/v1/log-level", json=body, headers=BEARER) == 200
        assert await audited.ask("POST", "/api/v1/drain?migrate=false", headers=BEARER) == 200
        assert await audited.ask("GET", "/api/v1/status", headers=BEARER) == 200
    who = f"by token {TOKEN.token_id.hex()} from 127.0.0.1: 200"
    assert audited.lines() == [
        f"INFO {AUDIT}: PUT /api/v1/log-level {who}: log_level = debug",
        f"INFO {AUDIT}: POST /api/v1/drain?migrate=false {who}",
    ]
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600
    assert TOKEN.to_text() not in audited.path.read_text()


async def test_a_user_of_the_unix_socket_is_named(tmp_path):
    audited = Audited(tmp_path, None)
    async with audited:
        assert await audited.ask("POST", "/api/v1/drain", unix=True) == 200
    (line,) = audited.lines()
    expected = f"user {os.getuid()}, process {os.getpid()} from the Unix socket: 200"
    assert line.endswith(expected)


async def test_refused_requests_are_counted(audited):
    async with audited:
        for _ in range(20):
            assert await audited.ask("POST", "/api/v1/drain") == 401
    first, rest = audited.lines()
    assert first.endswith("POST /api/v1/drain by nobody known from 127.0.0.1: 401 Unauthorized")
    assert rest.startswith(f"WARNING {AUDIT}: 19 more in ")
    assert rest.endswith("19 from 127.0.0.1")


@pytest.mark.parametrize("path", ["/api/v1/drain", "/api/v1/quotas", "/unknown"])
async def test_parameters_that_the_route_does_not_have_are_left_out(audited, path):
    async with audited:
        query = f"?token={TOKEN.to_text()}&migrate=no"
        await audited.ask("POST", f"{path}{query}", headers=BEARER)
    (line,) = audited.lines()
    shown = "/api/v1/drain?migrate=no" if path == "/api/v1/drain" else path
    assert f"POST {shown} by " in line
    assert "sluice-access" not in line


async def test_a_token_that_was_not_accepted_is_not_named(audited):
    status = make_access_token(SECRET, "status", 0)
    async with audited:
        given = {"Authorization": f"Bearer {status.to_text()}"}
        assert await audited.ask("POST", "/api/v1/drain", headers=given) == 403
    (line,) = audited.lines()
    assert "nobody known" in line


async def test_accepted_changes_are_all_written(audited):
    async with audited:
        for _ in range(200):
            await audited.ask("POST", "/api/v1/drain", headers=BEARER)
    assert len(audited.lines()) == 200


async def test_a_line_is_bounded_and_escaped(audited):
    async with audited:
        path = f"/api/v1/quotas?a=%0A%1b[0mforged{'x' * 1000}"
        body = {"quota_overrides": [f"alice\n{'y' * 1000}: channels = 1"]}
        await audited.ask("PUT", path, json=body, headers=BEARER)
    (line,) = audited.lines()
    assert "forged" not in line
    assert len(line) < 2 * MAX_CHANGE_CHARACTERS + 300
    assert line.isprintable()


async def test_a_long_path_is_cut_and_escaped(audited):
    async with audited:
        await audited.ask("PUT", f"/%0A%1b[0mforged{'x' * 1000}", headers=BEARER)
    (line,) = audited.lines()
    assert len(line) < MAX_CHANGE_CHARACTERS + 300
    assert line.isprintable()


async def test_a_change_that_fails_is_a_warning(audited):
    async def fail(changes) -> None:
        raise ValueError("the change fails")

    audited.change = fail
    async with audited:
        body = {"level": "debug"}
        assert await audited.ask("PUT", "/api/v1/log-level", json=body, headers=BEARER) == 500
    (line,) = audited.lines()
    assert line.startswith(f"WARNING {AUDIT}: PUT /api/v1/log-level")
    assert ": failed: ValueError" in line


async def test_lines_go_on_after_a_restart(audited, tmp_path):
    async with audited:
        await audited.ask("POST", "/api/v1/drain", headers=BEARER)
    again = Audited(tmp_path, ClusterSecrets([SECRET]))
    async with again:
        await again.ask("POST", "/api/v1/drain", headers=BEARER)
    assert len(again.lines()) == 2


async def test_without_a_file_the_lines_are_in_the_log(caplog):
    server = HttpServer(
        HttpConfig(http_host="127.0.0.1", http_port=0),
        lambda: STATUS,
        no_drain,
        lambda: HttpAccess(ClusterSecrets([SECRET])),
    )
    url = f"http://127.0.0.1:{await server.start()}"
    async with (
        aiohttp.ClientSession(url) as session,
        session.post("/api/v1/drain", headers=BEARER) as answer,
    ):
        assert answer.status == 200
    await server.close()
    assert [each.name for each in caplog.records] == [AUDIT]
