"""Handshakes that are replayed, reflected, changed on the way, cut short, or skipped."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import AuthenticationFailed, ErrorCode, SluiceError
from sluice.protocol.identity import KIND_DRIVER, Claim, Credential
from sluice.protocol.limits import NONCE_BYTES
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PRODUCER,
    Challenge,
    ErrorResponse,
    Hello,
    HelloAck,
    Proof,
    ReleaseApplication,
    encode,
)
from sluice.shuffle.client.client import ShuffleClient
from sluice.transport.address import Address
from tests.attack.hostile import NONCE, Hostile, Impostor, Relay, an_ack, fail_to_prove, told
from tests.attack.rig import (
    BOB,
    Application,
    application,
    commit,
    driver,
    enter,
    hello_of,
    read,
    release_application,
    release_shuffle,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000


async def works(address: Address, victim: Application) -> None:
    """Check that the victim reads its data, and releases it."""
    assert await read(address, victim, [1]) == RECORDS
    assert await release_application(address, victim) >= len(RECORDS)


# ---- on the way to a TaskManager -------------------------------------------------------------


def as_if_at(address: Address, victim: Application) -> Application:
    """Return the victim as it is when an attacker has redirected a connection to an address."""
    return victim._replace(driver=victim.driver.at(str(address)))


@one_loop
async def test_a_relay_cannot_pass_on_the_proof_of_a_client(cluster, victim):
    """The attacker answers at one TaskManager's address, and lets the client into another one.

    He could change everything that follows the handshake.
    """
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    async with Relay(daemon.address) as relay:
        for dialed in (relay.address, Address("localhost", relay.address.port)):
            since = len(daemon.lines)
            with pytest.raises(SluiceError) as caught:
                await release_application(dialed, victim)
            assert caught.value.code is ErrorCode.NOT_PERMITTED
            assert "address that was dialed" in str(caught.value)
            await daemon.logs("NOT_PERMITTED", since)
        assert relay.connections == 2
    # The client found the attacker's Unix socket in place of the TaskManager's.
    hello = hello_of(ROLE_DRIVER, victim.name)
    here = victim.driver.at("unix:")
    await fail_to_prove(daemon, hello, here, code=ErrorCode.NOT_PERMITTED)
    await works(daemon.address, victim)


@one_loop
async def test_a_taskmanager_is_reached_by_its_other_addresses(start, secret_file, tmp_path):
    """By a name that it does not advertise, and by the address of a proxy in its settings."""
    owner = application(BOB, "of many addresses")
    async with Relay(Address("127.0.0.1", 1)) as relay:
        daemon = start(
            tmp_path,
            cluster_secret_files=secret_file,
            advertised_host="tm.example",
            address_aliases=str(relay.address),
        )
        relay._target = daemon.address
        for address in (
            daemon.address,
            Address("localhost", daemon.data_port),
            daemon.socket,
            relay.address,
        ):
            assert await release_application(address, owner) == 0


@one_loop
async def test_a_recorded_handshake_opens_nothing_a_second_time(cluster, victim):
    """The recording has the release of a shuffle behind its proof."""
    daemon = cluster.first
    async with Relay(daemon.address) as relay:
        assert await release_shuffle(relay.address, as_if_at(daemon.address, victim)) == 0
    await commit(daemon.address, victim, 1, RECORDS)
    replay = await Hostile.at(daemon)
    replay.send_bytes(bytes(relay.up))
    await replay.ended(ErrorCode.AUTHENTICATION_FAILED)
    # Message by message, as a patient attacker does.
    replay = await Hostile.at(daemon)
    first = int.from_bytes(relay.up[:4]) + 8
    replay.send_bytes(bytes(relay.up[:first]))
    assert isinstance((await replay.receive())[0], Challenge)
    replay.send_bytes(bytes(relay.up[first:]))
    await replay.ended(ErrorCode.AUTHENTICATION_FAILED)
    await works(daemon.address, victim)


@one_loop
async def test_a_challenge_or_a_proof_of_the_taskmanager_is_no_proof(cluster, victim):
    """Not on the same connection, and not on another one."""
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    hello = hello_of(ROLE_DRIVER, victim.name)
    owner = await Hostile.at(daemon)
    of_taskmanager = await owner.prove(hello, victim.driver)
    assert isinstance(of_taskmanager, Proof)

    async def send_back(first: Hostile, second: Hostile, nonce: bytes) -> bytes:
        """Play the second connection's challenge on the first one."""
        claim = replace(hello, token=nonce + victim.driver.claim.pack())
        first.send_message(claim)
        challenge = await first.expect(Challenge)
        assert isinstance(challenge, Challenge)
        second.send_message(replace(claim, token=challenge.nonce + victim.driver.claim.pack()))
        other = await second.expect(Challenge)
        assert isinstance(other, Challenge)
        assert other.nonce != challenge.nonce
        return other.nonce

    for forge in (lambda nonce: nonce, lambda nonce: of_taskmanager.proof, lambda nonce: NONCE):
        first, second = [await Hostile.at(daemon) for _ in range(2)]
        nonce = await send_back(first, second, NONCE)
        for each in (first, second):
            each.send_message(Proof(forge(nonce)))
            await each.refused(ErrorCode.AUTHENTICATION_FAILED)
    await owner.close()
    await works(daemon.address, victim)


