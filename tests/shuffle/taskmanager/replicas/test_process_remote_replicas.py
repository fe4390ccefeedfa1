"""Copies in the remote tier of TaskManagers in processes of their own that are killed."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.schema import OutputsRemote, ReplicateToRemote
from tests.support.copies import check_outputs, until_told, write_outputs
from tests.support.remote import directory_place, s3_place
from tests.support.s3 import CREDENTIALS, SERVER, s3_proxy, s3_server

pytestmark = [
    pytest.mark.slow,  # all of it together
    pytest.mark.asyncio(loop_factories=["uvloop"]),
]

PATIENT = {"partition_request_timeout_seconds": 20}
"""A reader waits for the remote tier."""

needs_server = pytest.mark.skipif(not SERVER.exists(), reason="make s3-server")


async def test_the_next_taskmanager_serves_what_a_killed_one_wrote(pair, tmp_path):
    settings = directory_place(tmp_path).settings | PATIENT
    pair.start(0, **settings)
    await write_outputs(pair.addresses[0], ReplicateToRemote(0, True))
    pair.kill(0)
    await asyncio.to_thread(pair.start, 1, **settings)
    await check_outputs(pair.addresses[1])


async def test_a_killed_taskmanager_makes_its_copies_after_its_start(pair, tmp_path):
    settings = directory_place(tmp_path).settings | PATIENT
    pair.start(0, **settings)
    await write_outputs(pair.addresses[0], ReplicateToRemote(0, False))
    pair.kill(0)
    await asyncio.to_thread(pair.start, 0, **settings)
    await until_told(pair.addresses[0], OutputsRemote)
    pair.kill(0)
    await asyncio.to_thread(pair.start, 1, **settings)
    await check_outputs(pair.addresses[1])


@needs_server
async def test_a_bucket_that_fails_gets_the_copies_later(pair, tmp_path):
    with s3_server(tmp_path / "s3") as server:
        async with s3_proxy(server) as proxy:
            settings = {**s3_place(server).settings, "remote_endpoint": proxy.endpoint}
            keys = {**settings, **PATIENT, "health_check_seconds": 0.1, "remote_timeout_seconds": 2}
            keys["environment"] = CREDENTIALS
            await asyncio.to_thread(pair.start, 0, **keys)
            failed = asyncio.Event()

            def refuse(method: str, path: str) -> int | None:
                if method in ("PUT", "POST") and "/moved/" in path:
                    failed.set()
                    return 403
                return None

            proxy.rule = refuse
            await write_outputs(pair.addresses[0], ReplicateToRemote(0, False))
            await failed.wait()
            proxy.rule = lambda method, path: None
            await until_told(pair.addresses[0], OutputsRemote)
            pair.kill(0)
            await asyncio.to_thread(pair.start, 1, **keys)
            await check_outputs(pair.addresses[1])
            pair.kill(1)
