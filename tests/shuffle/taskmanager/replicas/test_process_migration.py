"""Real processes that move their map outputs: by command, by signal, and killed partway."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, run
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from sluice.transport.address import Address

pytestmark = pytest.mark.slow  # all of it together

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

DATA = [random.Random(n).randbytes(n * 40_000 + 7) for n in range(12)]


async def write(address: Address) -> None:
    writer = await producer(address)
    for attempt, data in enumerate(DATA):
        await write_map_output(writer, 1, attempt, [[data, b""], [b"second", data]])
    await writer.close()


async def readable(address: Address, count: int = len(DATA)) -> set[int]:
    """Return which of the first map outputs a TaskManager serves; all of them must be right."""
    reader = await consumer(address)
    found: set[int] = set()
    for attempt, data in enumerate(DATA[:count]):
        try:
            content = await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
        except SluiceError as error:
            if error.code not in (ErrorCode.PARTITION_MOVED, ErrorCode.PARTITION_NOT_FOUND):
                raise
        else:
            assert content == [data + b"second" + data]
            found.add(attempt)
    await reader.close()
    return found


@one_loop
async def test_drain_migrate_moves_all_and_undrain_reverts_it(pair):
    for number in range(2):
        pair.start(number)
    first = pair.daemons[0]
    await write(pair.addresses[0])
    drained = await asyncio.to_thread(run, [str(SLUICE), "drain", "--migrate", first.control_url])
    assert (drained.returncode, drained.stdout) == (
        0,
        "drained: 12 map outputs have moved, nothing is written or read\n",
    )
    assert await readable(pair.addresses[0]) == set()
    assert await readable(pair.addresses[1]) == set(range(12))
    shown = await asyncio.to_thread(run, [str(SLUICE), "status", first.url])
    assert "Copies and moves" in shown.stdout
    await asyncio.to_thread(run, [str(SLUICE), "undrain", first.control_url])
    assert await readable(pair.addresses[0]) == set(range(12))


@one_loop
async def test_drain_migrate_reports_map_outputs_that_stay(pair):
    pair.start(0)
    await write(pair.addresses[0])
    command = [str(SLUICE), "drain", "--migrate", pair.daemons[0].control_url]
    drained = await asyncio.to_thread(run, command)
    assert drained.returncode == 1
    assert drained.stdout == ""
    (line,) = drained.stderr.splitlines()
    assert "0 map outputs have moved, and 12 stay" in line
    assert "no other TaskManager is known" in line
    assert await readable(pair.addresses[0]) == set(range(12))


@one_loop
async def test_drain_migrate_in_the_settings_moves_at_a_signal(pair):
    pair.start(0, drain_migrate="true")
    pair.start(1)
    await write(pair.addresses[0])
    assert await asyncio.to_thread(pair.daemons[0].end, signal.SIGTERM) == 0
    assert await readable(pair.addresses[1]) == set(range(12))


@one_loop
@pytest.mark.parametrize("killed", [0, 1], ids=["source", "target"])
async def test_a_kill_during_a_move_loses_nothing(pair, killed):
    for number in range(2):
        pair.start(number)
    await write(pair.addresses[0])
    command = [str(SLUICE), "drain", "--migrate", pair.daemons[0].control_url]
    draining = asyncio.ensure_future(asyncio.to_thread(run, command))
    await until_one_has_moved(pair.addresses[1])
    await asyncio.to_thread(pair.kill, killed)
    await draining
    await asyncio.to_thread(pair.start, killed)
    # Whatever had moved is there, and the rest is where it was.
    at_both = await readable(pair.addresses[0]) | await readable(pair.addresses[1])
    assert at_both == set(range(12))


async def until_one_has_moved(address: Address) -> None:
    """Wait for the first map output."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while 0 not in await readable(address, 1):
            pass
