"""Names of local pools: pools of a TaskManager differ in name or application."""

from __future__ import annotations

from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    PARTITION_PIPELINED_BOUNDED,
    BeginRegion,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionOpened,
)
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.support.mini_cluster import DISK_ONLY, eventually, taskmanager_config
from tests.support.wire_clients import producer

BOUNDED = (PARTITION_PIPELINED_BOUNDED, CONSUME_WHEN_REGISTERED)


async def test_pools_of_equal_map_attempts_differ_by_shuffle_and_application(tmp_path):
    taskmanager = TaskManager(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY))
    await taskmanager.start()
    clients = [await producer(taskmanager.environment.address, name) for name in ("a", "b")]
    for client in clients:
        for shuffle in (1, 2):
            stored, pipelined = shuffle, 10 + shuffle
            client.send(OpenPartition(stored, shuffle, 7, 1))
            client.send(BeginRegion(stored, 0, 0, [3], 0))
            client.send(OpenPipelinedPartition(pipelined, 10 + shuffle, 7, 1, *BOUNDED))
            await client.expect(PartitionOpened)
            await client.expect(PartitionOpened)
    await eventually(lambda: len(taskmanager.status().pools) == 8)
    assert {(each.name, each.application_id) for each in taskmanager.status().pools} == {
        (name, application)
        for application in ("a", "b")
        for shuffle in (1, 2)
        for name in (
            f"map output 7 of shuffle {shuffle}",
            f"pipelined partition 7 of shuffle {10 + shuffle}",
        )
    }
    for client in clients:
        await client.close()
    await taskmanager.stop()


async def test_pools_of_embedded_tasks_name_their_application(tmp_path):
    taskmanager = TaskManager(taskmanager_config(tmp_path))
    await taskmanager.start()
    for name in ("a", "b"):
        client = taskmanager.client(name)
        await client.open_result_partition(1, 7, 1).__aenter__()
        blocking = ResultPartitionType.BLOCKING
        await client.open_result_partition(2, 7, 1, partition_type=blocking).__aenter__()
    assert {each.name for each in taskmanager.status().pools} == {
        f"{kind} of {application}"
        for application in ("a", "b")
        for kind in ("pipelined partition 7 of shuffle 1", "map output 7 of shuffle 2")
    }
    await taskmanager.stop()
