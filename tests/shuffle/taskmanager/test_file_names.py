"""Directories and sockets whose names are not UTF-8."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.schema import AttachRegionArea, RegionAreaAttached
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.support.mini_cluster import mini_cluster, taskmanager_config

if TYPE_CHECKING:
    from pathlib import Path

NAME = os.fsdecode(b"caf\xe9-\xff")
SHOWN = "caf\\udce9-\\udcff"
PAGES = ("metrics", "metrics/applications", "healthz", "readyz", "api/v1/status")


def fetch(url: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as answer:
        return answer.status, answer.read()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_every_page_shows_such_names_as_escapes(tmp_path: Path) -> None:
    config = taskmanager_config(
        tmp_path,
        data_directories=(tmp_path / NAME,),
        memory_directory=tmp_path / f"memory-{NAME}",
        socket_path=tmp_path / f"{NAME}.sock",
    )
    async with TaskManager.embedded(config) as taskmanager:
        url = f"http://127.0.0.1:{taskmanager.http_port}"
        found = {page: await asyncio.to_thread(fetch, f"{url}/{page}") for page in PAGES}
    assert {page: code for page, (code, _) in found.items()} == dict.fromkeys(PAGES, 200)
    assert SHOWN.replace("\\", "\\\\") in found["metrics"][1].decode()
    status: Any = json.loads(found["api/v1/status"][1])
    assert [tier["directory"] for tier in status["storage"]] == [
        str(tmp_path / f"memory-{SHOWN}"),
        str(tmp_path / SHOWN),
    ]
    assert status["socket_path"] == str(tmp_path / f"{SHOWN}.sock")


async def test_a_producer_hears_that_there_are_no_region_areas(tmp_path: Path) -> None:
    """The protocol cannot name them: the answer could not even be encoded."""
    async with mini_cluster(tmp_path, 1, memory_directory=tmp_path / NAME) as cluster:
        client = await cluster.producer(0)
        client.send(AttachRegionArea("", 1 << 20))
        assert await client.expect(RegionAreaAttached) == RegionAreaAttached("", "", 0)
