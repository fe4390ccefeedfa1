"""Several data processes as one TaskManager: real processes, killed as crashes do."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cli.http_client import fetch_json
from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.process import output
from sluice.shuffle.taskmanager.process.control import Request
from sluice.shuffle.taskmanager.processes.supervisor import Supervisor
from sluice.shuffle.taskmanager.status.status import InvalidStatus
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, Daemon, arguments, look_until, run, sluice
from tests.support.free_ports import free_ports
from tests.support.wire_clients import consumer, open_gate, producer, read_gate, write_map_output

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["uvloop"])]

DATA = [b"a" * 70_000, b"b" * 10]
SERVICE = "sluice.shuffle.taskmanager.process.service"
MORE_THAN_A_MESSAGE = b"a" * 3_000_000


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path, processes=2) as started:
        yield started


async def write(daemon, process, attempt, shuffle_id=1):
    writer = await producer(daemon.address_of(process))
    await write_map_output(writer, shuffle_id, attempt, [DATA])
    await writer.close()


async def read(daemon, through, attempts, shuffle_id=1):
    """Read one map attempt of each process through one of them."""
    acks = []
    for process in attempts:
        client = await consumer(daemon.address_of(process))
        acks.append(client.ack)
        await client.close()
    reader = await consumer(daemon.address_of(through))
    sources = [(ack, [attempt]) for ack, attempt in zip(acks, attempts.values(), strict=True)]
    found = await read_gate(reader, shuffle_id, sources, 0, 2)
    await reader.close()
    return found


async def begin_to_read(daemon):
    """Write more than a message holds to process 1, and read one message of it."""
    writer = await producer(daemon.address_of(1))
    await write_map_output(writer, 1, 1, [[MORE_THAN_A_MESSAGE]])
    await writer.close()
    reader = await consumer(daemon.address_of(1))
    gate = open_gate(reader, 1, [(reader.ack, [1])], 0, 1, credit=1)
    await gate.read_one(give_credit=0)
    return reader, gate


async def read_rest(gate):
    """Read to the end with one message: the TaskManager may have ended when another one comes."""
    gate.add_credit(0, 200)
    while gate.open:
        await gate.read_one(give_credit=0)
    assert bytes(gate.content[0]) == MORE_THAN_A_MESSAGE


def metrics_page(daemon):
    with urllib.request.urlopen(daemon.metrics_url, timeout=TIMEOUT_SECONDS) as answer:
        return answer.read().decode()


def gone(pid):
    """Return whether a process has ended; one that nobody has waited for counts, too."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_two_processes_are_one_taskmanager(daemon):
    status = daemon.status()
    assert [each.state for each in status.processes] == ["ready", "ready"]
    assert status.address == str(daemon.address_of(0))
    assert status.taskmanager_id == status.processes[0].taskmanager_id
    assert len({each.taskmanager_id for each in status.processes}) == 2
    assert [tier.capacity_bytes for tier in status.storage] == 2 * [2 * 1024 * 1024, None]
    for process in range(2):
        client = await consumer(daemon.address_of(process))
        assert (client.ack.process, client.ack.processes) == (process, 2)
        assert client.ack.data_port == daemon.address_of(process).port
        await client.close()
        await write(daemon, process, attempt=process)

    for through in range(2):
        assert await read(daemon, through, {0: 0, 1: 1}) == [b"".join(DATA)] * 2
    status = daemon.status()
    (shuffle,) = status.partitions
    assert shuffle.committed_map_outputs == 2
    assert status.counters.map_outputs_committed == 2
    inspected = sluice("inspect", "app/1", "--url", daemon.url, "--json")
    outputs = json.loads(inspected)["shuffle"]["outputs"]
    assert [each["map_attempt_id"] for each in outputs] == [0, 1]
    page = metrics_page(daemon)
    assert 'sluice_map_outputs_finished_total{outcome="committed"} 2.0' in page
    assert 'sluice_process_up{process="1"} 1.0' in page


async def test_waits_of_all_processes_are_one_list(daemon):
    readers = [await consumer(daemon.address_of(process)) for process in range(2)]
    for reader in readers:
        open_gate(reader, 1, [(reader.ack, [77])], 0, 1)

    def waiting(status):
        return {each.taskmanager_id for each in status.waits if each.waiter.kind == "gate"}

    status = daemon.wait_until(lambda status: len(waiting(status)) == 2, TIMEOUT_SECONDS)
    assert waiting(status) == {each.taskmanager_id for each in status.processes}
    seconds = [each.seconds for each in status.waits]
    assert seconds == sorted(seconds, reverse=True)
    for reader in readers:
        await reader.close()
    daemon.wait_until(lambda status: not status.waits, TIMEOUT_SECONDS)


