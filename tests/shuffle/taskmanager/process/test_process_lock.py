"""A directory belongs to one process, also when the file of its lock is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import OpenPartition
from tests.support.daemon import TIMEOUT_SECONDS, Daemon, arguments, run
from tests.support.wire_clients import consumer as connect_consumer
from tests.support.wire_clients import producer, read_gate, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of it together

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
NEVER_SECONDS = 1000
SOON_SECONDS = 0.05
DATA = b"committed" * 100
ATTEMPTS = range(20)


async def write_all(daemon: Daemon) -> None:
    writer = await producer(daemon.address)
    for attempt in ATTEMPTS:
        await write_map_output(writer, 1, attempt, [[DATA]])
    await writer.close()


async def assert_all_are_read(daemon: Daemon) -> None:
    reader = await connect_consumer(daemon.address)
    got = await read_gate(reader, 1, [(reader.ack, list(ATTEMPTS))], 0, 1)
    assert got == [DATA * len(ATTEMPTS)]
    await reader.close()


def locks(directory: Path) -> list[Path]:
    return [directory / "data" / "lock", directory / "memory" / "lock"]


@one_loop
async def test_a_second_start_is_refused_although_the_lock_was_removed(daemons, tmp_path):
    first = daemons(tmp_path, health_check_seconds=NEVER_SECONDS)
    await write_all(first)
    for lock in locks(tmp_path):
        lock.unlink()
    done = run(arguments(tmp_path))
    assert done.returncode == 1
    assert "is in use by another TaskManager" in done.stderr.splitlines()[-1]
    await assert_all_are_read(first)
    assert first.end() == 0
    await assert_all_are_read(daemons(tmp_path))


@one_loop
@pytest.mark.parametrize("number", [0, 1])
async def test_it_ends_when_its_lock_is_removed(daemons, tmp_path, number):
    first = daemons(
        tmp_path, health_check_seconds=SOON_SECONDS, drain_timeout_seconds=NEVER_SECONDS
    )
    await write_all(first)
    writer = await producer(first.address)
    writer.send(OpenPartition(9, 1, 99, 1))  # draining would wait for its end
    locks(tmp_path)[number].unlink()
    assert first.process.wait(TIMEOUT_SECONDS) == 1
    first.end()
    assert "lock was removed, so another TaskManager may take the directory" in first.log
    assert "Exclude the directory from cleaners of temporary files" in first.log
    assert "Traceback" not in first.log
    await writer.until_lost()
    await assert_all_are_read(daemons(tmp_path))
