"""A report goes to the TaskManager that has the data, over a connection that exists."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.protocol.schema import HelloAck, ReportDamage
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.names import SubpartitionRange
from sluice.transport.address import Address
from tests.support.copies import KEY
from tests.support.damage import damage
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.wire_clients import Client, open_gate, read_gate

REGIONS = [[b"left" * 5000, b"right" * 5000]]


def report(client: Client, ack: HelloAck, *map_attempt_ids: int) -> None:
    place = ack.taskmanager_id, ack.advertised_host, ack.data_port
    client.send(ReportDamage(1, 0, 2, *place, list(map_attempt_ids)))


async def test_a_report_is_passed_on_and_the_next_request_gets_the_error(tmp_path):
    async with mini_cluster(tmp_path, 2, peer_idle_timeout_seconds=60) as cluster:
        ack = await cluster.write(0, 7, REGIONS)
        await damage(cluster[0], 7)
        client = await cluster.consumer(1)
        await read_gate(client, 1, [(ack, [7])], 0, 2)
        report(client, ack, 7)
        gate = open_gate(client, 1, [(ack, [7])], 0, 2)
        await gate.read_all(raise_failures=False)
        (error,) = gate.failures.values()
        assert "was damaged in storage" in str(error)
        await gate.close()
        assert dict(cluster[0].partitions.damage.results) == {"damaged": 1}
        assert not cluster[1].partitions.damage.results
        cluster[1].peers.retire()  # the idle connection


@pytest.mark.interpreted
async def test_no_request_overtakes_a_report_on_another_connection(tmp_path, monkeypatch):
    settings: dict[str, Any] = {"connections_per_peer": 2, "peer_idle_timeout_seconds": 60}
    async with mini_cluster(tmp_path, 2, **settings) as cluster:
        ack = await cluster.write(0, 7, REGIONS)
        await damage(cluster[0], 7)
        peers = cluster[1].peers
        address = Address(ack.advertised_host, ack.data_port)
        first = await peers.acquire(address)
        second = await peers.acquire(address)
        assert await peers.acquire(address) is first  # so the gate uses the second
        held_up: list[Any] = []
        monkeypatch.setattr(first.connection, "send", held_up.append)
        client = await cluster.consumer(1)
        report(client, ack, 7)
        gate = open_gate(client, 1, [(ack, [7])], 0, 2)
        await gate.read_all(raise_failures=False)
        (error,) = gate.failures.values()
        assert "was damaged in storage" in str(error)
        await gate.close()
        assert held_up
        monkeypatch.undo()
        for each in (first, first, second):
            peers.release(address, each)
        assert dict(cluster[0].partitions.damage.results) == {"damaged": 1}
        peers.retire()


@pytest.mark.parametrize("case", ["old", "another id", "no connection"])
async def test_a_report_that_cannot_be_passed_on_is_dropped(tmp_path, case):
    idle_seconds = 0 if case == "no connection" else 60
    async with mini_cluster(tmp_path, 2, peer_idle_timeout_seconds=idle_seconds) as cluster:
        ack = await cluster.write(0, 7, REGIONS)
        client = await cluster.consumer(1)
        await read_gate(client, 1, [(ack, [7])], 0, 2)
        if case == "no connection":
            await eventually(lambda: not cluster[1].peers.clients())
        else:
            (peer,) = cluster[1].peers.clients()
            if case == "old":
                peer.features = 0
            else:
                peer.taskmanager_id = "another"
        services = cluster[1].gate_services

        wanted = SubpartitionRange(KEY, 0, 2)
        services.report_damage(wanted, ChannelSource(ack.taskmanager_id, cluster[0].address, [7]))
        if case == "another id":
            peer.taskmanager_id = ack.taskmanager_id
        assert await read_gate(client, 1, [(ack, [7])], 0, 1) == [REGIONS[0][0]]
        assert not cluster[0].partitions.damage.results
        cluster[1].peers.retire()