async def test_a_killed_process_comes_back_alone_with_its_outputs(daemon):
    await write(daemon, 0, attempt=10)
    await write(daemon, 1, attempt=11)
    before = daemon.status()
    os.kill(before.processes[1].pid, signal.SIGKILL)
    down = daemon.wait_until(lambda status: status.processes[1].state == "ended", TIMEOUT_SECONDS)
    assert down.not_ready_because is None, "clients use the other one"
    assert down.counters.map_outputs_committed == 2, "a total that falls is taken for a restart"
    await write(daemon, 0, attempt=12)

    after = daemon.wait_until(
        lambda now: now.processes[1].restarts and now.processes[1].state == "ready",
        TIMEOUT_SECONDS,
    )
    assert after.processes[1].taskmanager_id == before.processes[1].taskmanager_id
    assert after.processes[0].pid == before.processes[0].pid
    assert after.processes[0].restarts == 0
    assert await read(daemon, 0, {0: 10, 1: 11}) == [b"".join(DATA)] * 2
    assert "data process 1 has ended, its exit code was -9" in daemon.log


async def test_a_killed_supervisor_takes_the_processes_with_it(daemon):
    await write(daemon, 1, attempt=11)
    pids = [each.pid for each in daemon.status().processes]
    daemon.kill()
    look_until(lambda: all(map(gone, pids)), lambda ended: ended, TIMEOUT_SECONDS)
    daemon.start()
    assert await read(daemon, 0, {1: 11}) == [b"".join(DATA)]


