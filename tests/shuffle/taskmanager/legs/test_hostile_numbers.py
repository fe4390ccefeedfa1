"""Impossible numbers: credit, backlog, channels, events, greetings. Other connections go on."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from sluice.protocol import messages as m
from sluice.protocol.codec import encode
from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import MAX_CREDIT
from tests.support.bad_input import asked, beside_a_good_client, check_the_other_channel, gate_to
from tests.support.fuzz_streams import SEGMENT_SIZE_BYTES, frame
from tests.support.fuzz_target import sent, target
from tests.support.mini_cluster import mini_cluster
from tests.support.raw_client import RawClient, acknowledged

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

PEER = {"role": m.ROLE_PEER, "application_id": "", "segment_size_bytes": SEGMENT_SIZE_BYTES}
CONSUMER = {"role": m.ROLE_CONSUMER}


def control(*fields: object) -> bytes:
    """Encode a frame of any fields."""
    packed: bytes = msgpack.packb(fields)
    return len(packed).to_bytes(4) + bytes(4) + packed


async def greet(client: RawClient, greeting: dict) -> m.HelloAck:
    return acknowledged(await client.greet(**greeting))


@pytest.mark.parametrize("greeting", [PEER, CONSUMER], ids=["peer", "consumer"])
@pytest.mark.parametrize("credit", [-1, 0, 2**32, 2**64 - 1, -(2**63), True, 1.5, None], ids=repr)
async def test_malformed_credit_closes_its_connection(tmp_path, greeting, credit):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, greeting)
        bad.send_bytes(control(5, 1, credit))
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.MALFORMED_MESSAGE
        assert "AddCredit.credit" in error.message


@pytest.mark.parametrize("greeting", [PEER, CONSUMER], ids=["peer", "consumer"])
async def test_credit_for_an_unknown_channel_is_counted_and_dropped(tmp_path, greeting):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, greeting)
        bad.send_message(m.AddCredit(2**32 - 1, MAX_CREDIT))
        bad.send_message(m.Ping(1))
        assert await bad.receive() == (m.Pong(1), b"")
        assert cluster[0].counters.late_messages == {"AddCredit": 1}


@pytest.mark.parametrize("credit", [MAX_CREDIT + 1, 2**32 - 1])
async def test_too_much_initial_credit_closes_the_connection(tmp_path, credit):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, PEER)
        bad.send_message(m.PartitionRequest(1, "app", 1, [1], 0, 1, credit))
        error = await bad.until_refused()
        assert error is not None
        assert (error.code, error.limit) == (ErrorCode.CREDIT_OVERFLOW, str(MAX_CREDIT))


async def test_a_channel_number_used_twice_closes_the_connection_of_a_peer(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        await greet(bad, PEER)
        for _ in range(2):
            bad.send_message(m.PartitionRequest(7, "app", 1, [9], 0, 1, 1))
        error = await bad.until_refused()
        assert error is not None
        assert (error.code, error.value) == (ErrorCode.CHANNEL_IN_USE, "7")


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
    """Four MiB of arrays; tests/protocol/test_unpacking.py shows their cost."""
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
        pool = made.environment.network_pool.statistics()
        assert pool.total_segments - pool.free_segments <= most
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
