"""Bad input on the data port: a clear error with value and limit, and everybody else unharmed."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import MAX_CONTROL_BYTES, MAX_HANDSHAKE_CONTROL_BYTES
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    AbortPartition,
    AddCredit,
    BeginRegion,
    BufferResponse,
    ErrorResponse,
    FinishPartition,
    HelloAck,
    Message,
    OpenGate,
    OpenPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionRequest,
    Ping,
    RegionData,
    ReleaseShuffle,
    TaskEvent,
    encode,
)
from tests.support.bad_input import DATA, beside_a_good_client
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    mini_cluster,
    storage_leftovers,
    until_clean,
)
from tests.support.raw_client import RawClient, acknowledged
from tests.support.wire_clients import read_gate

both_tiers = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)


GARBAGE = {
    "text of another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.FRAME_TOO_LARGE),
    "zeros": (bytes(64), ErrorCode.MALFORMED_MESSAGE),
    "no msgpack": (b"\0\0\0\4\0\0\0\0\xc1\xc1\xc1\xc1", ErrorCode.MALFORMED_MESSAGE),
    "a control part above the limit": (
        (MAX_HANDSHAKE_CONTROL_BYTES + 1).to_bytes(4) + bytes(4),
        ErrorCode.FRAME_TOO_LARGE,
    ),
    "an unknown type": (b"\0\0\0\2\0\0\0\0\x91\x63", ErrorCode.MALFORMED_MESSAGE),
    "a message before Hello": (encode(Ping(1)), ErrorCode.UNEXPECTED_MESSAGE),
    "an answer instead of a Hello": (
        encode(HelloAck(1, "x", 4096, 0, 0, "x", 1, "i", 0, 1)),
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_closes_its_connection_with_a_reason(tmp_path, name):
    data, code = GARBAGE[name]
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        bad.send_bytes(data)
        error = await bad.until_refused()
        assert error is not None
        assert error.code == code


@pytest.mark.parametrize(
    ("changes", "code", "value", "limit"),
    [
        ({"version_min": 2, "version_max": 9}, ErrorCode.UNSUPPORTED_VERSION, "2 to 9", "1"),
        ({"magic": "sluize"}, ErrorCode.MALFORMED_MESSAGE, "sluize", "sluice"),
        ({"role": 6}, ErrorCode.MALFORMED_MESSAGE, "6", "1 to 5"),
        ({"application_id": ""}, ErrorCode.MALFORMED_MESSAGE, "role 3, application ''", ""),
        ({"flow_control": 7}, ErrorCode.MALFORMED_MESSAGE, "7", "0 or 1"),
        ({"segment_size_bytes": 1024}, ErrorCode.SEGMENT_SIZE_MISMATCH, "1024", "4096"),
        (
            {"role": ROLE_PEER, "application_id": "", "segment_size_bytes": 8192},
            ErrorCode.SEGMENT_SIZE_MISMATCH,
            "8192",
            "4096",
        ),
    ],
)
async def test_an_impossible_hello_is_refused(tmp_path, changes, code, value, limit):
    changes = dict(changes)
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        answer = await bad.greet(changes.pop("role", ROLE_CONSUMER), **changes)
        assert isinstance(answer, ErrorResponse)
        assert (answer.code, answer.value, answer.limit) == (code, value, limit)
        await bad.until_refused()


async def test_a_slow_frame_and_a_silent_client_are_closed_by_deadline(tmp_path):
    async with mini_cluster(
        tmp_path, 1, frame_timeout_seconds=0.2, handshake_timeout_seconds=0.2
    ) as cluster:
        async with beside_a_good_client(cluster) as silent:
            error = await silent.until_refused()
            assert error is not None
            assert error.code == ErrorCode.DEADLINE_EXCEEDED
        slow = await RawClient.connect(cluster[0].address)
        acknowledged(await slow.greet(ROLE_PRODUCER))
        slow.send_bytes(encode(OpenPartition(0, 1, 5, 1))[:-1])
        error = await slow.until_refused()
        assert error is not None
        assert error.code == ErrorCode.DEADLINE_EXCEEDED
        assert error.limit == "0.2 s"
        await slow.close()


async def test_a_truncated_frame_is_an_end_like_any_other(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        acknowledged(await bad.greet(ROLE_PRODUCER))
        bad.send_message(OpenPartition(0, 1, 5, 1))
        bad.send_message(BeginRegion(0, 0, 0, [100], 0))
        bad.send_bytes(encode(RegionData(0, 0), 100) + bytes(40))
        await bad.expect(AddCredit)


OUT_OF_STATE: list[tuple[int, Message, bytes]] = [
    (ROLE_PRODUCER, ReleaseShuffle(1), b""),
    (ROLE_PRODUCER, PartitionFinished(1), b""),
    (ROLE_PRODUCER, BufferResponse(1, 0, 0, 0), b"x"),
    (ROLE_CONSUMER, OpenPartition(0, 1, 1, 1), b""),
    (ROLE_CONSUMER, RegionData(0, 0), b"x"),
    (ROLE_CONSUMER, PartitionRequest(1, "app", 1, [1], 0, 1, 1), b""),
    (ROLE_DRIVER, AddCredit(1, 1), b""),
    (ROLE_DRIVER, TaskEvent(1, 1), b"x"),
    (ROLE_PEER, OpenGate(0, 1, 0, 1, 1, []), b""),
    (ROLE_PEER, HelloAck(1, "x", 4096, 0, 0, "x", 1, "i", 0, 1), b""),
]


@pytest.mark.parametrize(("role", "message", "payload"), OUT_OF_STATE)
async def test_a_message_out_of_state_closes_its_connection(tmp_path, role, message, payload):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        peer = role == ROLE_PEER
        acknowledged(
            await bad.greet(
                role, "" if peer else "app", segment_size_bytes=SEGMENT_SIZE_BYTES if peer else 0
            )
        )
        bad.send_message(message, payload)
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.UNEXPECTED_MESSAGE
        assert type(message).__name__ in f"{error.message} {error.value}"


async def test_oversized_frames_after_the_handshake(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        for prefix, limit in (
            ((MAX_CONTROL_BYTES + 1).to_bytes(4) + bytes(4), MAX_CONTROL_BYTES),
            (b"\0\0\0\4" + (SEGMENT_SIZE_BYTES + 1).to_bytes(4), SEGMENT_SIZE_BYTES),
        ):
            bad = await RawClient.connect(cluster[0].address)
            acknowledged(await bad.greet(ROLE_PRODUCER, segment_size_bytes=SEGMENT_SIZE_BYTES))
            bad.send_bytes(prefix)
            error = await bad.until_refused()
            assert error is not None
            assert error.code == ErrorCode.FRAME_TOO_LARGE
            assert error.limit == str(limit)
            await bad.close()


async def test_random_bytes_after_the_handshake_harm_nobody_else(tmp_path):
    """The connection ends, in order or by an error, and the TaskManager goes on."""
    randomness = random.Random(11)
    async with (
        mini_cluster(tmp_path, 1, frame_timeout_seconds=0.2) as cluster,
        beside_a_good_client(cluster),
    ):
        for turn in range(40):
            bad = await RawClient.connect(cluster[0].address)
            role = randomness.choice([ROLE_PRODUCER, ROLE_CONSUMER, ROLE_DRIVER])
            acknowledged(await bad.greet(role))
            if turn % 2:
                good = encode(randomness.choice([m for r, m, _ in OUT_OF_STATE if r == role]))
                cut = randomness.randrange(len(good))
                bad.send_bytes(good[:cut] + randomness.randbytes(1) + good[cut + 1 :])
            bad.send_bytes(randomness.randbytes(randomness.randrange(1, 200)))
            await bad.until_refused()
            await bad.close()


# ---- the producer leg: errors of one partition ------------------------------------------------


CRC = crc32c(DATA)
OPEN = (OpenPartition(0, 1, 7, 4), b"")
BEGIN = (BeginRegion(0, 0, 0, [len(DATA)], CRC), b"")
FIRST = (RegionData(0, 0), DATA[:SEGMENT_SIZE_BYTES])

Script = list[tuple[Message, bytes]]

BROKEN_PARTITIONS: dict[str, tuple[Script, ErrorCode, str | None, str | None]] = {
    "larger than any storage": (
        [OPEN, (BeginRegion(0, 0, 0, [2**62], 0), b"")],
        ErrorCode.STORAGE_FULL,
        str(2**62),
        None,
    ),
    "data before a region": ([OPEN, FIRST], ErrorCode.REGION_MISMATCH, "state open", None),
    "a wrong checksum": (
        [OPEN, (BeginRegion(0, 0, 0, [3], 0xDEAD), b""), (RegionData(0, 0), b"abc")],
        ErrorCode.CHECKSUM_MISMATCH,
        f"{crc32c(b'abc'):#010x}",
        "0x0000dead",
    ),
    "finished with other bytes": (
        [OPEN, (FinishPartition(0, 5, 0), b"")],
        ErrorCode.REGION_MISMATCH,
        "5 bytes in 0 regions",
        "0 bytes in 0 regions",
    ),
    "committed twice": (
        [(OpenPartition(0, 1, 1, 1), b""), (FinishPartition(0, 0, 0), b"")],
        ErrorCode.DUPLICATE_MAP_OUTPUT,
        "1",
        None,
    ),
}


@both_tiers
@pytest.mark.parametrize("name", BROKEN_PARTITIONS)
async def test_a_broken_partition_fails_alone(tmp_path, memory_tier_bytes, name):
    """Its extent is free at once; late messages are dropped; the connection writes the next."""
    messages, code, value, limit = BROKEN_PARTITIONS[name]
    async with (
        mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster,
        beside_a_good_client(cluster) as bad,
    ):
        stored = cluster[0].store.statistics().stored_bytes
        acknowledged(await bad.greet(ROLE_PRODUCER))
        for message, payload in messages:
            bad.send_message(message, payload)
        error = await bad.expect(ErrorResponse)
        assert isinstance(error, ErrorResponse)
        assert error.channel == 0
        assert error.code == code
        assert value in (None, error.value)
        assert limit in (None, error.limit)
        for message, payload in (FIRST, (FinishPartition(0, 1, 1), b"")):
            bad.send_message(message, payload)  # late
        bad.send_message(OpenPartition(0, 1, 8, 1))
        await bad.expect(PartitionOpened)
        bad.send_message(FinishPartition(0, 0, 0))
        assert await bad.expect(PartitionFinished) == PartitionFinished(0)
        assert cluster[0].store.statistics().stored_bytes == stored


BROKEN_CONNECTIONS: dict[str, tuple[Script, ErrorCode, str]] = {
    "data of a partition never opened": ([FIRST], ErrorCode.UNEXPECTED_MESSAGE, "0"),
    "a region of a partition never opened": ([BEGIN], ErrorCode.UNEXPECTED_MESSAGE, "0"),
    "the end of a partition never opened": (
        [(FinishPartition(3, 0, 0), b"")],
        ErrorCode.UNEXPECTED_MESSAGE,
        "3",
    ),
    "a number in use": ([OPEN, OPEN], ErrorCode.CHANNEL_IN_USE, "0"),
}


@pytest.mark.parametrize("name", BROKEN_CONNECTIONS)
async def test_a_forbidden_message_of_a_producer_closes_its_connection(tmp_path, name):
    messages, code, value = BROKEN_CONNECTIONS[name]
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        acknowledged(await bad.greet(ROLE_PRODUCER))
        for message, payload in messages:
            bad.send_message(message, payload)
        error = await bad.until_refused()
        assert error is not None
        assert (error.code, error.value) == (code, value)


@both_tiers
async def test_a_partition_is_aborted_in_the_middle(tmp_path, memory_tier_bytes):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client = await cluster.producer(0)
        client.send(*OPEN)
        client.send(*BEGIN)
        await client.expect(AddCredit)
        client.send(*FIRST)
        client.send(AbortPartition(0))
        await client.expect(PartitionAborted)
        await until_clean(cluster[0], storage_leftovers)
        client.send(AbortPartition(0))  # again, and of what never was: harmless
        client.send(AbortPartition(9))
        await client.expect(PartitionAborted)
        await client.expect(PartitionAborted)
        client.send(OpenPartition(0, 1, 8, 1))
        await client.expect(PartitionOpened)


async def test_a_draining_taskmanager_takes_no_map_output_and_goes_on_serving(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client = await cluster.producer(0)
        cluster[0].drain()
        client.send(OpenPartition(0, 1, 2, 1))
        message, _ = await client.receive()
        assert isinstance(message, ErrorResponse)
        assert (message.channel, message.code) == (0, ErrorCode.SHUTTING_DOWN)
        assert message.retryable
        assert await read_gate(await cluster.consumer(0), 1, [(ack, [1])], 0, 1) == [DATA]
