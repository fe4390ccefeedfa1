"""A TaskManager that drains: it finishes what it has and takes nothing new."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    FinishPartition,
    OpenPartition,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    RegionSecured,
    ResumePartition,
    SecureRegion,
)
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.support.api_clients import give_back
from tests.support.daemon import SLUICE, Daemon, run
from tests.support.mini_cluster import mini_cluster
from tests.support.peers import until
from tests.support.wire_clients import open_gate, producer, read_gate, write_region

pytestmark = pytest.mark.slow  # all of it together

DATA = b"d" * 20_000


async def test_a_draining_taskmanager_finishes_what_it_has(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 5, [[DATA]])
        writer = await cluster.producer(0)
        writer.send(OpenPartition(0, 1, 7, 1))
        await writer.expect(PartitionOpened)
        reader = await cluster.consumer(0)
        gate = open_gate(reader, 1, [(reader.ack, [5])], 0, 1, credit=1)
        cluster[0].drain()
        idle = asyncio.ensure_future(cluster[0].wait_idle())
        # What is begun goes on; nothing new on a connection that is there.
        await write_region(writer, 0, 0, [DATA])
        writer.send(OpenPartition(1, 1, 8, 1))
        with pytest.raises(RemoteError) as refused:
            await writer.expect(PartitionOpened)
        assert (refused.value.code, refused.value.retryable) == (ErrorCode.SHUTTING_DOWN, True)
        writer.send(FinishPartition(0, len(DATA), 1))
        await writer.expect(PartitionFinished)
        assert not idle.done()  # somebody reads
        await gate.read_all()
        await gate.close()
        await asyncio.wait_for(idle, 20)
        # No new producer; readers are served on, also of what came at the end.
        with pytest.raises(RemoteError) as refused_hello:
            await cluster.producer(0)
        assert "draining" in str(refused_hello.value)
        assert refused_hello.value.code is ErrorCode.SHUTTING_DOWN
        assert refused_hello.value.retryable
        await until(lambda: cluster[0].listener.outcomes.refused == {"draining": 1})
        late = await cluster.consumer(0)
        assert await read_gate(late, 1, [(late.ack, [5, 7])], 0, 1) == [DATA + DATA]


async def test_a_draining_taskmanager_lets_begun_map_outputs_come_back(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await cluster.producer(0)
        writer.send(OpenPartition(0, 1, 7, 1))
        await write_region(writer, 0, 0, [DATA])
        writer.send(SecureRegion(0, 0))
        await writer.expect(RegionSecured)
        cluster[0].drain()
        writer.vanish()
        await writer.until_lost()
        while not cluster[0].resumable.parked:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
        back = await cluster.producer(0)
        back.send(OpenPartition(1, 1, 8, 1))
        with pytest.raises(RemoteError):
            await back.expect(PartitionOpened)
        back.send(ResumePartition(0, 1, 7, 1))
        await back.expect(PartitionResumed)
        back.send(FinishPartition(0, len(DATA), 1))
        await back.expect(PartitionFinished)


class SlowMove:
    """Moves nothing, and takes its time to end when it is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, taskmanager: TaskManager) -> None:
        self.begun, self.cancelled, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(taskmanager.environment, "migrate", self._migrate)

    async def _migrate(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            await self.may_end.wait()


async def test_one_that_takes_work_again_answers_those_who_wait_for_its_move(monkeypatch):
    async with TaskManager.embedded() as taskmanager:
        move = SlowMove(monkeypatch, taskmanager)
        move.may_end.set()
        draining = asyncio.ensure_future(taskmanager.drain(migrate=True))
        await move.begun.wait()
        await taskmanager.undrain()
        await asyncio.wait_for(draining, 20)
        assert taskmanager.state == "ready"


async def test_one_that_is_told_to_stop_while_it_is_to_take_work_again_stops(monkeypatch):
    async with TaskManager.embedded() as taskmanager:
        move = SlowMove(monkeypatch, taskmanager)
        draining = asyncio.ensure_future(taskmanager.drain(migrate=True))
        await move.begun.wait()
        undraining = asyncio.ensure_future(taskmanager.undrain())
        await move.cancelled.wait()
        stopping = asyncio.ensure_future(taskmanager.drain(to_stop=True))
        await asyncio.sleep(0)
        move.may_end.set()
        await asyncio.gather(draining, undraining, stopping)
        assert taskmanager.state == "draining"
        assert taskmanager.environment.is_draining


async def test_receivers_are_asked_again_when_the_last_reader_has_ended(monkeypatch):
    async with TaskManager.embedded() as taskmanager:
        environment = taskmanager.environment
        moves: list[bool] = []

        async def migrate() -> None:
            moves.append(environment.is_busy)

        monkeypatch.setattr(environment, "migrate", migrate)
        async with taskmanager.client("app") as client, asyncio.timeout(20):
            async with client.open_result_partition(1, 7, 1) as partition:
                await partition.emit_buffer(DATA[:100], 0)
            draining = asyncio.ensure_future(taskmanager.drain(migrate=True))
            while not moves:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0)
            async with client.open_gate([partition.location], 0) as gate:
                while (taken := await gate.next_buffer_or_event()) is not None:
                    give_back(taken.buffer)
            await draining
        assert moves == [True, False]


