"""If a TaskManager and a copy of its directories both run, one of the two is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import HelloAck
from sluice.shuffle.taskmanager.cluster.instances import Instances
from tests.support.raises_code import raises_code
from tests.support.wire_clients import consumer as connect_consumer
from tests.support.wire_clients import producer, read_gate, write_map_output

if TYPE_CHECKING:
    from sluice.transport.connection import Connection

FIRST = HelloAck(1, "tm-a", 32768, 0, 1024, "host-a", 7337, "1", 0, 1)
CHANGES = {"advertised_host": "host-b", "instance_id": "2"}
CLONE = replace(FIRST, **CHANGES)


class FakeConnection:
    """Stands for a connection."""

    closing = False


def connected(instances: Instances, ack: HelloAck) -> FakeConnection:
    connection = FakeConnection()
    instances.admit(cast("Connection", connection), ack)
    return connection


def test_a_clone_is_refused_while_the_first_is_connected() -> None:
    instances = Instances("tm-own")
    connections = [connected(instances, FIRST) for _ in range(2)]
    for connection in connections:
        with raises_code(ErrorCode.TASKMANAGER_MISMATCH) as caught:
            connected(instances, CLONE)
        connection.closing = True
    assert str(caught.value).startswith(
        "Two TaskManagers run with the id tm-a (value host-b:7337, limit host-a:7337). "
    )
    connected(instances, CLONE)  # the first one has moved
    with raises_code(ErrorCode.TASKMANAGER_MISMATCH):
        connected(instances, FIRST)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"instance_id": "2"}, id="restarted"),
        pytest.param({"advertised_host": "host-b"}, id="two-addresses"),
        pytest.param({"taskmanager_id": "tm-b", **CHANGES}, id="another-taskmanager"),
    ],
)
def test_an_instance_that_is_not_a_clone_is_admitted(changes: dict[str, str]) -> None:
    instances = Instances("tm-own")
    connected(instances, FIRST)
    connected(instances, replace(FIRST, **changes))


def test_a_clone_of_this_taskmanager_is_refused() -> None:
    instances = Instances(FIRST.taskmanager_id)
    with raises_code(ErrorCode.TASKMANAGER_MISMATCH, "this TaskManager"):
        connected(instances, CLONE)
    connected(instances, replace(CLONE, instance_id=instances.own_instance_id))


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_reader_refuses_a_clone_and_logs_the_reason(daemons, tmp_path) -> None:
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
