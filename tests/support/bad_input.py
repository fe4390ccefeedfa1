"""Rigs for bad input: a client beside a good one, and another TaskManager that answers badly."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import msgpack

from sluice.protocol import schema as m
from tests.support.fuzz_streams import REMOTE_ID, SHUFFLE, frame, hello
from tests.support.fuzz_target import Target, sent
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES
from tests.support.peers import turns
from tests.support.raw_client import RawClient, acknowledged
from tests.support.wire_clients import read_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mini_cluster import MiniCluster

DATA = random.Random(3).randbytes(20 * SEGMENT_SIZE_BYTES)


@contextlib.asynccontextmanager
async def beside_a_good_client(cluster: MiniCluster) -> AsyncIterator[RawClient]:
    """Give a raw client; at the end a good client reads and writes as usual."""
    ack = await cluster.write(0, 1, [[DATA]])
    consumer = await cluster.consumer(0)
    bad = await RawClient.connect(cluster[0].address)
    try:
        yield bad
    finally:
        await bad.close()
    assert await read_gate(consumer, 1, [(ack, [1])], 0, 1) == [DATA]
    await cluster.write(0, 2, [[b"more"]])
    assert await read_gate(consumer, 1, [(ack, [2])], 0, 1) == [b"more"]


def gate_to(ack: m.HelloAck, gate: int, *channels: int, attempt: int = 1) -> m.OpenGate:
    return m.OpenGate(
        gate,
        1,
        0,
        1,
        1,
        [
            m.GateChannel(number, ack.taskmanager_id, "127.0.0.1", ack.data_port, [attempt])
            for number in channels
        ],
    )


async def asked(made: Target):
    """Return a consumer with a gate of two channels of another TaskManager, and its connection."""
    client = made.accept()
    channels = [m.GateChannel(n, REMOTE_ID, "127.0.0.1", 1, [n + 1]) for n in range(2)]
    assert await client.feed(
        hello(m.ROLE_CONSUMER) + frame(m.OpenGate(4, SHUFFLE, 0, 1, 2, channels))
    )
    peer = await made.peers.get()
    await turns(10)
    assert [type(said) for said in sent(peer)] == [m.Hello, *[m.PartitionRequest] * 2]
    return client, peer


async def check_the_other_channel(made: Target, client, peer) -> None:
    """Check that channel 1 brings data to the consumer, and that the connection is alive."""
    assert await peer.feed(frame(m.BufferResponse(1, 0, 0, m.DATA), b"for channel 1"))
    assert await peer.feed(frame(m.Ping(5)))
    assert m.Pong(5) in sent(peer)
    await turns(10)
    assert m.BufferResponse(1, 0, 0, m.DATA) in sent(client)


PEER = {"role": m.ROLE_PEER, "application_id": "", "segment_size_bytes": SEGMENT_SIZE_BYTES}
CONSUMER = {"role": m.ROLE_CONSUMER}


def control(*fields: object) -> bytes:
    """Encode a frame of any fields."""
    packed: bytes = msgpack.packb(fields)
    return len(packed).to_bytes(4) + bytes(4) + packed


async def greet(client: RawClient, greeting: dict) -> m.HelloAck:
    return acknowledged(await client.greet(**greeting))
