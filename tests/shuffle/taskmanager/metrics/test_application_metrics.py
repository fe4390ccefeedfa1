"""Metrics by application: who sees them, how many series there are, and what they add up to."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from msgspec import structs
from prometheus_client import generate_latest

from sluice.protocol.access_token import SCOPE_STATUS, make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus, HoldingStatus
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.metrics.application_metrics import LARGEST, registry
from tests.shuffle.taskmanager.metrics.rig import families_of, samples
from tests.support.fakes import no_drain
from tools.docs.sample_status import EMPTY_STATUS, STATUS

PATIENCE_SECONDS = 20
SECRET = bytes(range(32))


def application(name: str, **held: int) -> ApplicationStatus:
    holdings = tuple(HoldingStatus(resource, amount, None) for resource, amount in held.items())
    return ApplicationStatus(name, 1, None, 0, holdings)


def shown(*applications: ApplicationStatus) -> dict[str, float]:
    status = structs.replace(EMPTY_STATUS, applications=applications)
    return samples(families_of(generate_latest(registry(lambda: status)).decode()))


def held(application_id: str, resource: str) -> str:
    return f'sluice_application_held{{application="{application_id}",resource="{resource}"}}'


def test_each_application_shows_what_it_holds_and_its_quota():
    found = samples(families_of(generate_latest(registry(lambda: STATUS)).decode()))
    assert found == {
        held("app-1", "disk_tier_bytes"): 123456,
        held("other", "disk_tier_bytes"): 0,
        'sluice_application_quota{application="app-1",resource="disk_tier_bytes"}': 1 << 30,
        held("app-2", "channels"): 3,
        held("other", "channels"): 0,
    }


def test_the_largest_holders_have_names_and_the_others_are_added_up():
    found = shown(*(application(f"app-{number}", channels=number) for number in range(1000)))
    assert len(found) == LARGEST + 1
    for number in range(1000 - LARGEST, 1000):
        assert found[held(f"app-{number}", "channels")] == number
    assert found[held("other", "channels")] == sum(range(1000 - LARGEST))
    assert sum(found.values()) == sum(range(1000))


def test_each_resource_has_its_own_largest_holders():
    many = [application(f"app-{number}", channels=100 + number) for number in range(LARGEST)]
    found = shown(*many, application("writer", channels=1, map_outputs=7))
    assert found[held("writer", "map_outputs")] == 7
    assert found[held("other", "channels")] == 1
    assert held("writer", "channels") not in found


def test_an_application_that_holds_nothing_has_no_series():
    assert shown(application("idle", channels=0)) == {held("other", "channels"): 0}


@pytest.mark.parametrize("others", [1, LARGEST + 5])
def test_an_application_of_the_name_of_the_sum_is_in_the_sum(others):
    many = [application(f"app-{number}", channels=1) for number in range(others)]
    found = shown(application("other", channels=1000), *many)
    assert found[held("other", "channels")] == 1000 + max(0, others - LARGEST)
    assert sum(found.values()) == 1000 + others


@contextlib.asynccontextmanager
async def served(access: HttpAccess):
    """Serve the sample status; yield a function that gets a page."""
    taken = []

    def status():
        taken.append(STATUS)
        return STATUS

    config = HttpConfig(http_host="127.0.0.1", http_port=0, http_snapshot_interval_seconds=3600)
    server = HttpServer(config, status, no_drain, lambda: access)
    port = await server.start()

    async def get(path: str, token: str = "") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"http://127.0.0.1:{port}{path}"
        async with session.get(url, headers=headers) as answer:
            return answer.status, await answer.text()

    try:
        async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
            yield get, taken
    finally:
        await server.close()


async def test_names_take_a_token_where_there_are_any():
    token = make_access_token(SECRET, SCOPE_STATUS, 0).to_text()
    async with served(HttpAccess(ClusterSecrets([SECRET]))) as (get, _):
        for path in ("/metrics/applications", "/api/v1/status"):
            assert (await get(path))[0] == 401
        code, page = await get("/metrics/applications", token)
        assert code == 200
        assert "app-1" in page
        code, page = await get("/metrics")
        assert code == 200
        assert "app-1" not in page


async def test_without_tokens_the_page_is_as_open_as_the_status():
    async with served(HttpAccess()) as (get, taken):
        assert (await get("/api/v1/status"))[0] == 200
        answers = [await get("/metrics/applications") for _ in range(40)]
        assert {code for code, _ in answers} == {200}
        assert len({page for _, page in answers}) == 1
        assert len(taken) < len(answers)  # few snapshots, whoever asks how often
