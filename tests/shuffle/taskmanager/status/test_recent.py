"""The samples of the last minutes, on a clock that the test moves."""

from __future__ import annotations

import pytest

from sluice.shuffle.taskmanager.status import recent
from sluice.shuffle.taskmanager.status.recent import (
    MAX_SAMPLED,
    SAMPLE_SECONDS,
    SAMPLES,
    RecentHistory,
    RecentSample,
    merged_samples,
)
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.shuffle.taskmanager.status.rig import pairs
from tests.support.mini_cluster import (
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
    taskmanager_config,
)
from tests.support.pipelined_clients import PipelinedWriter
from tests.support.wire_clients import open_gate

PAYLOAD = bytes(SEGMENT_SIZE_BYTES)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(recent, "monotonic", lambda: self.now)

    def next_slot(self, history: RecentHistory, lag_seconds: float = 0.0) -> RecentSample:
        self.now += SAMPLE_SECONDS
        history.measured(lag_seconds)
        return history.samples()[-1]


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


async def test_a_sample_has_what_happened_since_the_one_before(tmp_path, clock):
    async with mini_cluster(tmp_path, 1) as cluster:
        history = RecentHistory(cluster[0])
        ack = await cluster.write(0, 7, [[PAYLOAD]])
        first = clock.next_slot(history, 0.25)
        assert (first.bytes_in, first.bytes_out, first.commits) == (len(PAYLOAD), 0, 1)
        assert first.memory_tier_bytes >= len(PAYLOAD)
        assert first.max_lag_seconds == pytest.approx(0.25)
        assert first.seconds == pytest.approx(SAMPLE_SECONDS)
        client = await cluster.consumer(0)
        gate = open_gate(client, 1, [(ack, [7])], 0, 1)
        await gate.read_all()
        await gate.close()
        second = clock.next_slot(history)
        assert (second.bytes_in, second.bytes_out, second.commits) == (0, len(PAYLOAD), 0)
        assert second.max_lag_seconds == pytest.approx(0.0)
        assert second.slot == first.slot + 1
        assert history.samples()[0].age_seconds == pytest.approx(SAMPLE_SECONDS)


async def test_nothing_is_sampled_within_a_slot(tmp_path, clock):
    async with mini_cluster(tmp_path, 1) as cluster:
        history = RecentHistory(cluster[0])
        for lag_seconds in (0.5, 0.125):
            clock.now += 1
            history.measured(lag_seconds)
        assert history.samples() == ()
        assert clock.next_slot(history).max_lag_seconds == pytest.approx(0.5)


async def test_shares_show_who_waits(tmp_path, clock):
    async with mini_cluster(tmp_path, 1, check=False) as cluster:
        history = RecentHistory(cluster[0])
        ack = await cluster.write(0, 7, [[PAYLOAD * 20]])
        gate = open_gate(await cluster.consumer(0), 1, [(ack, [7])], 0, 1, credit=1)
        await gate.read_one(give_credit=0)
        await eventually(lambda: pairs(cluster) == {("gate", "reader")})
        writer = await PipelinedWriter.open(await cluster.producer(0), 8, 1)
        credit_wait = cluster[0].producer_services.pipelined_credit_wait
        sample = clock.next_slot(history)
        assert (sample.channels, sample.channels_waiting_for_credit) == (1, 1)
        assert sample.credit_wait_share == 1.0
        assert sample.producer_seconds > 0
        assert sample.back_pressured_share == 0.0
        while not credit_wait.count:
            await writer.send(0, PAYLOAD)
            await cluster.consumer(0)  # a round trip
        assert clock.next_slot(history).back_pressured_share > 0


def test_shares_of_nothing_are_zero():
    assert RecentSample().back_pressured_share == 0.0
    assert RecentSample().credit_wait_share == 0.0
    assert RecentSample(producer_seconds=1.0, producer_wait_seconds=1.5).back_pressured_share == 1.0


async def test_the_oldest_samples_are_dropped(tmp_path, clock):
    async with mini_cluster(tmp_path, 1) as cluster:
        history = RecentHistory(cluster[0])
        for _ in range(SAMPLES + 3):
            clock.next_slot(history)
        samples = history.samples()
        assert len(samples) == SAMPLES
        assert [each.slot for each in samples] == list(
            range(samples[-1].slot - SAMPLES + 1, samples[-1].slot + 1)
        )


async def test_a_sample_looks_at_a_bounded_number_of_gates(tmp_path, clock):
    async with mini_cluster(tmp_path, 1, partition_request_timeout_seconds=60) as cluster:
        history = RecentHistory(cluster[0])
        client = await cluster.consumer(0)
        gates = MAX_SAMPLED + 100
        for number in range(0, 2 * gates, 2):
            open_gate(client, number, [(client.ack, [7])], 0, 1, first_number=number)
        await eventually(lambda: cluster[0].partitions.waiting_requests == gates)
        assert clock.next_slot(history).channels == MAX_SAMPLED
        client.vanish()
        await client.until_lost()


async def test_the_status_of_a_taskmanager_has_its_samples(tmp_path, clock):
    async with TaskManager.embedded(taskmanager_config(tmp_path)) as taskmanager:
        assert taskmanager.status().recent == ()
        clock.now += SAMPLE_SECONDS
        taskmanager.event_loop_lag.on_measured(0.5)
        status = taskmanager.status()
        assert [each.max_lag_seconds for each in status.recent] == [0.5]
        assert (status.waits, status.waits_omitted) == ((), 0)
    taskmanager.event_loop_lag.on_measured(1.0)  # nothing is sampled after the end
    assert len(taskmanager.status().recent) == 1


def test_samples_of_several_processes_are_put_in_order():
    late, early = RecentSample(9), RecentSample(7)
    assert merged_samples([late, early]) == (early, late)
    many = [RecentSample(number) for number in range(SAMPLES + 5)]
    assert merged_samples(many[::-1]) == tuple(many[5:])
