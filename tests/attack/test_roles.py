"""Credentials of the wrong kind: for another role, of another cluster, with another key."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.identity import (
    KIND_DRIVER,
    KIND_PEER,
    KIND_TASK,
    Claim,
    ClusterSecrets,
    Credential,
)
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    BufferResponse,
    HelloAck,
    PartitionRequest,
    Proof,
)
from tests.attack.hostile import Hostile, Relay, fail_to_prove, told
from tests.attack.rig import (
    ALICE,
    BOB,
    OTHER_SECRET,
    SECRETS,
    SHUFFLE,
    Application,
    application,
    commit,
    fail_to_read,
    hello_of,
    read,
    release_application,
)

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000
SEGMENT = 32 * 1024
PEER_HELLO = hello_of(ROLE_PEER, "", segment_size_bytes=SEGMENT)


def hello_for(role: int, victim: Application):
    return PEER_HELLO if role == ROLE_PEER else hello_of(role, victim.name)


def of_kind(kind: int, key: bytes, claim: Claim) -> Credential:
    """Return a key under a claim that is not its own."""
    return Credential(claim._replace(kind=kind), key)


@one_loop
@pytest.mark.parametrize(
    ("role", "kind"),
    [
        (ROLE_DRIVER, "task"),
        (ROLE_PRODUCER, "driver"),
        (ROLE_CONSUMER, "driver"),
        (ROLE_PEER, "task"),
        (ROLE_PEER, "driver"),
        (ROLE_PRODUCER, "peer"),
        (ROLE_CONSUMER, "peer"),
        (ROLE_DRIVER, "peer"),
    ],
)
async def test_a_credential_is_for_its_role_only(cluster, victim, role, kind):
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    credential = {
        "task": victim.task,
        "driver": victim.driver,
        "peer": SECRETS.peer(str(daemon.address)),
    }[kind]
    error = await fail_to_prove(
        daemon, hello_for(role, victim), credential, code=ErrorCode.NOT_PERMITTED
    )
    assert kind in error.value
    # The kind that is allowed, with the key at hand: the key is of no use under another claim.
    allowed = {ROLE_PEER: KIND_PEER, ROLE_DRIVER: KIND_DRIVER}.get(role, KIND_TASK)
    if kind != "driver" or role == ROLE_PEER:  # a driver has the keys of its tasks
        confused = of_kind(allowed, credential.key, credential.claim)
        if allowed == KIND_PEER:
            confused = of_kind(KIND_PEER, credential.key, SECRETS.peer(str(daemon.address)).claim)
        await fail_to_prove(daemon, hello_for(role, victim), confused)
    assert await read(daemon.address, victim, [1]) == RECORDS
    assert await release_application(daemon.address, victim) >= len(RECORDS)


@one_loop
async def test_no_key_proves_the_claim_of_another(cluster, victim):
    """Of another application, kind, user or level of the derivation."""
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    sibling = application(ALICE, f"not {victim.name}")
    other = application(BOB, victim.name)
    keys = [
        sibling.task.key,
        sibling.driver.key,
        other.task.key,
        other.driver.key,
        victim.driver.key,
        BOB.key,
        ClusterSecrets([OTHER_SECRET]).key_of(victim.task.claim)[0],
        victim.task.claim.salt * 2,
        bytes(32),
        b"",
    ]
    of_driver = [victim.task.key, sibling.driver.key, other.driver.key, ALICE.key]
    attempts = [(ROLE_CONSUMER, victim.task.claim, key) for key in keys]
    attempts += [(ROLE_DRIVER, victim.driver.claim, key) for key in of_driver]
    errors = {
        told(await fail_to_prove(daemon, hello_of(role, victim.name), Credential(claim, key)))
        for role, claim, key in attempts
    }
    assert len(errors) == 1
    assert await read(daemon.address, victim, [1]) == RECORDS
    assert await release_application(daemon.address, victim) >= len(RECORDS)


@one_loop
async def test_only_a_taskmanager_of_the_cluster_is_a_peer(cluster, victim):
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    right = SECRETS.peer(str(daemon.address))
    stranger = await Hostile.at(daemon)
    stranger.send_message(PEER_HELLO)
    await stranger.refused(ErrorCode.AUTHENTICATION_REQUIRED)
    foreign = ClusterSecrets([OTHER_SECRET]).peer(str(daemon.address))
    for credential in (foreign, Credential(right.claim, foreign.key)):
        await fail_to_prove(daemon, PEER_HELLO, credential)
    # A TaskManager that dialed another address: an attacker in between forwards its proof.
    for wrong in (cluster.second.address, f"localhost:{daemon.data_port}", "", "127.0.0.1"):
        await fail_to_prove(
            daemon, PEER_HELLO, SECRETS.peer(str(wrong)), code=ErrorCode.NOT_PERMITTED
        )
    peer = await Hostile.at(daemon)
    assert isinstance(await peer.prove(PEER_HELLO, right), Proof)
    await peer.expect(HelloAck)
    peer.send_message(PartitionRequest(0, victim.scoped, SHUFFLE, [1], 0, 1, 8))
    assert RECORDS.startswith(await first_bytes(peer))
    await peer.close()


async def first_bytes(peer: Hostile) -> bytes:
    while True:
        message, payload = await peer.receive()
        if type(message) is BufferResponse:
            return payload


@one_loop
@pytest.mark.parametrize("target", ["the other TaskManager", "the same TaskManager"])
async def test_a_relay_cannot_pass_on_the_proof_of_a_taskmanager(cluster, victim, target):
    """A reader names a relay as a TaskManager; the one that it is connected to dials there."""
    dialling = cluster.first
    ack = await commit(cluster.second.address, victim, 1, RECORDS)
    refusing = cluster.second if target == "the other TaskManager" else dialling
    since = len(refusing.lines)
    async with Relay(refusing.address) as relay:
        named = replace(ack, advertised_host=relay.address.host, data_port=relay.address.port)
        if target == "the same TaskManager":
            named = replace(named, taskmanager_id="somebody else")
        await fail_to_read(dialling, victim, named)
        assert relay.connections == 1
    # Not the code alone: a side that dialed logs it as well, perhaps late.
    line = await refusing.logs("address that was dialed", since)
    assert "NOT_PERMITTED" in line
    assert str(relay.address) in line
    assert victim.scoped.encode() not in relay.up
    assert RECORDS[:20] not in relay.down
    assert await read(dialling.address, victim, [1], ack) == RECORDS
