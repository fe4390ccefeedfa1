"""Impossible numbers: credit, backlog, channels, events, greetings. Other connections go on."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import encode
from tests.support.bad_input import (
    CONSUMER,
    asked,
    beside_a_good_client,
    check_the_other_channel,
    control,
    gate_to,
    greet,
)
from tests.support.fuzz_streams import frame
from tests.support.fuzz_target import sent, target
from tests.support.mini_cluster import mini_cluster

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


async def test_a_hello_with_everything_wrong(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        most = 2**32 - 1
        wrong = m.Hello("é" * 256, most, 0, most, "", b"\xff" * 900, most, most, most, "\0" * 256)
        bad.send_message(wrong)
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.MALFORMED_MESSAGE
        assert error.limit == "sluice"


async def test_a_gate_of_nested_arrays_is_refused(tmp_path):
    """Four MiB of arrays; tests/protocol/test_schema.py shows their cost."""
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        ack = await greet(bad, CONSUMER)
        gate = encode(gate_to(ack, 0, 1))[8:]
        nested = gate[: gate.index(b"\x91\x95")] + b"\xdd\x00\x3f\x00\x00" + b"\x90" * 0x3F0000
        bad.send_bytes(len(nested).to_bytes(4) + bytes(4) + nested)
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.MALFORMED_MESSAGE
        assert "OpenGate.channels" in error.message


# ---- what a TaskManager that was asked may answer ------------------------------------------------


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@one_loop
@pytest.mark.parametrize("backlog", [2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("with_data", [True, False])
async def test_a_backlog_of_billions_takes_no_more_than_the_gate_may_have(
    tmp_path, backlog, with_data
):
    async with target(tmp_path) as made:
        client, peer = await asked(made)
        if with_data:
            assert await peer.feed(frame(m.BufferResponse(0, 0, backlog, m.DATA), b"x"))
        else:
            assert await peer.feed(frame(m.BacklogAnnouncement(0, backlog)))
        await _turns()
        memory = made.environment.gate_services.config
        most = 2 * memory.exclusive_buffers_per_channel + memory.floating_buffers_per_gate
        pool = made.environment.network_pool
        assert pool.total_segments - pool.available_segments <= most
        await check_the_other_channel(made, client, peer)
        await made.check()


@one_loop
@pytest.mark.parametrize("data_type", [4, 255, 2**32 - 1, -1])
async def test_an_unknown_data_type_closes_the_connection(tmp_path, data_type):
    async with target(tmp_path) as made:
        client, peer = await asked(made)
        await peer.feed(control(4, 0, 0, 0, data_type))
        error = sent(peer)[-1]
        assert isinstance(error, m.ErrorResponse)
        assert error.code == ErrorCode.MALFORMED_MESSAGE
        assert "BufferResponse.data_type" in error.message
        await _turns()
        await _turns()
        failed = {said.channel for said in sent(client) if isinstance(said, m.ErrorResponse)}
        assert failed == {0, 1}
        await made.check()
