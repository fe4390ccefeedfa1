"""The one owner of all network resources: its start, its end, what it adopts, what it shows."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import ROLE_CONSUMER
from sluice.shuffle.taskmanager import wiring as environments
from sluice.shuffle.taskmanager.store import shuffle_store
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig
from sluice.transport.errors import ConnectFailed
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
    network_leftovers,
    taskmanager_config,
)
from tests.support.raises_code import raises_code
from tests.support.wire_clients import (
    Client,
    consumer,
    driver,
    open_gate,
    producer,
    read_gate,
    write_map_output,
)

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig

IMPATIENT = TransportConfig(connect_timeout_seconds=0.1)

both_tiers = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)


def config(directory, **settings) -> TaskManagerConfig:
    return taskmanager_config(directory, **settings)


@both_tiers
async def test_a_restart_adopts_what_was_committed(tmp_path, memory_tier_bytes):
    """The id and the bytes stay the same; uncommitted data is gone."""
    settings = {"memory_tier_bytes": memory_tier_bytes}
    first = await NetworkEnvironment.build(taskmanager_config(tmp_path, **settings))
    client = await producer(first.address)
    await write_map_output(client, 1, 1, [[b"kept" * 5000, b"too"]])
    await first.close()
    await client.until_lost()

    second = await NetworkEnvironment.build(taskmanager_config(tmp_path, **settings))
    assert second.taskmanager_id == client.ack.taskmanager_id
    assert second.counters.map_outputs_adopted == 1
    ((name, connections, expires_in),) = second.applications.snapshot()
    assert (name, connections) == ("app", 0)
    assert expires_in is not None
    reader = await consumer(second.address)
    assert await read_gate(reader, 1, [(reader.ack, [1])], 0, 2) == [b"kept" * 5000 + b"too"]
    await reader.close()
    await second.close()


async def test_a_port_in_use_leaves_nothing_open(tmp_path):
    """The directories can be opened again at once, by one that has a port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with raises_code(ErrorCode.CONFIGURATION, f"Cannot listen on 127.0.0.1:{port}"):
            await NetworkEnvironment.build(taskmanager_config(tmp_path, data_port=port))
    again = await NetworkEnvironment.build(taskmanager_config(tmp_path))
    await again.close()
    await again.close()


async def test_closing_ends_every_connection_and_gives_everything_back(tmp_path):
    """It closes while one gate reads, another waits and a region is half written."""
    async with mini_cluster(tmp_path, check=False) as cluster:
        data = b"x" * (50 * SEGMENT_SIZE_BYTES)
        ack = await cluster.write(0, 1, [[data]])
        clients = [await cluster.consumer(1), await cluster.consumer(0), await cluster.producer(0)]
        gate = open_gate(clients[0], 1, [(ack, [1])], 0, 1, credit=1)
        while not await gate.read_one(give_credit=0):
            pass
        open_gate(clients[1], 1, [(ack, [99])], 0, 1)
        for environment in cluster.environments:
            await environment.close()
        for client in clients:
            assert (await client.until_lost()).code is ErrorCode.CONNECTION_LOST
        for environment in cluster.environments:
            await eventually(lambda e=environment: not network_leftovers(e))  # type: ignore[misc]
            with pytest.raises(ConnectFailed):
                await Client.connect(environment.address, ROLE_CONSUMER, config=IMPATIENT)


async def test_a_unix_socket_serves_like_the_port(tmp_path):
    async with mini_cluster(tmp_path, 1, socket_path=tmp_path / "tm.sock") as cluster:
        ack = await cluster.write(0, 1, [[b"over tcp"]])
        local = await consumer(Address(str(tmp_path / "tm.sock"), 0))
        assert await read_gate(local, 1, [(ack, [1])], 0, 1) == [b"over tcp"]
        await local.close()


