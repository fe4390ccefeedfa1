"""A TaskManager tells the truth about itself: in its errors, its metrics, and at its start."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    ErrorResponse,
    OpenPartition,
    Pong,
    encode,
)
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    BOB,
    SHUFFLE,
    application,
    commit,
    consumer,
    hello_of,
    producer,
    read,
    release_application,
)
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, arguments, run
from tests.support.wire_clients import write_map_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.attack.rig import AttackedDaemon
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000
LOOK_AGAIN_SECONDS = 0.02
HELLOS = 20
TIER_BYTES = 4 * 1024 * 1024


async def metrics(daemon: AttackedDaemon) -> dict[str, float]:
    """Return the samples of at most one label, as Prometheus writes their names."""

    def fetch() -> str:
        with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())

    found = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        for sample in family.samples:
            labels = "".join(f'{{{name}="{value}"}}' for name, value in sample.labels.items())
            found[sample.name + labels] = sample.value
    return found


async def growth(
    daemon: AttackedDaemon, before: dict[str, float], wanted: Mapping[str, float]
) -> dict[str, float]:
    """Wait until some metrics have grown as expected; return by how much all have grown."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            now = await metrics(daemon)
            grown = {name: value - before.get(name, 0) for name, value in now.items()}
            if all(grown.get(name, 0) >= value for name, value in wanted.items()):
                return grown
            await asyncio.sleep(LOOK_AGAIN_SECONDS)  # a snapshot is as old as it is


def refused(reason: str) -> str:
    return f'sluice_connections_refused_total{{reason="{reason}"}}'


def handshakes(result: str) -> str:
    return f'sluice_connections_finished_handshake_total{{result="{result}"}}'


def errors(code: ErrorCode) -> str:
    return f'sluice_errors_total{{code="{code.name}"}}'


# ---- a TaskManager that drains ---------------------------------------------------------------


@one_loop
async def test_a_producer_at_a_draining_taskmanager_is_told_so(
    start, secret_file, tmp_path, victim
):
    """In one line of the log each, without a traceback; readers are served on."""
    daemon = start(tmp_path, cluster_secret_files=secret_file)
    await commit(daemon.address, victim, 1, RECORDS)
    before = await metrics(daemon)
    drain = [str(SLUICE), "drain", daemon.url, "--secret-file", str(secret_file)]
    drained = await asyncio.to_thread(run, drain)
    assert drained.returncode == 0, drained.stderr
    for _ in range(HELLOS):
        client = await Hostile.at(daemon)
        answer = await client.prove(hello_of(ROLE_PRODUCER, victim.name), victim.task)
        assert isinstance(answer, ErrorResponse)
        assert (answer.code, answer.retryable) == (ErrorCode.SHUTTING_DOWN, True)
        assert "Write to another TaskManager" in answer.message
        await client.ended(ErrorCode.SHUTTING_DOWN)
    wanted = {refused("draining"): HELLOS, errors(ErrorCode.SHUTTING_DOWN): HELLOS}
    grown = await growth(daemon, before, wanted)
    assert {name: grown[name] for name in wanted} == wanted
    assert grown.get(errors(ErrorCode.INTERNAL), 0) == 0
    assert await read(daemon.address, victim, [1]) == RECORDS
    assert await readiness(daemon) == (503, "state is draining")
    assert "Traceback" not in daemon.log


