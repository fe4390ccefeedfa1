"""A copy of a TaskManager's directories runs beside it: one of the two is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import HelloAck
from sluice.shuffle.taskmanager.cluster.instances import Instances
from sluice.transport.errors import TaskManagerMismatch
from tests.support.wire_clients import consumer as connect_consumer
from tests.support.wire_clients import producer, read_gate, write_map_output

if TYPE_CHECKING:
    from sluice.transport.connection import Connection

FIRST = HelloAck(1, "tm-a", 32768, 0, 1024, "host-a", 7337, "1")
CLONE = replace(FIRST, advertised_host="host-b", instance_id="2")


class FakeConnection:
    """Stands for a connection."""

    closing = False

    def __init__(self) -> None:
        pass


def connected(instances: Instances, ack: HelloAck) -> Connection:
    connection = cast("Connection", FakeConnection())
    instances.admit(connection, ack)
    return connection


def test_a_clone_is_refused_while_the_first_is_connected() -> None:
    instances = Instances("tm-own")
    connections = [connected(instances, FIRST) for _ in range(2)]
    for connection in connections:
        with pytest.raises(TaskManagerMismatch) as caught:
            connected(instances, CLONE)
        instances.lost(connection)
    assert str(caught.value).startswith(
        "Two TaskManagers run with the id tm-a (value host-b:7337, limit host-a:7337). "
    )
    connected(instances, CLONE)  # the first one has moved
    with pytest.raises(TaskManagerMismatch):
        connected(instances, FIRST)


def test_a_closing_connection_no_longer_counts() -> None:
    instances = Instances("tm-own")
    connection = connected(instances, FIRST)
    vars(connection)["closing"] = True
    connected(instances, CLONE)


def test_a_restarted_one_takes_the_place_of_the_one_before() -> None:
    instances = Instances("tm-own")
    connected(instances, FIRST)
    connected(instances, replace(FIRST, instance_id="2"))


def test_a_taskmanager_may_have_two_addresses() -> None:
    instances = Instances("tm-own")
    connected(instances, FIRST)
    connected(instances, replace(FIRST, advertised_host="host-b"))


def test_a_clone_of_the_own_directories_is_refused() -> None:
    instances = Instances(FIRST.taskmanager_id)
    with pytest.raises(TaskManagerMismatch, match="this TaskManager"):
        connected(instances, CLONE)
    connected(instances, replace(CLONE, instance_id=instances.own_instance_id))


def test_a_connection_that_was_refused_may_be_lost() -> None:
    instances = Instances("tm-own")
    connected(instances, FIRST)
    refused = cast("Connection", FakeConnection())
    with pytest.raises(TaskManagerMismatch):
        instances.admit(refused, CLONE)
    instances.lost(refused)
    with pytest.raises(TaskManagerMismatch):
        connected(instances, CLONE)


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_reader_refuses_a_clone_and_both_logs_say_why(daemons, tmp_path) -> None:
    first = daemons(tmp_path / "first")
    shutil.copytree(tmp_path / "first" / "data", tmp_path / "clone" / "data")
    clone, other = daemons(tmp_path / "clone"), daemons(tmp_path / "other")
    assert clone.identity == first.identity
    acks = []
    for number, daemon in enumerate((first, clone)):
        writer = await producer(daemon.address)
        await write_map_output(writer, 1, number, [[b"of %d" % number]])
        acks.append(writer.ack)
        await writer.close()
    reader = await connect_consumer(other.address)
    assert await read_gate(reader, 1, [(acks[0], [0])], 0, 1) == [b"of 0"]
    with pytest.raises(RemoteError) as caught:
        await read_gate(reader, 1, [(acks[0], [0]), (acks[1], [1])], 0, 1)
    assert caught.value.code is ErrorCode.TASKMANAGER_MISMATCH
    assert "Two TaskManagers run with the id" in str(caught.value)
    assert await read_gate(reader, 1, [(acks[0], [0])], 0, 1) == [b"of 0"]
    await reader.close()
    assert clone.end() == 0
    assert f"Two TaskManagers run with the id {clone.identity}" in clone.log
    assert "remove the file taskmanager-id" in clone.log
    assert other.end() == 0
    assert f"Two TaskManagers run with the id {clone.identity}" in other.log
