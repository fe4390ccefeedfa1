"""The members of a cluster: who is asked, with which token, and what happens if one is silent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs

from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.cluster.members_status import WatchedMemberStatus
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.http import cluster_members
from sluice.shuffle.taskmanager.http.cluster_members import ClusterMembers
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_served import Operations
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.transport.address import Address
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET
from tests.support.fakes import no_drain
from tests.support.free_ports import free_ports
from tools.docs.sample_status import STATUS

PATIENCE_SECONDS = 30
CLUSTER = "/api/v1/cluster"
SECRETS = ClusterSecrets([SECRET])


def named(name: str):
    return structs.replace(STATUS, taskmanager_id=name)


@contextlib.asynccontextmanager
async def port_of(status, urls=(), secrets=None, **settings):
    """Run the HTTP port of a TaskManager; yield its URL."""
    server = HttpServer(
        HttpConfig(http_host="127.0.0.1", http_port=0),
        lambda: status,
        no_drain,
        lambda: HttpAccess(secrets),
        operations=Operations(members=lambda: ClusterMembers(tuple(urls), secrets, **settings)),
    )
    port = await server.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def server_of(answer):
    """Run another HTTP server; yield its URL."""
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def members_at(url: str, token: str = ""):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as client, client.get(url + CLUSTER, headers=headers) as got:
        assert got.status == 200
        return (await got.json())["members"]


async def test_every_member_is_there_and_this_one_is_first():
    async with (
        port_of(named("tm-2")) as second,
        port_of(named("tm-3")) as third,
        port_of(named("tm-1"), [third, second]) as first,
    ):
        members = await members_at(first)
    assert [each["taskmanager_id"] for each in members] == ["tm-1", "tm-3", "tm-2"]
    assert [each["url"] for each in members] == ["", third, second]
    for each in members:
        assert each["gates"] == len(STATUS.gates)
        assert each["applications"] == len(STATUS.applications)
        assert each["bytes_in"] == sum(leg.bytes_in for leg in STATUS.traffic)
        assert each["network_pool"]["total_segments"] == STATUS.network_pool.total_segments
        assert [tier["used_bytes"] for tier in each["storage"]] == [
            tier.used_bytes for tier in STATUS.storage
        ]
        assert each["copies"]["short"] == STATUS.copies.short
        assert each["warnings"]
        assert each["reason"] == ""


async def test_a_member_that_is_configured_twice_or_is_this_one_is_one_row():
    async with port_of(named("tm-2")) as second:
        again = second.replace("127.0.0.1", "localhost")
        async with (
            port_of(named("tm-1")) as same,
            port_of(named("tm-1"), [second, again, same]) as first,
        ):
            members = await members_at(first)
    assert [each["taskmanager_id"] for each in members] == ["tm-1", "tm-2"]


async def test_a_member_proves_itself_with_a_token_of_the_cluster_secret():
    async with (
        port_of(named("tm-2"), secrets=SECRETS) as second,
        port_of(named("tm-3"), secrets=ClusterSecrets([OTHER_SECRET])) as stranger,
        port_of(named("tm-1"), [second, stranger], secrets=SECRETS) as first,
        aiohttp.ClientSession() as client,
    ):
        async with client.get(first + CLUSTER) as refused:
            assert refused.status == 401
        members = await members_at(first, ClusterMembers((), SECRETS).token())
    assert [each["taskmanager_id"] for each in members] == ["tm-1", "tm-2", ""]
    assert "give both the same cluster secret" in members[2]["reason"]


async def never(request):
    await asyncio.Event().wait()


async def elsewhere(request):
    raise web.HTTPFound("http://127.0.0.1:1/")


async def no_status(request):
    return web.json_response({"hello": 1})


async def no_json(request):
    return web.Response(text="<html>")


async def not_found(request):
    raise web.HTTPNotFound


async def too_long(request):
    return web.Response(body=bytes(2000))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (never, "no answer within 0.2 s"),
        (elsewhere, "it answered 302"),
        (no_status, "it does not answer as a TaskManager does"),
        (no_json, "it does not answer as a TaskManager does"),
        (not_found, "it answered 404: is this the HTTP port of a TaskManager?"),
        (too_long, "its status is longer than 1000 bytes"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_a_member_without_a_status_is_a_row_with_the_reason(monkeypatch, answer, reason):
    monkeypatch.setattr(cluster_members, "MAX_ANSWER_BYTES", 1000)
    async with (
        server_of(answer) as other,
        port_of(named("tm-1"), [other], answer_seconds=0.2) as first,
    ):
        _, member = await members_at(first)
    assert member["url"] == other
    assert member["reason"].startswith(reason)


async def test_a_member_that_cannot_be_connected_is_a_row():
    url = f"http://127.0.0.1:{free_ports(1)}"
    async with port_of(named("tm-1"), [url]) as first:
        _, member = await members_at(first)
    assert member["reason"] == "cannot connect: Connection refused"


async def test_requests_share_the_answers():
    asked = 0

    async def counted(request):
        nonlocal asked
        asked += 1
        return web.Response(body=named("tm-2").encode())

    async with (
        server_of(counted) as other,
        port_of(named("tm-1"), [other], shared_seconds=3600) as first,
    ):
        found = await asyncio.gather(*(members_at(first) for _ in range(5)))
    assert asked == 1
    assert [len(each) for each in found] == [2] * 5


async def test_the_token_is_sent_to_no_server_that_a_member_names():
    seen = []

    async def note(request):
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="")

    async with server_of(note) as thief:

        async def redirect(request):
            raise web.HTTPTemporaryRedirect(thief)

        async with (
            server_of(redirect) as other,
            port_of(named("tm-1"), [other], secrets=SECRETS) as first,
        ):
            await members_at(first, ClusterMembers((), SECRETS).token())
    assert not seen


async def test_no_more_than_a_limit_is_asked(monkeypatch):
    monkeypatch.setattr(cluster_members, "MAX_MEMBERS", 2)
    urls = [f"http://127.0.0.1:{free_ports(1)}" for _ in range(5)]
    async with (
        port_of(named("tm-1"), urls) as first,
        aiohttp.ClientSession(first) as client,
        client.get(CLUSTER) as answer,
    ):
        document = await answer.json()
    assert len(document["members"]) == 3
    assert document["not_asked"] == 3


async def test_members_in_a_queue_behind_silent_ones_are_not_asked(monkeypatch):
    monkeypatch.setattr(cluster_members, "ALL_SECONDS", -1.0)
    async with port_of(named("tm-2")) as second, port_of(named("tm-1"), [second]) as first:
        _, member = await members_at(first)
    assert member["reason"].startswith("not asked")


@pytest.mark.parametrize(
    ("settings", "urls"),
    [
        ({}, ()),
        (
            {"cluster": {"taskmanagers": ("a:7337", "b:7337", "b:7339", "[::1]:7337")}},
            ("http://a:7338", "http://b:7338", "http://[::1]:7338"),
        ),
        ({"cluster": {"taskmanagers": ("a:7337",)}, "http": {"http_port": 0}}, ()),
        ({"cluster": {"taskmanagers": ("dns:tm.example", "a:7337")}}, ("http://a:7338",)),
        (
            {
                "cluster": {"taskmanagers": ("a:7337", "b:7337", "a:7340")},
                "transport": {"advertised_host": "a", "advertised_port": 7340},
            },
            ("http://a:7338", "http://b:7338"),
        ),
        (
            {
                "cluster": {"taskmanagers": ("a:7337", "b:7337")},
                "transport": {"advertised_host": "a"},
            },
            ("http://b:7338",),
        ),
        (
            {
                "cluster": {"taskmanagers": ("a:7337",)},
                "http": {"cluster_urls": ("https://p/tm-1/", "https://p/tm-1")},
            },
            ("https://p/tm-1",),
        ),
    ],
)
def test_a_configuration_names_members(settings, urls):
    assert ClusterMembers.of(TaskManagerConfig(**settings), None).urls() == urls


WATCHED = (
    WatchedMemberStatus("tm-1", "10.0.0.1:7337", "advertised:7337", 8001),
    WatchedMemberStatus("tm-2", "a:7337", "a:7337", 8002, presence="away"),
    WatchedMemberStatus("tm-3", "10.0.0.3:7337", "tm-3:7337", 0),
    WatchedMemberStatus(watched_at="10.0.0.4:7337", http_port=8004),
)


def test_members_are_asked_where_they_have_proved_themselves():
    settings: dict[str, Any] = {"cluster": {"taskmanagers": ("dns:tm.example", "a:7337", "b:7337")}}
    members = ClusterMembers.of(TaskManagerConfig(**settings), None)
    assert members.urls(WATCHED) == ("http://a:8002", "http://b:7338", "http://10.0.0.1:8001")
    settings |= {"http": {"cluster_urls": ("https://p",)}}
    assert ClusterMembers.of(TaskManagerConfig(**settings), None).urls(WATCHED) == ("https://p",)


async def test_a_member_that_others_report_is_a_row_with_its_node_and_zone():
    location = structs.replace(STATUS.cluster, node="node-2", zone="zone-2", members=())
    async with port_of(structs.replace(named("tm-2"), cluster=location)) as second:
        address = Address.parse(second.removeprefix("http://"))
        watched = WatchedMemberStatus("tm-2", f"{address.host}:7337", "", address.port)
        own = structs.replace(STATUS.cluster, members=(watched,))
        async with port_of(structs.replace(named("tm-1"), cluster=own), derived={}) as first:
            members = await members_at(first)
    assert [each["taskmanager_id"] for each in members] == ["tm-1", "tm-2"]
    assert [(each["node"], each["zone"]) for each in members] == [
        ("node-1", "zone-a"),
        ("node-2", "zone-2"),
    ]