async def test_a_taskmanager_without_its_lock_stays_drained():
    async with TaskManager.embedded() as taskmanager:
        taskmanager._unlocked("/data: its lock was removed")
        await taskmanager.undrain()
        assert taskmanager.state == "draining"
        assert taskmanager.environment.is_draining


async def test_sluice_drain_and_the_signal_wait_for_what_is_under_way(tmp_path):
    with Daemon(tmp_path) as daemon:
        writer = await producer(daemon.address)
        writer.send(OpenPartition(0, 1, 7, 1))
        await writer.expect(PartitionOpened)
        command = [str(SLUICE), "drain", daemon.control_url]
        busy = await asyncio.to_thread(run, [*command, "--wait", "0.2"])
        assert busy.returncode == 1
        assert "transfers are still under way after 0.2 s" in busy.stderr
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            await asyncio.to_thread(urllib.request.urlopen, f"{daemon.url}/readyz", timeout=20)
        not_ready.value.close()
        with pytest.raises(SluiceError):
            await producer(daemon.address)
        ending = asyncio.ensure_future(asyncio.to_thread(daemon.end))
        await write_region(writer, 0, 0, [DATA])
        writer.send(FinishPartition(0, len(DATA), 1))
        await writer.expect(PartitionFinished)
        assert await asyncio.wait_for(ending, 25) == 0


def test_an_idle_taskmanager_is_drained_at_once(tmp_path):
    with Daemon(tmp_path) as daemon:
        drained = run([str(SLUICE), "drain", daemon.control_url])
        assert (drained.returncode, drained.stdout) == (0, "drained: nothing is written or read\n")
        asked = urllib.request.Request(f"{daemon.url}/api/v1/drain", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=20)
        assert refused.value.code == 403
        refused.value.close()


async def test_a_drained_taskmanager_takes_new_work_again(tmp_path):
    with Daemon(tmp_path, drain_timeout_seconds=20) as daemon:
        address = daemon.address
        for command in ("drain", "undrain", "undrain"):
            done = await asyncio.to_thread(run, [str(SLUICE), command, daemon.control_url])
            assert done.returncode == 0, done.stderr
        assert done.stdout == "the TaskManager accepts new map outputs\n"
        answer = await asyncio.to_thread(urllib.request.urlopen, f"{daemon.url}/readyz", timeout=20)
        answer.close()
        writer = await producer(address)
        writer.send(OpenPartition(0, 1, 1, 1))
        await writer.expect(PartitionOpened)
        # One that is to stop does not come back.
        await asyncio.to_thread(daemon.wait_for_log, "takes new work again")
        daemon.terminate()
        await asyncio.to_thread(daemon.wait_for_log, " drains")
        late = await asyncio.to_thread(run, [str(SLUICE), "undrain", daemon.control_url])
        assert late.returncode == 1
        assert "its state is draining" in late.stderr
        await write_region(writer, 0, 0, [DATA])
        writer.send(FinishPartition(0, len(DATA), 1))
        await writer.expect(PartitionFinished)
        assert await asyncio.to_thread(daemon.process.wait, 25) == 0