async def test_a_restarted_process_drains_with_the_others(daemon):
    daemon.drain()
    status = daemon.status()
    assert status.state == "draining"
    assert [each.state for each in status.processes] == ["draining", "draining"]
    os.kill(status.processes[0].pid, signal.SIGKILL)
    daemon.wait_until(
        lambda now: now.processes[0].restarts and now.processes[0].state == "draining",
        TIMEOUT_SECONDS,
    )
    for process in range(2):
        with pytest.raises(RemoteError) as refused:
            await producer(daemon.address_of(process))
        assert refused.value.code == ErrorCode.SHUTTING_DOWN
    daemon.undrain()
    assert daemon.status().not_ready_because is None
    await write(daemon, 1, attempt=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_all_in_order(daemon, number):
    pids = [each.pid for each in daemon.status().processes]
    assert daemon.end(number) == 0
    assert all(map(gone, pids))
    assert daemon.log.count("has stopped") == 3
    assert "Traceback" not in daemon.log


async def test_a_hangup_signal_reaches_all(tmp_path):
    file = tmp_path / "sluice.toml"
    file.write_text("[quotas]\nquota_map_outputs = 2\n", encoding="utf-8")
    with Daemon(tmp_path, processes=2, config=file) as daemon:
        await write(daemon, 1, attempt=1)
        with pytest.raises(RemoteError, match="map_outputs"):
            await write(daemon, 1, attempt=2)
        file.write_text("[quotas]\nquota_map_outputs = 4\n", encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log(f"process 1: {SERVICE}: the quotas are")
        await write(daemon, 1, attempt=2)


async def test_changed_quotas_are_shared_by_all_until_a_hangup_signal(daemon):
    await write(daemon, 1, attempt=1)
    body = {"quota_map_outputs": 2}  # one of each process
    shown = fetch_json(daemon.control_url, "/api/v1/quotas", "PUT", body=body)
    assert isinstance(shown, dict)
    assert shown["quota_map_outputs"] == 2
    with pytest.raises(RemoteError, match="map_outputs"):
        await write(daemon, 1, attempt=2)
    fetch_json(daemon.control_url, "/api/v1/log-level", "PUT", body={"level": "error"})
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log(f"process 1: {SERVICE}: the quotas are")
    await write(daemon, 1, attempt=2)


async def test_a_change_while_a_process_starts_reaches_it_when_it_is_ready(monkeypatch):
    monkeypatch.setattr(output, "change", lambda *_: None)  # of this process
    supervisor: Any = Supervisor(TaskManagerConfig(), 2, ["unused"])
    told: list[Request] = []
    before = supervisor.config.model_dump_json()
    starting = SimpleNamespace(configured=before, tell=told.append)
    supervisor._on_ready(starting)
    assert told == []
    await supervisor.change({"log_level": "warning"})
    supervisor._on_ready(starting)
    assert told == [Request("change", config=supervisor.config.model_dump_json())]
    assert json.loads(told[0].config)["log_level"] == "warning"


async def test_a_process_that_cannot_start_ends_all(tmp_path):
    port = free_ports(2)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        done = run(arguments(tmp_path, processes=2, data_port=port))
    assert done.returncode == 1
    assert f"127.0.0.1:{port + 2}" in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("sluice: Data process 1 could not start")
    assert "Traceback" not in done.stderr


async def test_outputs_of_more_processes_are_served_after_a_start_with_fewer(daemon):
    await write(daemon, 1, attempt=11)
    daemon.restart(processes=1)
    assert len(daemon.status().processes) == 2
    assert await read(daemon, 0, {1: 11}) == [b"".join(DATA)]


async def test_a_silent_process_is_shown_and_the_others_go_on(daemon):
    pid = daemon.status().processes[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        silent = daemon.wait_until(
            lambda status: status.processes[1].state == "silent", TIMEOUT_SECONDS
        )
        assert silent.not_ready_because is None
        assert 'sluice_process_up{process="1"} 0.0' in metrics_page(daemon)
        await write(daemon, 0, attempt=1)
        for method, path, body in [
            ("PUT", "/api/v1/log-level", {"level": "debug"}),
            ("GET", "/api/v1/shuffles/app/1", None),
        ]:
            with pytest.raises(InvalidStatus, match="data process 1 has not answered"):
                fetch_json(daemon.control_url, path, method, body=body)
    finally:
        os.kill(pid, signal.SIGCONT)
    daemon.wait_until(lambda status: status.processes[1].state == "ready", TIMEOUT_SECONDS)


async def test_a_service_manager_may_stop_all_processes_itself(daemon):
    """The signal of the supervisor must not be a second one, which ends a process at once."""
    reader, gate = await begin_to_read(daemon)
    for each in daemon.status().processes:
        os.kill(each.pid, signal.SIGTERM)
    daemon.wait_for_log("process 1: sluice.shuffle.taskmanager.taskmanager: TaskManager")
    daemon.terminate()
    daemon.wait_until(lambda status: status.state == "draining", TIMEOUT_SECONDS)
    await read_rest(gate)
    await reader.until_lost()
    assert daemon.process.wait(TIMEOUT_SECONDS) == 0


async def test_a_move_waits_for_a_process_that_is_away(tmp_path):
    """Its outputs would be lost with the host, if the drain said that all have moved."""
    with (
        Daemon(tmp_path / "b", "127.0.0.2") as other,
        Daemon(tmp_path / "a", processes=2, taskmanagers=other.endpoint) as daemon,
    ):
        await write(daemon, 0, attempt=10)
        await write(daemon, 1, attempt=11)
        os.kill(daemon.status().processes[1].pid, signal.SIGKILL)
        daemon.drain(migrate=True)
        status = daemon.status()
        assert (status.copies.moved, status.copies.staying) == (2, 0), status.copies
        (shuffle,) = other.status().partitions
        assert shuffle.committed_map_outputs == 2
        os.kill(status.processes[1].pid, signal.SIGKILL)
        daemon.wait_until(
            lambda now: now.processes[1].restarts == 2 and now.copies.moved == 2, TIMEOUT_SECONDS
        )


async def test_a_process_that_comes_back_has_the_configuration_of_the_others(tmp_path):
    file = tmp_path / "sluice.toml"
    file.write_text("[memory]\nnetwork_segments = 64\n", encoding="utf-8")
    with Daemon(tmp_path, processes=2, network_segments=None, config=file) as daemon:
        file.write_text("[memory]\nnetwork_segments = many\n", encoding="utf-8")
        os.kill(daemon.status().processes[1].pid, signal.SIGKILL)
        daemon.wait_until(
            lambda now: now.processes[1].restarts and now.processes[1].state == "ready",
            TIMEOUT_SECONDS,
        )
        assert daemon.status().network_pool.total_segments == 2 * 64
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("the configuration stays as it is")

        seen = len(daemon.lines)
        file.write_text(
            "[memory]\nnetwork_segments = 128\n[quotas]\nquota_map_outputs = 2\n", encoding="utf-8"
        )
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log(f"process 1: {SERVICE}: the quotas are", seen)
        os.kill(daemon.status().processes[1].pid, signal.SIGKILL)
        daemon.wait_until(
            lambda now: now.processes[1].restarts == 2 and now.processes[1].state == "ready",
            TIMEOUT_SECONDS,
        )
        assert daemon.status().network_pool.total_segments == 2 * 64, "that needs a restart of all"
        await write(daemon, 1, attempt=1)
        with pytest.raises(RemoteError, match="map_outputs"):
            await write(daemon, 1, attempt=2)


async def test_an_undrain_does_not_end_a_stop(daemon):
    reader, gate = await begin_to_read(daemon)
    daemon.terminate()
    daemon.wait_for_log("SIGTERM received")
    daemon.wait_until(lambda status: status.state == "draining", TIMEOUT_SECONDS)
    assert run([str(SLUICE), "undrain", daemon.control_url]).returncode == 1
    assert daemon.status().state == "draining"
    await read_rest(gate)
    await reader.until_lost()
    assert daemon.process.wait(TIMEOUT_SECONDS) == 0


async def test_a_hanging_process_ends_with_its_supervisor(daemon):
    pid = daemon.status().processes[1].pid
    os.kill(pid, signal.SIGSTOP)
    daemon.kill()
    look_until(lambda: gone(pid), lambda ended: ended, TIMEOUT_SECONDS)


async def test_only_a_supervisor_starts_a_data_process(tmp_path):
    for place in ("abc", "2/2:0", "0/2:0"):
        done = run([*arguments(tmp_path), f"--data-process={place}"])
        assert done.returncode == 2
        assert "only a supervisor may set --data-process" in done.stderr
        assert "Traceback" not in done.stderr
