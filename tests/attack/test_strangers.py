"""Connections without a credential, and with one of another cluster."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    FinishPartition,
    GateChannel,
    HelloAck,
    Message,
    OpenGate,
    OpenPartition,
    PartitionFinished,
    PartitionRequest,
    PartitionResumed,
    Proof,
    RegionSecured,
    ReleaseApplication,
    ReleaseShuffle,
    ResumePartition,
    SecureRegion,
)
from sluice.transport.config import TransportConfig
from tests.attack.hostile import HOSTILE, NONCE, Hostile, fail_to_prove, told
from tests.attack.rig import (
    ABROAD,
    ALICE,
    SECRETS,
    SHUFFLE,
    Application,
    AttackedDaemon,
    application,
    commit,
    consumer,
    enter,
    hello_of,
    producer,
    read,
    release_application,
    release_shuffle,
)
from tests.support.certificates import Authority
from tests.support.wire_clients import (
    SEGMENT_SIZE_BYTES,
    read_gate,
    write_map_output,
    write_region,
)

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

DATA = b"the records of the victim " * 1000
PLACES = 30
"""Handshakes that may go on at once."""
FLOOD = 90
HANDSHAKE_TIMEOUT_SECONDS = 5
CROWD = 128
"""Idle connections, of which a quarter may be in a handshake."""
GOOD = 20

CLIENT_ROLES = (ROLE_PRODUCER, ROLE_CONSUMER, ROLE_DRIVER)


def harm(role: int, daemon: AttackedDaemon, scoped: str) -> list[Message]:
    """Return what a connection of that role would do if it were let in."""
    messages: dict[int, list[Message]] = {
        ROLE_PRODUCER: [OpenPartition(0, SHUFFLE, 1, 1), ResumePartition(1, SHUFFLE, 2, 1)],
        ROLE_CONSUMER: [
            OpenGate(
                0,
                SHUFFLE,
                0,
                1,
                8,
                [GateChannel(1, daemon.identity, "127.0.0.1", daemon.data_port, [1])],
            )
        ],
        ROLE_DRIVER: [ReleaseShuffle(SHUFFLE), ReleaseApplication()],
        ROLE_PEER: [PartitionRequest(0, scoped, SHUFFLE, [1], 0, 1, 8)],
    }
    return messages[role]


async def begin(daemon: AttackedDaemon, victim: Application) -> None:
    """Commit a map output, and leave another one with a secured region behind."""
    await commit(daemon.address, victim, 1, DATA)
    writer = await producer(daemon.address, victim)
    writer.send(ResumePartition(0, SHUFFLE, 2, 1))
    await writer.expect(PartitionResumed)
    await write_region(writer, 0, 0, [DATA])
    writer.send(SecureRegion(0, 0))
    await writer.expect(RegionSecured)
    writer.vanish()
    await writer.until_lost()


async def go_on(daemon: AttackedDaemon, victim: Application) -> None:
    """Check that the victim goes on from where it was, and finds its data as it left them."""
    writer = await producer(daemon.address, victim)
    writer.send(ResumePartition(0, SHUFFLE, 2, 1))
    assert await writer.expect(PartitionResumed) == PartitionResumed(0, 1, len(DATA), False)
    await write_region(writer, 0, 1, [b"and the end"])
    writer.send(FinishPartition(0, len(DATA) + 11, 2))
    await writer.expect(PartitionFinished)
    await writer.close()
    assert await read(daemon.address, victim, [1]) == DATA
    assert await read(daemon.address, victim, [2]) == DATA + b"and the end"
    assert await release_shuffle(daemon.address, victim) >= 2 * len(DATA)
    assert await release_application(daemon.address, victim) == 0


@one_loop
@pytest.mark.parametrize("way", ["TCP", "Unix socket"])
async def test_a_stranger_does_nothing_in_any_role(cluster, victim, way):
    daemon = cluster.first
    address = daemon.address if way == "TCP" else daemon.socket
    await begin(daemon, victim)
    errors = set()
    for role in (*CLIENT_ROLES, ROLE_PEER):
        for name in (victim.name, victim.scoped, "an application that does not exist"):
            stranger = await Hostile.at(daemon, address)
            segment = 32768 if role == ROLE_PEER else 0
            application_id = "" if role == ROLE_PEER else name
            hello = hello_of(role, application_id, segment_size_bytes=segment)
            stranger.send_message(hello)
            error = await stranger.refused(ErrorCode.AUTHENTICATION_REQUIRED)
            errors.add(told(error))
            # What follows the Hello in the same write must not be served either.
            hasty = await Hostile.at(daemon, address)
            hasty.send_messages([hello, *harm(role, daemon, victim.scoped)])
            await hasty.ended(ErrorCode.AUTHENTICATION_REQUIRED)
    # One text for every application: it tells nobody which of them exist.
    assert len(errors) == 1
    await go_on(daemon, victim)


@one_loop
@pytest.mark.parametrize("role", CLIENT_ROLES)
async def test_a_credential_of_another_cluster_does_nothing(cluster, victim, role):
    daemon = cluster.first
    await begin(daemon, victim)
    foreign = application(ABROAD, victim.name)
    errors = set()
    for name in (victim.name, victim.scoped, "an application that does not exist"):
        stranger = await Hostile.at(daemon)
        credential = foreign.driver if role == ROLE_DRIVER else foreign.task
        answer = await stranger.prove(hello_of(role, name), credential)
        error = await stranger.refused(ErrorCode.AUTHENTICATION_FAILED, answer)
        errors.add(told(error))
    assert len(errors) == 1
    await go_on(daemon, victim)


@one_loop
async def test_what_follows_a_claim_is_not_served_before_the_proof(cluster, victim):
    """Its sender knows the claim, which is no secret, and has no key."""
    daemon = cluster.first
    await begin(daemon, victim)
    for role, credential in (
        (ROLE_PRODUCER, victim.task),
        (ROLE_CONSUMER, victim.task),
        (ROLE_DRIVER, victim.driver),
    ):
        stranger = await Hostile.at(daemon)
        hello = hello_of(role, victim.name, token=NONCE + credential.claim.pack())
        stranger.send_messages([hello, *harm(role, daemon, victim.scoped)])
        await stranger.ended(ErrorCode.UNEXPECTED_MESSAGE)
    await go_on(daemon, victim)


@one_loop
async def test_connections_that_never_prove_hinder_nobody_and_are_ended(
    start, secret_file, tmp_path, victim
):
    """More of them than there are places: the oldest make room, the others end in time."""
    daemon = start(
        tmp_path,
        cluster_secret_files=secret_file,
        max_handshakes=PLACES,
        handshake_timeout_seconds=HANDSHAKE_TIMEOUT_SECONDS,
    )
    claim = hello_of(ROLE_DRIVER, victim.name, token=NONCE + victim.driver.claim.pack())
    writer, reader = await producer(daemon.address, victim), await consumer(daemon.address, victim)
    flood: list[Hostile] = []

    async def come(count: int) -> None:
        for _ in range(count):
            flood.append(stranger := await Hostile.at(daemon))
            if len(flood) % 3 == 0:
                stranger.send_message(claim)
            elif len(flood) % 3 == 1:
                stranger.send_bytes(b"\0\0")  # a frame that never ends

    try:
        await come(PLACES - 1)
        await commit(daemon.address, victim, 1, DATA)  # in the last place
        await come(FLOOD)
        await write_map_output(writer, SHUFFLE, 2, [[DATA]])
        parts = await read_gate(reader, SHUFFLE, [(reader.ack, [1, 2])], 0, 1)
        assert b"".join(parts) == DATA + DATA
        await commit(daemon.socket, victim, 3, DATA)
        await commit(daemon.address, victim, 4, DATA)
        ended = await asyncio.gather(*(each.until_refused() for each in flood))
        assert not any(ended[: FLOOD - 1])
        late = [error for error in ended[FLOOD:] if error is not None]
        assert {error.code for error in late} == {ErrorCode.DEADLINE_EXCEEDED}
    finally:
        for stranger in flood:
            await stranger.close()
    await writer.close()
    await reader.close()
    assert await read(daemon.address, victim, [1, 2, 3, 4]) == DATA * 4


@one_loop
@pytest.mark.parametrize("has_tls", [False, True])
async def test_idle_connections_keep_nobody_out(start, secret_file, tmp_path, has_tls):
    """More of them than may be in a handshake, all the time: every client and peer comes through.

    Those of the stranger's own address too. One of another address stays, however slow it is.
    """
    tls = Authority(tmp_path).settings() if has_tls else {}
    daemon = start(
        tmp_path,
        cluster_secret_files=secret_file,
        max_handshakes=CROWD // 4,
        handshake_timeout_seconds=600,
        **tls,
    )
    owner = application(ALICE, "the victim")
    slow = await from_source("127.0.0.2", daemon)
    idle = [await from_source("127.0.0.1", daemon) for _ in range(CROWD)]
    config = TransportConfig(**tls)
    for attempt in range(GOOD):
        idle.append(await from_source("127.0.0.1", daemon))
        writer = await enter(daemon.address, ROLE_PRODUCER, owner.name, owner.task, config)
        await write_map_output(writer, SHUFFLE, attempt, [[DATA]])
        await writer.close()
    assert await read(daemon.socket, owner, range(GOOD)) == DATA * GOOD
    if not has_tls:
        peer = hello_of(ROLE_PEER, "", segment_size_bytes=SEGMENT_SIZE_BYTES)
        proven = await slow.prove(peer, SECRETS.peer(str(daemon.address)))
        assert isinstance(proven, Proof)
        await slow.expect(HelloAck)
    gone = idle[: len(idle) - CROWD // 4]
    errors = await asyncio.gather(*(each.until_refused() for each in gone))
    assert not any(errors)
    assert daemon.status().counters.refused_connections["too many"] >= len(gone)
    for each in (*idle, slow):
        each.abort()


async def from_source(host: str, daemon: AttackedDaemon) -> Hostile:
    """Connect from one of this host's addresses."""
    client = Hostile(*await asyncio.open_connection(*daemon.address, local_addr=(host, 0)))
    HOSTILE.append(client)
    return client


@one_loop
async def test_a_wrong_proof_and_an_unknown_secret_are_told_alike(cluster, victim):
    """And so is an application that exists, and one that does not."""
    daemon = cluster.first
    await commit(daemon.address, victim, 1, DATA)
    errors = {
        told(
            await fail_to_prove(
                daemon, hello_of(ROLE_CONSUMER, name), credential, proof=lambda _: bytes(32)
            )
        )
        for credential in (victim.task, application(ABROAD, victim.name).task)
        for name in (victim.name, "an application that does not exist")
    }
    assert len(errors) == 1
    owner = await Hostile.at(daemon)
    assert isinstance(await owner.prove(hello_of(ROLE_CONSUMER, victim.name), victim.task), Proof)
    assert isinstance((await owner.receive())[0], HelloAck)
    await owner.close()
