"""Copies in the remote tier of TaskManagers in processes of their own that are killed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import OutputsRemote, ReplicateToRemote
from tests.support.remote import directory_place, s3_place
from tests.support.s3 import CREDENTIALS, SERVER, s3_proxy, s3_server
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output
from tests.support.wire_clients import driver as connect_driver

if TYPE_CHECKING:
    from sluice.transport.address import Address

pytestmark = [
    pytest.mark.slow,  # all of it together
    pytest.mark.asyncio(loop_factories=["uvloop"]),
]

PATIENT = {"partition_request_timeout_seconds": 20}
"""A reader waits for the remote tier."""

needs_server = pytest.mark.skipif(not SERVER.exists(), reason="make s3-server")

DATA = [random.Random(n).randbytes(n * 40_000 + 7) for n in range(8)]


async def write(address: Address, *, synchronous: bool) -> None:
    writer = await producer(address)
    for attempt, data in enumerate(DATA):
        replicate = ReplicateToRemote(0, synchronous)
        regions = [[data, b""], [b"second", data]]
        await write_map_output(writer, 1, attempt, regions, replicate=replicate)
    await writer.close()


async def check(address: Address) -> None:
    """Read everything from one TaskManager."""
    reader = await consumer(address)
    for attempt, data in enumerate(DATA):
        found = await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
        assert found == [data + b"second" + data]
    await reader.close()


async def until_remote(address: Address) -> None:
    """Wait until a TaskManager has notified its driver of all copies."""
    found: set[int] = set()
    driver = await connect_driver(address)
    while found < set(range(len(DATA))):
        message = await driver.expect(OutputsRemote)
        assert isinstance(message, OutputsRemote)
        found.update(message.map_attempt_ids)
    await driver.close()


async def test_the_next_taskmanager_serves_what_a_killed_one_wrote(pair, tmp_path):
    settings = directory_place(tmp_path).settings | PATIENT
    pair.start(0, **settings)
    await write(pair.addresses[0], synchronous=True)
    pair.kill(0)
    await asyncio.to_thread(pair.start, 1, **settings)
    await check(pair.addresses[1])


async def test_a_killed_taskmanager_makes_its_copies_after_its_start(pair, tmp_path):
    settings = directory_place(tmp_path).settings | PATIENT
    pair.start(0, **settings)
    await write(pair.addresses[0], synchronous=False)
    pair.kill(0)
    await asyncio.to_thread(pair.start, 0, **settings)
    await until_remote(pair.addresses[0])
    pair.kill(0)
    await asyncio.to_thread(pair.start, 1, **settings)
    await check(pair.addresses[1])


@needs_server
async def test_a_bucket_that_fails_gets_the_copies_later(pair, tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "s3") as server:
        async with s3_proxy(server) as proxy:
            settings = {**s3_place(server).settings, "remote_endpoint": proxy.endpoint}
            keys = {**settings, **PATIENT, "health_check_seconds": 0.1, "remote_timeout_seconds": 2}
            await asyncio.to_thread(pair.start, 0, **keys)
            failed = asyncio.Event()

            def refuse(method: str, path: str) -> int | None:
                if method in ("PUT", "POST") and "/moved/" in path:
                    failed.set()
                    return 403
                return None

            proxy.rule = refuse
            await write(pair.addresses[0], synchronous=False)
            await failed.wait()
            proxy.rule = lambda method, path: None
            await until_remote(pair.addresses[0])
            pair.kill(0)
            await asyncio.to_thread(pair.start, 1, **keys)
            await check(pair.addresses[1])
            pair.kill(1)
