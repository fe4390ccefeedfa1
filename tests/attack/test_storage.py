"""Attacks on what is stored, by kills and by failing disks: nothing wrong, nothing undone."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ROLE_DRIVER, OutputsLost
from tests.attack.rig import (
    BOB,
    SHUFFLE,
    application,
    commit,
    enter,
    new_name,
    producer,
    read,
    release_shuffle,
    status,
)
from tests.support.removal import remove_used
from tests.support.wire_clients import write_map_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.attack.rig import Application, AttackedDaemon

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

ATTEMPTS = range(1, 9)


def data_of(attempt: int) -> bytes:
    return b"%04d" % attempt * 1000


async def found(
    daemon: AttackedDaemon, owner: Application, attempts: Sequence[int] = ATTEMPTS
) -> list[int]:
    """Return which of the attempts are there, after a look at their bytes."""
    there = []
    for attempt in attempts:
        try:
            data = await read(daemon.address, owner, [attempt])
        except RemoteError as error:
            assert error.code is ErrorCode.PARTITION_NOT_FOUND  # noqa: PT017
            continue
        assert data == data_of(attempt)
        there.append(attempt)
    return there


async def filled(daemon: AttackedDaemon, owner: Application) -> None:
    for attempt in ATTEMPTS:
        await commit(daemon.address, owner, attempt, data_of(attempt))


def flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 4
    path.write_bytes(damaged)


@one_loop
@pytest.mark.parametrize("tier", ["memory", "disk"])
async def test_a_release_that_was_acknowledged_is_not_undone_by_a_kill(
    start, secret_file, tmp_path, tier
):
    keys = {"cluster_secret_files": secret_file}
    keys |= {} if tier == "memory" else {"memory_tier_bytes": 0}
    for _ in range(3):
        owner = application(BOB, new_name())
        daemon = start(tmp_path, **keys)
        await commit(daemon.address, owner, 1, data_of(1))
        assert await release_shuffle(daemon.address, owner) == len(data_of(1))
        daemon.end(signal.SIGKILL)
        again = start(tmp_path, **keys)
        assert await found(again, owner, [1]) == []
        again.end(signal.SIGKILL)


@one_loop
@pytest.mark.parametrize("damage", ["bit", "cut", "bit of a release", "header"])
async def test_damage_of_a_journal_costs_its_row_and_undoes_no_release(
    start, secret_file, tmp_path, victim, damage
):
    keys = {"cluster_secret_files": secret_file, "memory_tier_bytes": 0, "min_free_bytes": 0}
    daemon = start(tmp_path, **keys)
    released = application(BOB, new_name())
    await filled(daemon, released)
    await release_shuffle(daemon.address, released)
    await filled(daemon, victim)
    daemon.end(signal.SIGKILL)
    (journal,) = (tmp_path / "data").glob("journal-*")
    size = journal.stat().st_size
    if damage == "cut":
        with journal.open("r+b") as file:
            file.truncate(size - 10)
    else:
        release = journal.read_bytes().index(b"\x93\x01")  # msgpack: three fields, the first is 1
        flip(journal, {"bit": size - 300, "bit of a release": release + 5, "header": 20}[damage])
    again = start(tmp_path, **keys)
    assert await found(again, released, ATTEMPTS[:2]) == []
    there = await found(again, victim)
    assert len(there) >= len(ATTEMPTS) - (damage in ("bit", "cut"))
    await commit(again.address, victim, 100, b"goes on")
    assert await read(again.address, victim, [100]) == b"goes on"


@one_loop
async def test_a_directory_that_was_away_brings_nothing_back(start, secret_file, tmp_path, victim):
    first, second = tmp_path / "a", tmp_path / "b"
    keys = {
        "cluster_secret_files": secret_file,
        "memory_tier_bytes": 0,
        "min_free_bytes": 0,
        "data_directories": f"{first}:{second}",
    }
    daemon = start(tmp_path, **keys)
    await filled(daemon, victim)
    daemon.end(signal.SIGKILL)
    first.rename(tmp_path / "away")
    first.touch()
    daemon = start(tmp_path, **keys)
    there = await found(daemon, victim)
    assert there == list(ATTEMPTS)[1::2], "a lost directory costs its own map outputs only"
    await release_shuffle(daemon.address, victim)
    other = application(BOB, new_name())
    await filled(daemon, other)
    daemon.end(signal.SIGKILL)
    first.unlink()
    (tmp_path / "away").rename(first)
    daemon = start(tmp_path, **keys)
    assert await found(daemon, victim, ATTEMPTS[:2]) == []
    assert await found(daemon, other) == list(ATTEMPTS)


@one_loop
async def test_tiny_map_outputs_share_pages(start, secret_file, tmp_path, victim):
    outputs, each = 500, b"ten bytes."
    daemon = start(tmp_path, cluster_secret_files=secret_file, memory_tier_bytes=0)
    client = await producer(daemon.address, victim)
    for attempt in range(outputs):
        await write_map_output(client, SHUFFLE, attempt, [[each]])
    await client.close()
    tiers = json.loads(status(daemon, secret_file, "--json"))["storage"]
    assert sum(tier["used_bytes"] for tier in tiers) < outputs * 100
    assert await read(daemon.address, victim, range(outputs)) == outputs * each


@one_loop
async def test_a_directory_removed_while_running_is_noticed_and_reported(
    start, secret_file, tmp_path, victim
):
    first, second = tmp_path / "a", tmp_path / "b"
    daemon = start(
        tmp_path,
        cluster_secret_files=secret_file,
        memory_tier_bytes=0,
        min_free_bytes=0,
        health_check_seconds=0.1,
        data_directories=f"{first}:{second}",
    )
    await filled(daemon, victim)
    driver = await enter(daemon.address, ROLE_DRIVER, victim.name, victim.driver)
    lost = list(ATTEMPTS)[::2]
    remove_used(first)
    assert await driver.expect(OutputsLost) == OutputsLost(SHUFFLE, lost)
    with pytest.raises(RemoteError) as caught:
        await read(daemon.address, victim, lost[:1])
    assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
    assert caught.value.map_attempt_id == lost[0]
    assert await read(daemon.address, victim, [2]) == data_of(2)
    await driver.close()
    late = await enter(daemon.address, ROLE_DRIVER, victim.name, victim.driver)
    assert await late.expect(OutputsLost) == OutputsLost(SHUFFLE, lost), "a driver that was away"
    await late.close()
    for attempt in lost:
        await commit(daemon.address, victim, attempt, data_of(attempt))
    assert await found(daemon, victim) == list(ATTEMPTS)
    daemon.end(signal.SIGKILL)
    assert await found(
        start(
            tmp_path,
            cluster_secret_files=secret_file,
            memory_tier_bytes=0,
            min_free_bytes=0,
            data_directories=f"{first}:{second}",
        ),
        victim,
    ) == list(ATTEMPTS)
