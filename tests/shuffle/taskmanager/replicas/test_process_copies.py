"""Copies between real processes that are killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import OutputsHeld, ReplicatePartition
from tests.support.copies import check_outputs, until_told, write_outputs
from tests.support.wire_clients import consumer, open_gate, producer, read_gate, write_map_output

pytestmark = pytest.mark.slow  # all of it together

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


@one_loop
async def test_copies_outlive_both_processes(pair):
    for number in range(2):
        pair.start(number)
    await write_outputs(pair.addresses[0], ReplicatePartition(0, 2, True))
    pair.kill(0)
    await check_outputs(pair.addresses[1])
    pair.kill(1)
    pair.start(1)
    await until_told(pair.addresses[1], OutputsHeld)
    await check_outputs(pair.addresses[1])


@one_loop
async def test_a_holder_killed_during_copies_gets_all_later(pair):
    for number in range(2):
        pair.start(number)
    writing = asyncio.ensure_future(
        write_outputs(pair.addresses[0], ReplicatePartition(0, 2, False))
    )
    await asyncio.to_thread(pair.kill, 1)
    await writing
    await asyncio.to_thread(pair.start, 1)
    await until_told(pair.addresses[1], OutputsHeld)
    pair.kill(0)
    await check_outputs(pair.addresses[1])


@one_loop
async def test_a_killed_origin_makes_its_copies_after_its_start(pair):
    pair.start(0)
    await write_outputs(pair.addresses[0], ReplicatePartition(0, 2, False))
    pair.kill(0)
    pair.start(1)
    pair.start(0)
    await until_told(pair.addresses[1], OutputsHeld)
    pair.kill(0)
    await check_outputs(pair.addresses[1])


@one_loop
@pytest.mark.parametrize("pair", [3], indirect=True)
async def test_holders_copy_for_a_lost_origin_without_a_driver(pair):
    for number in range(3):
        pair.start(number)
    await write_outputs(pair.addresses[0], ReplicatePartition(0, 2, True))
    pair.kill(0)
    for address in pair.addresses[1:]:
        await until_told(address, OutputsHeld)
        await check_outputs(address)


@one_loop
async def test_readers_of_a_silent_taskmanager_fail(pair):
    for number in range(2):
        pair.start(number)
    large = [random.Random(0).randbytes(12_000_000)]  # more than the network memory
    writer = await producer(pair.addresses[0])
    replicate = ReplicatePartition(0, 2, True)
    await write_map_output(writer, 1, 0, [large], replicate=replicate)
    reader = await consumer(pair.addresses[1])
    gate = open_gate(reader, 1, [(writer.ack, [0])], 0, 1)
    while not gate.content[0]:
        await gate.read_one()
    # It stands still, and its connections stay open, as those of a host that is cut off.
    pair.daemons[0].pause()
    with pytest.raises(RemoteError, match="counts as lost") as lost:
        await gate.read_all()
    assert lost.value.code is ErrorCode.CONNECTION_LOST
    await gate.close()
    assert await read_gate(reader, 1, [(reader.ack, [0])], 0, 1) == large
    await reader.close()
