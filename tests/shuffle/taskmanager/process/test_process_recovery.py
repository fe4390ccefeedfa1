"""Real processes: killed and restarted, stopped in a hurry, started with what cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import random
import urllib.request
from pathlib import Path

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import BeginRegion, OpenPartition
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, Daemon, arguments, run
from tests.support.wire_clients import consumer as connect_consumer
from tests.support.wire_clients import open_gate, producer, read_gate, write_map_output

pytestmark = pytest.mark.slow  # all of it together

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

LOOK_AGAIN_SECONDS = 0.02

DATA = [random.Random(n).randbytes(n * 100_000 + 7) for n in range(4)]


@one_loop
async def test_committed_data_survives_a_kill(daemons, tmp_path):
    """It is adopted under the same id and served byte by byte; uncommitted data is gone."""
    first = daemons(tmp_path)
    writer = await producer(first.address)
    for attempt, data in enumerate(DATA):
        await write_map_output(writer, 1, attempt, [[data, b""], [b"second", data]])
    writer.send(OpenPartition(9, 1, 99, 1))
    writer.send(BeginRegion(9, 0, 0, [1000], 0))
    first.kill()
    await writer.until_lost()

    second = daemons(tmp_path)
    assert f"{len(DATA)} map outputs adopted" in second.log
    reader = await connect_consumer(second.address)
    assert reader.ack.taskmanager_id == writer.ack.taskmanager_id
    for attempt, data in enumerate(DATA):
        got = await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
        assert got == [data + b"second" + data]
    again = await producer(second.address)
    await write_map_output(again, 1, 99, [[b"now it is"]])
    assert await read_gate(reader, 1, [(reader.ack, [99])], 0, 1) == [b"now it is"]
    await again.close()
    await reader.close()
    assert second.end() == 0


async def until_not_writable(daemon: Daemon) -> None:
    """Wait until the daemon says that a consumer takes no more; nobody announces it."""

    def seen() -> bool:
        with urllib.request.urlopen(f"{daemon.url}/api/v1/status", timeout=TIMEOUT_SECONDS) as page:
            connections = json.load(page)["connections"]
        return any(each["leg"] == "consumer" and not each["writable"] for each in connections)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await asyncio.to_thread(seen):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_SECONDS)  # a status page cannot be waited for


@one_loop
@pytest.mark.parametrize("times", [1, 2])
async def test_the_ladder_with_a_client_that_does_not_read(daemons, tmp_path, times):
    """SIGTERM ends it within its deadlines; a second one at once, with another exit code."""
    # In the second case only the second signal can end it.
    daemon = daemons(
        tmp_path, drain_timeout_seconds=1, close_timeout_seconds=2 if times == 1 else 1000
    )
    writer = await producer(daemon.address)
    data = random.Random(1).randbytes(1 << 20)
    attempts = range(12)
    for attempt in attempts:
        await write_map_output(writer, 1, attempt, [[data]])
    stuck = await connect_consumer(daemon.address)
    stuck.stop_reading()
    open_gate(stuck, 1, [(stuck.ack, list(attempts))], 0, 1, credit=100_000)
    # While the kernel has room the daemon could flush all it has and close in order.
    await until_not_writable(daemon)
    for _ in range(times):
        daemon.terminate()
        # The first signal is handled; draining is over once the daemon closes its connections.
        await writer.until_lost()
    code = await asyncio.to_thread(daemon.process.wait, TIMEOUT_SECONDS)
    assert code == (0 if times == 1 else 1)
    stuck.resume_reading()
    await stuck.until_lost()
    daemon.end()
    assert ("a second signal ends the process at once" in daemon.log) is (times == 2)
    assert "Traceback" not in daemon.log


@one_loop
async def test_plain_asyncio_serves_too(daemons, tmp_path):
    daemon = daemons(tmp_path, event_loop="asyncio")
    writer = await producer(daemon.address)
    await write_map_output(writer, 1, 1, [[DATA[3]]])
    reader = await connect_consumer(daemon.address)
    assert await read_gate(reader, 1, [(reader.ack, [1])], 0, 1) == [DATA[3]]
    await writer.close()
    await reader.close()
    assert daemon.end() == 0


@one_loop
async def test_a_full_data_directory_is_a_typed_error_and_the_daemon_goes_on(daemons, tmp_path):
    """The disk may hold a page: what does not fit in memory is refused by name."""
    daemon = daemons(
        tmp_path,
        disk_quota_bytes="4 KiB",
        quota_disk_tier_bytes="none",
        memory_tier_bytes="64 KiB",
    )
    writer = await producer(daemon.address)
    with pytest.raises(RemoteError) as caught:
        await write_map_output(writer, 1, 1, [[DATA[3]]])
    assert caught.value.code is ErrorCode.STORAGE_FULL
    assert caught.value.value == str(len(DATA[3]))
    assert "free disk space" in str(caught.value)
    await write_map_output(writer, 1, 2, [[b"fits"]], partition=1)
    reader = await connect_consumer(daemon.address)
    assert await read_gate(reader, 1, [(reader.ack, [2])], 0, 1) == [b"fits"]
    await writer.close()
    await reader.close()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@one_loop
async def test_memory_does_not_grow_with_what_passes_through(daemons, tmp_path):
    """200 map outputs of 512 KiB through a tier of 4 MiB, written, read and released."""
    daemon = daemons(tmp_path)
    writer = await producer(daemon.address)
    reader = await connect_consumer(daemon.address)
    part = random.Random(1).randbytes(128 * 1024)
    resident = []
    for attempt in range(200):
        await write_map_output(writer, 1, attempt, [[part, part], [part, part]])
        if attempt % 20 == 19:
            wanted = list(range(attempt - 19, attempt + 1))
            (content,) = await read_gate(reader, 1, [(reader.ack, wanted)], 0, 2, credit=16)
            assert len(content) == 20 * 4 * len(part)
            resident.append(resident_bytes(daemon.pid))
    await writer.close()
    await reader.close()
    # The tier, 64 segments of the pool and the interpreter are there after the first rounds.
    assert resident[-1] - resident[2] < 8 * 1024 * 1024
    assert daemon.end() == 0


# ---- what cannot be started -------------------------------------------------------------------


def refused(command: list[str], code: int) -> list[str]:
    done = run(command)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_an_unreadable_configuration_is_one_line(tmp_path):
    (line,) = refused([str(SLUICE), "taskmanager", "--config", str(tmp_path / "none.toml")], 2)
    assert "none.toml cannot be read" in line


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("network_segments", "3", ["network_segments = 3", "too small a pool", "at least"]),
        ("segment_size_bytes", "12 apples", ["segment_size_bytes", "12 apples"]),
        ("segment_size_bytes", "16 MiB", ["segment_size_bytes", "at most 1 MiB"]),
        ("data_port", "70000", ["data_port", "70000"]),
        ("application_expiry_seconds", "0", ["application_expiry_seconds", "more than 0"]),
        ("event_loop", "trio", ["event_loop", "uvloop", "asyncio"]),
    ],
)
def test_a_wrong_setting_is_one_line_with_value_and_limit(tmp_path, key, value, parts):
    (line,) = refused(arguments(tmp_path, **{key: value}), 2)
    assert line.startswith("sluice: configuration: ")
    for part in parts:
        assert part in line


def test_unknown_keys_are_all_named_with_a_suggestion(tmp_path):
    file = tmp_path / "sluice.toml"
    file.write_text("[transport]\ndata_prot = 1\n[memroy]\nx = 1\n")
    lines = refused([str(SLUICE), "taskmanager", "--config", str(file)], 2)
    assert len(lines) == 2
    assert "did you mean data_port?" in lines[0]
    assert "unknown table [memroy]" in lines[1]
