"""Metrics of working TaskManagers: which side waits for the other."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import EVENT, TaskEvent
from sluice.shuffle.taskmanager.status import event_loop_lag
from sluice.shuffle.taskmanager.store import shuffle_store
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.shuffle.taskmanager.metrics.rig import families_of, samples, values
from tests.support.daemon import TIMEOUT_SECONDS, Daemon
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, taskmanager_config
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.wire_clients import consumer, open_gate, producer, write_map_output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


class Two:
    """Two TaskManagers; counters that ever go down fail the test."""

    def __init__(self, taskmanagers: list[TaskManager]) -> None:
        self.taskmanagers = taskmanagers
        self.clients: list[Client] = []
        self._before: list[dict[str, float]] = [{}, {}]

    def metrics(self, index: int) -> dict[str, float]:
        now = values(self.taskmanagers[index].status())
        before, self._before[index] = self._before[index], now
        for name, value in before.items():
            assert "_total" not in name or now[name] >= value, name
        return now

    async def producer(self, index: int) -> Client:
        self.clients.append(await producer(self.taskmanagers[index].environment.address))
        return self.clients[-1]

    async def consumer(self, index: int) -> Client:
        self.clients.append(await consumer(self.taskmanagers[index].environment.address))
        return self.clients[-1]

    async def grows(self, index: int, series: str) -> None:
        """Wait until a number is larger than it is now."""
        before = self.metrics(index)[series]
        await eventually(lambda: self.metrics(index)[series] > before, series)

    async def until(self, index: int, series: str, value: float) -> None:
        await self.shows(index, {series: value})

    async def shows(self, index: int, expected: Mapping[str, float]) -> None:
        """Wait until one look at the metrics has all these numbers."""

        def differ() -> dict[str, float | None]:
            now = self.metrics(index)
            return {name: now.get(name) for name in expected if now.get(name) != expected[name]}

        try:
            await eventually(lambda: not differ())
        except AssertionError:
            raise AssertionError(f"{differ()}, expected {expected}") from None


@contextlib.asynccontextmanager
async def two_taskmanagers(directory: Path, **settings: object) -> AsyncIterator[Two]:
    taskmanagers: list[TaskManager] = []
    for name in ("one", "two"):
        config = taskmanager_config(directory / name, **settings)
        taskmanagers.append(TaskManager(config))
        await taskmanagers[-1].start()
    two = Two(taskmanagers)
    try:
        yield two
        for index in (0, 1):
            two.metrics(index)
        for client in two.clients:
            await client.close()
        for index in (0, 1):
            await two.until(index, "sluice_gates", 0)
            await eventually(lambda i=index: not two.taskmanagers[i].status().connections)  # type: ignore[misc]
            found = two.metrics(index)
            left = [name for name in found if found[name] and name.startswith(NOTHING_LEFT)]
            assert not left
    finally:
        for taskmanager in taskmanagers:
            await taskmanager.stop()


NOTHING_LEFT = (
    "sluice_served_channels{",
    "sluice_served_channel_credit_wait_longest_seconds{",
    "sluice_producer_credit_wait_longest_seconds{",
    "sluice_input_",
    "sluice_output_",
    "sluice_pipelined_partitions{",
    "sluice_producers_without_credit{",
    "sluice_local_pool_lent_segments{",
)
"""Gauges that are zero when all clients have gone."""


async def test_a_reader_that_takes_nothing_is_seen_on_both_sides(tmp_path):
    """The gate is full and back-pressured; where the data is, the channel waits for credit."""
    async with two_taskmanagers(tmp_path) as two:
        source = await two.producer(0)
        data = b"x" * (60 * SEGMENT_SIZE_BYTES)
        await write_map_output(source, 1, 1, [[data]])
        reader = await two.consumer(1)
        gate = open_gate(reader, 1, [(source.ack, [1])], 0, 1, credit=1)
        while not await gate.read_one(give_credit=0):
            pass
        await two.until(0, 'sluice_served_channels{activity="waiting_for_credit",leg="peer"}', 1)
        # All of it at once: until the last buffer of the last credit is there, the gate can be full
        # and the channel can wait, each for a moment.
        await two.shows(
            1,
            {
                'sluice_served_channels{activity="waiting_for_credit",leg="consumer"}': 1,
                "sluice_gates_full": 1,
                'sluice_input_limit_buffers{kind="exclusive"}': 2,
                'sluice_input_used_buffers{kind="exclusive"}': 2,
                'sluice_input_limit_buffers{kind="floating"}': 8,
                'sluice_input_used_buffers{kind="floating"}': 8,
                'sluice_channel_available_credit{kind="remote"}': 0,
                'sluice_local_pool_lent_segments{kind="gate"}': 8,
                'sluice_connections{flow_control="credit",leg="peer out",role="peer"}': 1,
            },
        )
        for series in (
            'sluice_served_channel_wait_seconds_total{leg="peer",wait="credit"}',
            'sluice_serving_seconds_total{leg="peer",state="back_pressured"}',
        ):
            await two.grows(0, series)
        await two.grows(0, 'sluice_served_channel_credit_wait_longest_seconds{leg="peer"}')
        await two.grows(1, 'sluice_served_channel_credit_wait_longest_seconds{leg="consumer"}')
        await two.grows(1, 'sluice_serving_seconds_total{leg="consumer",state="back_pressured"}')
        found = two.metrics(1)
        assert found['sluice_channel_queued_buffers{kind="remote"}'] > 0
        idle = found['sluice_serving_seconds_total{leg="consumer",state="idle"}']

        gate.add_credit(0, 1)
        await gate.read_all()
        await gate.close()
        found = two.metrics(1)
        assert found['sluice_serving_seconds_total{leg="consumer",state="busy"}'] > 0
        assert found['sluice_serving_seconds_total{leg="consumer",state="idle"}'] >= idle
        assert found["sluice_gates_full"] == 0


async def test_a_reader_of_a_silent_producer_is_idle(tmp_path):
    async with two_taskmanagers(tmp_path) as two:
        writer = await PipelinedWriter.open(await two.producer(0), 1, 1)
        reader = PipelinedReader(await two.consumer(1), [(writer.client.ack, 1)])
        await two.until(0, 'sluice_served_channels{activity="waiting_for_data",leg="peer"}', 1)
        await two.grows(0, 'sluice_served_channel_wait_seconds_total{leg="peer",wait="data"}')
        await two.grows(1, 'sluice_serving_seconds_total{leg="consumer",state="idle"}')
        assert two.metrics(1)['sluice_serving_seconds_total{leg="consumer",state="busy"}'] == 0
        await writer.send(0, b"x")
        await writer.finish()
        await reader.read_all()
        await reader.close()
        assert two.metrics(1)['sluice_serving_seconds_total{leg="consumer",state="busy"}'] > 0
        found = two.metrics(0)
        assert found['sluice_producer_credit_wait_seconds_total{kind="pipelined"}'] == 0
        assert found["sluice_pipelined_partitions_opened_total"] == 1
        assert found['sluice_pipelined_partitions_ended_total{outcome="finished"}'] == 1


async def test_back_pressure_of_a_pipelined_partition_is_seen_while_it_lasts(tmp_path):
    """Output pool full, queue long, producer without credit: its reader is not there yet."""
    async with two_taskmanagers(tmp_path) as two:
        writer = await PipelinedWriter.open(await two.producer(0), 7, 2)
        found = two.metrics(0)
        limit = found["sluice_output_limit_buffers"]
        assert limit == found['sluice_local_pool_limit_segments{kind="pipelined"}'] == 2 * 2 + 8
        assert found["sluice_output_used_buffers"] == 0
        assert found['sluice_producer_available_credit{kind="pipelined"}'] == limit
        full = b"x" * writer.client.ack.segment_size_bytes  # small ones would join one another
        for _ in range(int(limit) - 1):
            await writer.send(0, full)
        await writer.send(1, encode_event(CheckpointBarrier(1, 0, False)), EVENT)
        await two.until(0, 'sluice_events_received_total{type="CheckpointBarrier"}', 1)
        await two.grows(0, 'sluice_producer_credit_wait_seconds_total{kind="pipelined"}')
        found = two.metrics(0)
        assert found["sluice_output_used_buffers"] == limit
        assert found['sluice_producers_without_credit{kind="pipelined"}'] == 1
        assert found['sluice_producer_available_credit{kind="pipelined"}'] == 0
        assert found["sluice_subpartitions"] == 2
        assert found["sluice_subpartition_queued_buffers"] == limit
        assert found["sluice_subpartition_queued_buffers_min"] == 1
        assert found["sluice_subpartition_queued_buffers_max"] == limit - 1
        (shown,) = two.taskmanagers[0].status().pipelined_partitions
        assert (shown.map_attempt_id, shown.state, shown.back_pressured) == (7, "open", True)
        assert shown.back_pressured_seconds > 0

        reader = PipelinedReader(await two.consumer(1), [(writer.client.ack, 7)])
        await reader.read_until(int(limit) - 1)
        reader.client.send(TaskEvent(reader.channel(), 1), b"back")
        await writer.hear(TaskEvent)
        found = two.metrics(0)
        assert found['sluice_backward_messages_received_total{type="TaskEvent"}'] == 1
        assert found['sluice_producers_without_credit{kind="pipelined"}'] == 0
        waited = found['sluice_producer_credit_wait_seconds_total{kind="pipelined"}']
        await writer.finish()
        await two.until(0, 'sluice_pipelined_partitions{state="finished"}', 1)
        (shown,) = two.taskmanagers[0].status().pipelined_partitions
        assert shown.back_pressured_seconds == pytest.approx(waited)
        for each in (reader, PipelinedReader(await two.consumer(1), [(writer.client.ack, 7)], 1)):
            await each.read_all()


async def test_a_producer_that_vanishes_is_counted_and_waits_no_more(tmp_path):
    async with two_taskmanagers(tmp_path) as two:
        client = await two.producer(0)
        writer = await PipelinedWriter.open(client, 1, 1)
        full = b"x" * client.ack.segment_size_bytes
        for _ in range(int(two.metrics(0)["sluice_output_limit_buffers"])):
            await writer.send(0, full)
        await two.until(0, 'sluice_producers_without_credit{kind="pipelined"}', 1)
        client.vanish()
        await client.until_lost()
        await two.until(0, 'sluice_producers_without_credit{kind="pipelined"}', 0)
        found = two.metrics(0)
        assert found['sluice_pipelined_partitions_ended_total{outcome="failed"}'] == 1
        assert found['sluice_producer_credit_wait_seconds_total{kind="pipelined"}'] > 0


async def test_memory_that_is_refused_and_wanted_is_shown(tmp_path):
    async with two_taskmanagers(tmp_path) as two:
        client = await two.producer(1)
        with pytest.raises(RemoteError) as refused:
            await PipelinedWriter.open(client, 1, 64)  # more than there are segments
        assert refused.value.code is ErrorCode.INSUFFICIENT_BUFFERS
        found = two.metrics(1)
        assert found['sluice_network_memory_requests_denied_total{reason="refused"}'] == 1
        assert found["sluice_network_memory_wanted_segments"] == 0
        await PipelinedWriter.open(client, 1, 1)
        assert two.metrics(1)["sluice_network_memory_wanted_segments"] == 2 + 8


async def test_real_traffic_fills_each_histogram(tmp_path, monkeypatch):
    monkeypatch.setattr(event_loop_lag, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(shuffle_store, "read_cached", lambda reads: False)
    async with two_taskmanagers(tmp_path, memory_tier_bytes=0) as two:
        source = await two.producer(0)
        data = b"x" * (60 * SEGMENT_SIZE_BYTES)
        await write_map_output(source, 1, 1, [[data]])
        reader = await two.consumer(1)
        gate = open_gate(reader, 1, [(source.ack, [1])], 0, 1, credit=1)
        while not await gate.read_one(give_credit=0):
            pass
        await two.until(0, 'sluice_served_channels{activity="waiting_for_credit",leg="peer"}', 1)
        gate.add_credit(0, 1)
        await gate.read_all()
        await gate.close()
        writer = await PipelinedWriter.open(source, 2, 1)
        full = b"x" * source.ack.segment_size_bytes
        for _ in range(int(two.metrics(0)["sluice_output_limit_buffers"])):
            await writer.send(0, full)
        await two.until(0, 'sluice_producers_without_credit{kind="pipelined"}', 1)
        pipelined = PipelinedReader(await two.consumer(1), [(source.ack, 2)])
        await pipelined.read_until(1)
        await writer.finish()
        await pipelined.read_all()
        (disk,) = (tier for tier in two.taskmanagers[0].status().storage if tier.tier == "disk")
        read = f'sluice_region_read_seconds_count{{directory="{disk.directory}",tier="disk"}}'
        for index, series in (
            (0, "sluice_commit_seconds_count"),
            (0, read),
            (0, 'sluice_credit_wait_seconds_count{kind="map_output",leg="producer"}'),
            (0, 'sluice_credit_wait_seconds_count{kind="pipelined",leg="producer"}'),
            (0, 'sluice_credit_wait_seconds_count{kind="channel",leg="peer"}'),
            (1, 'sluice_credit_wait_seconds_count{kind="channel",leg="consumer"}'),
            (0, "sluice_partition_request_wait_seconds_count"),
            (1, "sluice_connect_seconds_count"),
            (0, "sluice_event_loop_lag_seconds_count"),
        ):
            await eventually(lambda i=index, s=series: two.metrics(i)[s] > 0, series)  # type: ignore[misc]
        latencies = two.taskmanagers[0].status().latencies
        assert latencies.commit.count == 1
        assert latencies.commit.p50_seconds <= latencies.commit.max_seconds
        assert latencies.commit.max_seconds == latencies.commit.sum_seconds > 0
        assert latencies.partition_request_wait.count == 2


@one_loop
async def test_a_daemon_shows_the_same_series_idle_and_busy(tmp_path):
    """The page of a process, checked by promtool if it is here."""
    with Daemon(tmp_path) as daemon:
        idle = await asyncio.to_thread(scrape, daemon)
        address = daemon.address
        client = await producer(address)
        await write_map_output(client, 1, 1, [[b"stored"]])
        writer = await PipelinedWriter.open(client, 2, 3)
        await writer.send(0, b"x")
        reader = await consumer(address)
        pipelined = PipelinedReader(reader, [(client.ack, 2)])
        await pipelined.read_until(1)
        busy = await asyncio.to_thread(scrape, daemon)
        assert series(busy).keys() == series(idle).keys()
        assert series(busy)['sluice_pipelined_partitions{state="open"}'] == 1
        await asyncio.to_thread(check_with_promtool, busy)
        await client.close()
        await reader.close()


def scrape(daemon: Daemon) -> str:
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        return str(answer.read().decode())


def series(page: str) -> dict[str, float]:
    return samples(families_of(page))


def check_with_promtool(page: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=page.encode(),
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