@one_loop
async def test_every_nonce_of_a_taskmanager_is_new(cluster, victim):
    daemon = cluster.first
    hello = hello_of(ROLE_DRIVER, victim.name, token=NONCE + victim.driver.claim.pack())
    nonces = set()
    for _ in range(20):
        client = await Hostile.at(daemon)
        client.send_message(hello)
        nonces.add(await client.expect(Challenge))
        await client.close()
    assert len(nonces) == 20
    assert await release_application(daemon.address, victim) == 0


def claims_with_a_change(claim: Claim) -> dict[str, Claim]:
    other = BOB.application(bytes(16)).claim
    return {
        "secret_id": claim._replace(secret_id=bytes(8)),
        "expires_at_seconds": claim._replace(expires_at_seconds=2**63),
        "token_id": claim._replace(token_id=other.token_id),
        "salt": claim._replace(salt=other.salt),
        "subject": claim._replace(subject=other.subject),
        "longer subject": claim._replace(subject=claim.subject + " "),
    }


@one_loop
async def test_a_key_proves_no_claim_with_another_field(cluster, victim):
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    attempts = [
        (role, claim, credential.key)
        for credential, role in ((victim.driver, ROLE_DRIVER), (victim.task, ROLE_CONSUMER))
        for claim in claims_with_a_change(credential.claim).values()
    ]
    promoted = victim.task.claim._replace(kind=KIND_DRIVER)
    attempts.append((ROLE_DRIVER, promoted, victim.task.key))
    errors = {
        told(await fail_to_prove(daemon, hello_of(role, victim.name), Credential(claim, key)))
        for role, claim, key in attempts
    }
    assert len(errors) == 1
    await works(daemon.address, victim)


@one_loop
@pytest.mark.parametrize(
    "changes",
    [
        {"application_id": "another"},
        {"role": ROLE_PRODUCER},
        {"segment_size_bytes": 1 << 20},
        {"features": 1},
        {"name": "another"},
        {"version_max": 2},
        {"flow_control": 1},
        {"token": NONCE[::-1]},
    ],
    ids=str,
)
async def test_a_hello_that_was_changed_on_the_way_is_refused(cluster, victim, changes):
    """The proof is of the Hello that its owner said."""
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    hello = hello_of(ROLE_CONSUMER, victim.name)
    claimed = replace(hello, token=NONCE + victim.task.claim.pack())
    if "token" in changes:  # another nonce before the same claim
        changes = {"token": changes["token"] + victim.task.claim.pack()}
    await fail_to_prove(daemon, hello, victim.task, sent=replace(claimed, **changes))
    again = await Hostile.at(daemon)
    assert isinstance(await again.prove(hello, victim.task, sent=claimed), Proof)
    await again.close()
    await works(daemon.address, victim)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda proof: b"",
    "one byte": lambda proof: proof[:1],
    "a byte short": lambda proof: proof[:-1],
    "a byte long": lambda proof: proof + b"\0",
    "twice": lambda proof: proof * 2,
    "long": lambda proof: proof * 100,
    "too long for any message": lambda proof: proof * 1000,
}


@one_loop
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_proof_or_a_nonce_of_another_length_is_refused(cluster, victim, damage):
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    hello = hello_of(ROLE_DRIVER, victim.name)
    code = ErrorCode.FRAME_TOO_LARGE if damage.startswith("too") else ErrorCode.MALFORMED_MESSAGE
    await fail_to_prove(daemon, hello, victim.driver, proof=DAMAGE[damage], code=code)
    # The first 32 bytes of a token are the nonce, and so another length leaves no claim.
    client = await Hostile.at(daemon)
    token = DAMAGE[damage](NONCE) + victim.driver.claim.pack()
    answer = await client.prove(hello, victim.driver, sent=replace(hello, token=token))
    error = await client.until_refused() or answer
    assert isinstance(error, ErrorResponse)
    assert error.code in (code, ErrorCode.MALFORMED_MESSAGE, ErrorCode.AUTHENTICATION_FAILED), error
    await client.ended(ErrorCode(error.code))
    await works(daemon.address, victim)


