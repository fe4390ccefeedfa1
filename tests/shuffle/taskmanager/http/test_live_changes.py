"""Log level and quotas change while a TaskManager runs, by the rules of the configuration."""

from __future__ import annotations

import asyncio
import logging
import time

import aiohttp
import pytest

from sluice.protocol.access_token import make_access_token
from sluice.protocol.errors import SluiceError
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig, load
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_served import LiveSettings, Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.http.live_changes import MAX_BODY_BYTES
from tests.protocol.identity_vectors import SECRET
from tests.support.fakes import no_drain
from tools.docs.sample_status import STATUS

SECRETS = ClusterSecrets([SECRET])
LEVEL = "/api/v1/log-level"
QUOTAS = "/api/v1/quotas"


def bearer(scope: str) -> dict[str, str]:
    token = make_access_token(SECRET, scope, int(time.time()) + 3600).to_text()
    return {"Authorization": f"Bearer {token}"}


class Changed:
    """The settings of a TaskManager, changed by requests."""

    def __init__(self) -> None:
        self.config = TaskManagerConfig()
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.error: SluiceError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def change(self, changes) -> None:
        self.loops.append(asyncio.get_running_loop())
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        self.config = self.config.model_copy(update=changes)


@pytest.fixture
def changed() -> Changed:
    return Changed()


@pytest.fixture
async def client(changed):
    server = HttpServer(
        HttpConfig(
            http_host="127.0.0.1",
            http_port=0,
            http_request_timeout_seconds=0.5,
            http_answer_timeout_seconds=0.5,
        ),
        lambda: STATUS,
        no_drain,
        lambda: HttpAccess(SECRETS),
        operations=Operations(settings=LiveSettings(lambda: changed.config, changed.change)),
    )
    port = await server.start()
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(url, headers=bearer("admin")) as session:
        yield session
    await server.close()


async def test_the_log_level_changes_on_the_data_loop(client, changed):
    async with client.put(LEVEL, json={"level": "WARNING"}) as answer:
        assert (answer.status, await answer.json()) == (200, {"level": "warning"})
    assert changed.config.log_level == "warning"
    assert changed.loops == [asyncio.get_running_loop()]


async def test_quotas_that_are_left_out_keep_their_values(client, changed):
    async with client.put(QUOTAS, json={"quota_channels": 10}) as answer:
        assert answer.status == 200
    document = {"quota_disk_tier_bytes": "20%", "quota_overrides": ["alice: channels = 7"]}
    async with client.put(QUOTAS, json=document) as answer:
        shown = await answer.json()
    expected = load(
        None, {}, document | {"quota_channels": 10, "quota_overrides": "alice: channels = 7"}
    ).quotas
    assert changed.config.quotas == expected
    assert (shown["quota_channels"], shown["quota_disk_tier_bytes"]) == (10, "20 %")


@pytest.mark.parametrize(
    ("path", "document"), [(LEVEL, {"level": "debug"}), (QUOTAS, {"quota_channels": 1})]
)
async def test_a_change_that_does_not_hold_everywhere_is_503(client, changed, path, document):
    changed.error = SluiceError("data process 1 has not answered for 2 s")
    async with client.put(path, json=document) as answer:
        assert (answer.status, await answer.json()) == (503, {"error": str(changed.error)})
    changed.error = None
    changed.goes_on.clear()
    async with client.put(path, json=document) as answer:
        assert answer.status == 503
        assert "the data loop has not answered" in (await answer.json())["error"]


async def test_null_removes_a_quota(client, changed):
    async with client.put(QUOTAS, json={"quota_channels": None}) as answer:
        assert (await answer.json())["quota_channels"] is None
    assert changed.config.quotas.quota_channels is None


@pytest.mark.parametrize(
    ("path", "document", "text"),
    [
        (LEVEL, {"level": "loud"}, 'log_level = "loud": must be debug, info, warning or error'),
        (LEVEL, {"levl": "info"}, "unknown field `levl`"),
        (LEVEL, [], "Expected `object`"),
        (QUOTAS, {"quota_channels": 0}, "quota_channels = 0: must be at least 1"),
        (QUOTAS, {"quota_chanels": 1}, "quota_chanels is not a quota: use quota_memory_tier"),
        (QUOTAS, {"log_level": "debug"}, "log_level is not a quota"),
        (QUOTAS, {"quota_overrides": ["alice"]}, '"alice" is not an override: the form is'),
    ],
)
async def test_a_wrong_value_is_refused_with_the_rule(client, changed, path, document, text):
    async with client.put(path, json=document) as answer:
        assert answer.status == 400
        assert text in (await answer.json())["error"]
    assert (changed.loops, changed.config) == ([], TaskManagerConfig())


async def test_a_body_of_another_form_is_refused(client):
    async with client.put(LEVEL, data=b"level=debug") as answer:
        assert answer.status == 415
    headers = {"Content-Type": "application/json"}
    async with client.put(LEVEL, data=b"\xff{", headers=headers) as answer:
        assert answer.status == 400


@pytest.mark.parametrize("depth", [3, 150, 500, 900, 30_000])
async def test_a_body_that_is_nested_deeply_is_refused(client, changed, depth):
    headers = {"Content-Type": "application/json"}
    body = '{"quota_overrides": ' + "[" * depth + "]" * depth + "}"
    async with client.put(QUOTAS, data=body.encode(), headers=headers) as answer:
        assert (answer.status, changed.loops) == (400, [])
        assert (await answer.json())["error"]


async def test_a_body_that_is_too_large_is_refused_with_the_limit(client, changed):
    document = {"quota_overrides": ["a: channels = 1"] * (MAX_BODY_BYTES // 16)}
    async with client.put(QUOTAS, json=document) as answer:
        assert (answer.status, changed.loops) == (413, [])
        assert str(MAX_BODY_BYTES) in (await answer.json())["error"]


async def test_a_body_that_does_not_arrive_is_refused(client):
    url = client._base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    headers = {"Host": "x", "Content-Type": "application/json", "Content-Length": "9"}
    lines = [
        f"PUT {LEVEL} HTTP/1.1",
        *(f"{k}: {v}" for k, v in [*headers.items(), *client.headers.items()]),
    ]
    writer.write("\r\n".join([*lines, "", "{"]).encode())
    assert (await reader.readline()).split()[1] == b"408"
    writer.close()


@pytest.mark.parametrize(
    ("headers", "code"), [(bearer("status"), 403), ({"Authorization": ""}, 401)]
)
@pytest.mark.parametrize("path", [LEVEL, QUOTAS])
async def test_other_tokens_change_nothing(client, changed, path, headers, code):
    async with client.put(path, json={}, headers=headers) as answer:
        assert (answer.status, changed.loops) == (code, [])


async def test_an_embedded_taskmanager_changes_its_own_loggers_only(embedded):
    root = logging.root.level
    try:
        await embedded.change({"log_level": "error"})
        assert logging.getLogger("sluice").level == logging.ERROR
        assert logging.root.level == root
    finally:
        logging.getLogger("sluice").setLevel(logging.NOTSET)


@pytest.fixture
async def embedded():
    from sluice.shuffle.taskmanager.taskmanager import TaskManager

    async with TaskManager.embedded() as taskmanager:
        yield taskmanager