async def test_status_shows_what_there_is_and_then_nothing(tmp_path):
    """Every number of the snapshot while it is busy, and all of them back at zero after."""
    one, two = TaskManager(config(tmp_path / "1")), TaskManager(config(tmp_path / "2"))
    await one.start()
    await two.start()
    source = await producer(one.environment.address)
    data = b"x" * (30 * SEGMENT_SIZE_BYTES)
    await write_map_output(source, 1, 1, [[data]])
    reader = await consumer(two.environment.address)
    other = await driver(one.environment.address)
    gate = open_gate(reader, 1, [(source.ack, [1])], 0, 1, credit=1)
    while not await gate.read_one(give_credit=0):
        pass
    await eventually(lambda: two.status().gates[0].channels[0].queued_buffers == 10)

    status = two.status()
    assert status.state == "ready"
    (channel,) = status.gates[0].channels
    assert (channel.channel, channel.kind, channel.available_credit) == (1, "remote", 0)
    assert channel.buffers_in in (10, 11)  # the one read may be part of a group that is still held
    assert status.network_pool.available_segments == 64 - 10
    assert {connection.role for connection in status.connections} == {"consumer", "peer"}
    status = one.status()
    assert status.partitions[0].committed_map_outputs == 1
    assert status.partitions[0].stored_bytes == len(data)
    assert status.applications[0].stored_bytes == len(data)
    assert sorted(c.role for c in status.connections) == ["driver", "peer", "producer"]
    assert status.encode()

    for client in (source, reader, other):
        await client.close()
    await eventually(lambda: not one.status().connections and not two.status().connections)
    status = two.status()
    assert (status.gates, status.pools) == ((), ())
    assert status.network_pool.available_segments == 64
    await two.stop()
    await one.stop()
    await one.stop()
    assert one.state == "stopped"
    await asyncio.sleep(0)


async def test_a_http_port_in_use_leaves_nothing_open(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = config(tmp_path)
        http = settings.http.model_copy(update={"http_port": taken.getsockname()[1]})
        taskmanager = TaskManager(settings.model_copy(update={"http": http}))
        with raises_code(ErrorCode.CONFIGURATION, "HTTP cannot listen"):
            await taskmanager.start()
    again = TaskManager(config(tmp_path))
    await again.start()
    await again.stop()


# Everything that a start makes, in its order.
MADE = [
    "Access.open",
    "NetworkBufferPool",
    "ShuffleStore.open",
    "RegionAreas.open",
    "ResumableOutputs",
    "ResultPartitionManager",
    "TaskEventDispatcher",
    "Applications",
    "PeerConnector",
    "Listener",
    "Drivers",
    "Copies",
    "GateServices",
    "ProducerServices",
    "SegmentPressure",
    "IdleConnections",
]


@pytest.mark.parametrize("failing", MADE)
@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError])
async def test_a_start_that_fails_anywhere_leaves_nothing_locked(
    tmp_path, monkeypatch, failing, error
):
    """The same process can start again, which finds what was committed."""
    name, _, method = failing.partition(".")
    with monkeypatch.context() as broken:

        def fail(*args, **kwargs):
            raise error("in the test")

        owner = getattr(environments, name) if method else environments
        broken.setattr(owner, method or name, fail)
        taskmanager = TaskManager(config(tmp_path))
        with raises_code(ErrorCode.INTERNAL, f"could not start: {error.__name__}: in the test"):
            await taskmanager.start()
        await taskmanager.stop()
    again = await NetworkEnvironment.build(taskmanager_config(tmp_path))
    await again.close()


async def test_a_store_that_fails_behind_its_locks_gives_them_up(tmp_path, monkeypatch):
    with monkeypatch.context() as broken:

        def fail(*args):
            raise RuntimeError("can't start new thread")

        broken.setattr(shuffle_store, "JournalWriter", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            await NetworkEnvironment.build(taskmanager_config(tmp_path))
    again = await NetworkEnvironment.build(taskmanager_config(tmp_path))
    await again.close()


async def test_a_start_cancelled_while_the_storage_opens_closes_it(tmp_path, monkeypatch):
    opening, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    open_store = ShuffleStore.open

    def open_late(*args):
        loop.call_soon_threadsafe(opening.set)
        may_end.wait(10)
        return open_store(*args)

    monkeypatch.setattr(ShuffleStore, "open", open_late)
    starting = asyncio.create_task(NetworkEnvironment.build(taskmanager_config(tmp_path)))
    await opening.wait()
    starting.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    monkeypatch.undo()
    again = await NetworkEnvironment.build(taskmanager_config(tmp_path))
    await again.close()


async def test_a_taskmanager_that_never_started_can_be_stopped(tmp_path):
    taskmanager = TaskManager(taskmanager_config(tmp_path))
    with raises_code(ErrorCode.INTERNAL, "not started. Await start"):
        _ = taskmanager.environment
    await taskmanager.stop()
    assert taskmanager.state == "stopped"


async def test_what_follows_an_error_is_closed_too(tmp_path):
    environment = await NetworkEnvironment.build(taskmanager_config(tmp_path))

    async def fail():
        raise RuntimeError("in the test")

    environment._stack.push_async_callback(fail)
    with pytest.raises(RuntimeError, match="in the test"):
        await environment.close()
    again = await NetworkEnvironment.build(taskmanager_config(tmp_path))
    await again.close()