@one_loop
async def test_a_token_that_is_no_claim_is_refused(cluster, victim):
    daemon = cluster.first
    await commit(daemon.address, victim, 1, RECORDS)
    packed = victim.driver.claim.pack()
    tokens = [
        NONCE[:1],
        NONCE,
        NONCE + packed[:-10],
        NONCE + b"\0" + packed[1:],
        NONCE + b"\x04" + packed[1:],
        NONCE + packed + b"\xff\xfe",
        NONCE + packed + b"x" * 512,
    ]
    for token in tokens:
        client = await Hostile.at(daemon)
        client.send_message(hello_of(ROLE_DRIVER, victim.name, token=token))
        await client.refused(ErrorCode.MALFORMED_MESSAGE)
    await works(daemon.address, victim)


@one_loop
async def test_a_name_that_has_no_room_for_its_namespace_is_refused(cluster):
    daemon = cluster.first
    longest, too_long = "n" * 231, "n" * 232
    with pytest.raises(SluiceError) as caught:
        await driver(daemon.address, application(BOB, too_long))
    assert caught.value.code is ErrorCode.NOT_PERMITTED
    assert (caught.value.value, caught.value.limit) == ("232 characters", "231 characters")
    assert await release_application(daemon.address, application(BOB, longest)) == 0


# ---- on the way to a client ------------------------------------------------------------------


async def skip_the_challenge(client: Hostile) -> None:
    await client.expect(Hello)
    client.send_message(an_ack())


async def skip_the_proof(client: Hostile) -> None:
    await client.expect(Hello)
    client.send_message(Challenge(NONCE))
    await client.expect(Proof)
    client.send_message(an_ack())


async def prove_first(client: Hostile) -> None:
    await client.expect(Hello)
    client.send_messages([Proof(NONCE), an_ack()])


async def prove_wrongly(client: Hostile) -> None:
    await client.expect(Hello)
    client.send_message(Challenge(NONCE))
    await client.expect(Proof)
    client.send_messages([Proof(NONCE), an_ack()])


async def prove_nothing(client: Hostile) -> None:
    await client.expect(Hello)
    client.send_message(Challenge(NONCE))
    await client.expect(Proof)
    client.send_messages([Proof(b""), an_ack()])


async def send_the_proof_back(client: Hostile) -> None:
    hello = await client.expect(Hello)
    assert isinstance(hello, Hello)
    client.send_message(Challenge(hello.token[:NONCE_BYTES]))
    proof = await client.expect(Proof)
    client.send_messages([proof, an_ack()])


@one_loop
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (skip_the_challenge, ErrorCode.AUTHENTICATION_FAILED),
        (skip_the_proof, ErrorCode.UNEXPECTED_MESSAGE),
        (prove_first, ErrorCode.UNEXPECTED_MESSAGE),
        (prove_wrongly, ErrorCode.AUTHENTICATION_FAILED),
        (prove_nothing, ErrorCode.MALFORMED_MESSAGE),
        (send_the_proof_back, ErrorCode.AUTHENTICATION_FAILED),
    ],
)
async def test_a_client_with_a_credential_talks_to_no_taskmanager_that_proves_nothing(
    cluster, victim, script: Callable[[Hostile], Awaitable[None]], code
):
    """It does not try again without its credential either."""
    async with Impostor(script) as impostor:
        with pytest.raises(SluiceError) as caught:
            await ShuffleClient.connect(
                impostor.address, victim.name, credential=victim.task.to_text()
            )
    assert caught.value.code is code
    assert impostor.connections == 1
    for key in (victim.task.key, victim.driver.key):
        assert key not in impostor.rest
    true = await ShuffleClient.connect(
        cluster.first.address, victim.name, credential=victim.task.to_text()
    )
    await true.close()


@one_loop
async def test_a_driver_releases_nothing_at_a_taskmanager_that_proves_nothing(cluster, victim):
    async with Impostor(skip_the_challenge) as impostor:
        with pytest.raises(AuthenticationFailed):
            await enter(impostor.address, ROLE_DRIVER, victim.name, victim.driver)
    assert encode(ReleaseApplication())[8:] not in impostor.rest
    assert await release_application(cluster.first.address, victim) == 0


@one_loop
async def test_an_answer_that_was_changed_on_the_way_is_refused(cluster, victim):
    """The proof of a TaskManager is of the HelloAck that follows it, too."""
    daemon = cluster.first

    async def change(client: Hostile) -> None:
        onward = await Hostile.at(daemon)
        try:
            client_hello = await client.expect(Hello)
            onward.send_message(client_hello)
            client.send_message(await onward.expect(Challenge))
            onward.send_message(await client.expect(Proof))
            proof = await onward.expect(Proof)
            ack = await onward.expect(HelloAck)
            assert isinstance(ack, HelloAck)
            client.send_messages([proof, replace(ack, advertised_host="somewhere.else")])
        finally:
            with contextlib.suppress(ConnectionError):
                await onward.close()

    there = as_if_at(daemon.address, victim)
    async with Impostor(change) as impostor:
        with pytest.raises(AuthenticationFailed):
            await enter(impostor.address, ROLE_DRIVER, victim.name, there.driver)
    assert await release_application(daemon.address, victim) == 0
