"""Gates that name addresses where no TaskManager of the cluster is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sluice.protocol.identity import KIND_PEER, Claim
from sluice.protocol.limits import NONCE_BYTES, PREFIX_BYTES
from sluice.protocol.schema import ROLE_PEER, Challenge, ErrorResponse, Hello, Proof, decode_control
from tests.attack.hostile import NONCE, Hostile, Impostor, an_ack
from tests.attack.rig import SECRET, SECRETS, commit, fail_to_read, read, texts_of

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000
MARKER = "SSH-2.0-an-answer-that-nobody-should-see"
MARKS = (MARKER, "SSH-", "an-answer", str(int.from_bytes(b"SSH-")), str(int.from_bytes(b"2.0-")))
"""The answer, and the forms in which its first bytes could be told."""


async def a_banner(peer: Hostile) -> None:
    peer.send_bytes(MARKER.encode() + b"\r\n")


async def an_error(peer: Hostile) -> None:
    peer.send_message(ErrorResponse(None, 1, 1, False, MARKER, MARKER, MARKER, None))


async def a_name(peer: Hostile) -> None:
    peer.send_message(an_ack(taskmanager_id=MARKER))


async def a_name_behind_a_challenge(peer: Hostile) -> None:
    await peer.expect(Hello)
    peer.send_message(Challenge(NONCE))
    await peer.expect(Proof)
    peer.send_messages([Proof(NONCE), an_ack(taskmanager_id=MARKER, advertised_host=MARKER)])


async def an_error_behind_a_challenge(peer: Hostile) -> None:
    await peer.expect(Hello)
    peer.send_message(Challenge(NONCE))
    await peer.expect(Proof)
    await an_error(peer)


@one_loop
@pytest.mark.parametrize(
    "script",
    [
        a_banner,
        an_error,
        a_name,
        a_name_behind_a_challenge,
        an_error_behind_a_challenge,
    ],
)
async def test_a_gate_shows_nothing_of_an_answer_that_is_not_proven(cluster, victim, script):
    daemon = cluster.first
    ack = await commit(cluster.second.address, victim, 1, RECORDS)
    async with Impostor(script) as impostor:
        host, port = impostor.address
        named = replace(ack, advertised_host=host, data_port=port)
        error = await fail_to_read(daemon, victim, named)
        told = f"{error} {error.message} {error.value} {error.limit}"
        assert not [mark for mark in MARKS if mark in told], told
    assert await read(daemon.address, victim, [1], ack) == RECORDS


@one_loop
async def test_an_address_that_a_gate_names_gets_a_claim_and_no_secret(cluster, victim):
    """A claim says which secret would be proven, and to whom; the impostor hears no more."""
    heard = bytearray()

    async def listen(peer: Hostile) -> None:
        prefix = await peer._reader.readexactly(PREFIX_BYTES)
        heard.extend(await peer._reader.readexactly(int.from_bytes(prefix[:4])))
        peer.send_message(an_ack())

    daemon = cluster.first
    ack = await commit(cluster.second.address, victim, 1, RECORDS)
    async with Impostor(listen) as impostor:
        host, port = impostor.address
        await fail_to_read(daemon, victim, replace(ack, advertised_host=host, data_port=port))
    hello = decode_control(bytes(heard))
    assert isinstance(hello, Hello)
    assert (hello.role, hello.application_id) == (ROLE_PEER, "")
    claim = Claim.unpack(hello.token[NONCE_BYTES:])
    assert (claim.kind, claim.subject) == (KIND_PEER, str(impostor.address))
    assert (claim.expires_at_seconds, claim.token_id, claim.salt) == (0, bytes(16), bytes(16))
    # Afterwards comes an error at most: no request, and so no application's name.
    everything = bytes(heard) + bytes(impostor.rest)
    if impostor.rest:
        prefix, rest = impostor.rest[:PREFIX_BYTES], bytes(impostor.rest[PREFIX_BYTES:])
        assert int.from_bytes(prefix[:4]) == len(rest)
        assert isinstance(decode_control(rest), ErrorResponse)
    assert victim.name.encode() not in everything
    for key in (SECRET, SECRETS.peer("a:1").key, victim.driver.key, victim.task.key):
        assert key not in everything
        assert not [text for text in texts_of(key) if text.encode() in everything]
    assert await read(daemon.address, victim, [1], ack) == RECORDS


@one_loop
async def test_a_wrong_proof_of_a_taskmanager_gets_no_request(cluster, victim):
    """The reader's TaskManager proves first; what it says then gives nothing to guess from."""
    seen: list[Proof] = []

    async def guess(peer: Hostile) -> None:
        await peer.expect(Hello)
        peer.send_message(Challenge(NONCE))
        proof = await peer.expect(Proof)
        assert isinstance(proof, Proof)
        seen.append(proof)
        peer.send_messages([proof, an_ack()])  # its own proof back

    daemon = cluster.first
    ack = await commit(cluster.second.address, victim, 1, RECORDS)
    async with Impostor(guess) as impostor:
        host, port = impostor.address
        named = replace(ack, advertised_host=host, data_port=port)
        await fail_to_read(daemon, victim, named)
    assert len(seen) == 1
    assert victim.name.encode() not in impostor.rest
    assert await read(daemon.address, victim, [1], ack) == RECORDS