async def readiness(daemon: AttackedDaemon) -> tuple[int, str | None]:
    """Return what /readyz answers: the status, and the reason why not."""

    def ask() -> tuple[int, str | None]:
        try:
            with urllib.request.urlopen(f"{daemon.url}/readyz", timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, json.load(answer)["reason"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)["reason"]

    return await asyncio.to_thread(ask)


# ---- handshakes that fail, frames that are refused -------------------------------------------


async def garbage(daemon: AttackedDaemon, said: bytes) -> None:
    client = await Hostile.at(daemon)
    client.send_bytes(said)
    await client.until_refused()
    await client.close()


async def hang_up(daemon: AttackedDaemon, said: bytes) -> None:
    client = await Hostile.at(daemon)
    client.send_bytes(said)
    await client.close()


@one_loop
async def test_every_failed_handshake_and_refused_frame_is_counted(cluster, victim):
    """By its reason and its code, never as accepted; an innocent application notices nothing."""
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    writer = await producer(daemon.address, victim)  # its handshake is counted before
    reader = await consumer(daemon.address, victim)
    before = await metrics(daemon)

    for _ in range(3):
        await garbage(daemon, b"GET / HTTP/1.1\r\n\r\n")
    await garbage(daemon, encode(Pong(1)))
    await garbage(
        daemon, encode(hello_of(ROLE_PRODUCER, victim.name, version_min=8, version_max=9))
    )
    for said in (b"", b"\0\0", encode(hello_of(ROLE_CONSUMER, victim.name))[:-1]):
        await hang_up(daemon, said)
    await garbage(daemon, encode(hello_of(ROLE_CONSUMER, victim.name)))
    forger = await Hostile.at(daemon)
    answer = await forger.prove(
        hello_of(ROLE_CONSUMER, victim.name), victim.task, proof=lambda proof: proof[::-1]
    )
    assert isinstance(answer, ErrorResponse)
    # Frames of a connection that has proven who it is.
    reader.send(OpenPartition(0, SHUFFLE, 3, 1))
    assert (await reader.until_lost()).code is ErrorCode.UNEXPECTED_MESSAGE

    wanted = {
        refused("bad frame"): 4,
        refused("version"): 1,
        refused("no credential"): 1,
        refused("wrong proof"): 1,
        errors(ErrorCode.FRAME_TOO_LARGE): 3,
        errors(ErrorCode.UNEXPECTED_MESSAGE): 2,
        errors(ErrorCode.UNSUPPORTED_VERSION): 1,
        errors(ErrorCode.AUTHENTICATION_REQUIRED): 1,
        errors(ErrorCode.AUTHENTICATION_FAILED): 1,
    }
    grown = await growth(
        daemon, before, wanted | {refused("hung up"): 3, handshakes("refused"): 10}
    )
    assert {name: grown[name] for name in wanted} == wanted
    assert grown[handshakes("accepted")] == 0
    assert grown.get(errors(ErrorCode.INTERNAL), 0) == 0
    assert await readiness(daemon) == (200, None)

    await write_map_output(writer, SHUFFLE, 2, [[RECORDS]])
    await writer.close()
    assert await read(daemon.address, victim, [1, 2]) == RECORDS + RECORDS


# ---- a TaskManager that is full --------------------------------------------------------------


@one_loop
async def test_a_taskmanager_without_room_says_so_until_there_is_some(
    start, secret_file, tmp_path, victim
):
    """One application has filled memory tier and disk; what is stored is served on."""
    daemon = start(
        tmp_path,
        cluster_secret_files=secret_file,
        disk_quota_bytes="4 MiB",
        quota_disk_tier_bytes="none",
        memory_tier_reserve_percent=0,  # else there is room for others
    )
    greedy = application(BOB, "greedy")
    await commit(daemon.address, victim, 1, RECORDS)
    assert await readiness(daemon) == (200, None)
    writer = await producer(daemon.address, greedy)
    with pytest.raises(RemoteError) as full:
        await fill(writer)
    assert (full.value.code, full.value.retryable) == (ErrorCode.STORAGE_FULL, True)

    status, reason = await readiness(daemon)
    assert status == 503
    assert reason is not None
    assert reason.startswith("no storage has room for a region in one piece: memory ")
    assert f"disk {tmp_path / 'data'} has " in reason
    full_metrics = await metrics(daemon)
    assert full_metrics["sluice_taskmanager_takes_work"] == 0
    assert await read(daemon.address, victim, [1]) == RECORDS
    await writer.close()

    assert await release_application(daemon.address, greedy) >= TIER_BYTES
    await growth(daemon, full_metrics, {"sluice_taskmanager_takes_work": 1})
    assert await readiness(daemon) == (200, None)


async def fill(writer: Client) -> None:
    """Commit small map outputs of an application until there is no room, or there must be none."""
    piece = bytes(64 * 1024)
    for attempt in range(2 * TIER_BYTES // len(piece) + 1):
        await write_map_output(writer, SHUFFLE, attempt, [[piece]], partition=attempt)


# ---- settings that cannot work ---------------------------------------------------------------


def test_settings_that_cannot_work_on_this_host_are_refused_in_a_line_each(tmp_path):
    impossible: dict[str, tuple[object, str]] = {
        "network_segments": (1 << 24, "of memory: set at most "),
        "memory_tier_bytes": ("4095 TiB", "raise the size of the tmpfs"),
        "min_free_bytes": ("4095 TiB", "lower min_free_bytes or use a larger disk"),
        "max_connections": (1 << 40, "open files"),
    }
    done = run(arguments(tmp_path, **{key: value for key, (value, _) in impossible.items()}))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == len(impossible), done.stderr
    for line, (key, (_, told)) in zip(lines, impossible.items(), strict=True):
        assert line.startswith(f"sluice: configuration: {key} = ")
        assert told in line
        assert line.endswith(f"[--{key.replace('_', '-')}]")
    assert not list(tmp_path.iterdir())  # nothing was opened
