"""Proofs and access tokens are compared in a time that does not tell where they differ."""

from __future__ import annotations

import hmac
from typing import Any

import pytest

from sluice.protocol import access_token, admission, handshake
from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake, Admission
from sluice.protocol.errors import AuthenticationFailed
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import ClusterSecrets, SubmitToken

SECRET, OTHER_SECRET = bytes(range(32)), bytes(range(100, 132))
OFFER = m.HelloAck(1, "tm-a", 32768, m.FLOW_CREDIT, 0, "host-a", 7337, "i-a", 0, 1)
HELLO = m.Hello("sluice", 1, 1, m.ROLE_CONSUMER, "app-1", b"", 0, m.FLOW_CREDIT, 0, "reader")

pytestmark = pytest.mark.interpreted


class Spy:
    """Takes the place of ``hmac`` in a module, and keeps what it compares."""

    def __init__(self) -> None:
        self.compared: list[tuple[bytes, bytes]] = []

    def compare_digest(self, one: bytes, other: bytes) -> bool:
        self.compared.append((one, other))
        return hmac.compare_digest(one, other)

    def __getattr__(self, name: str) -> Any:
        return getattr(hmac, name)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy = Spy()
    for module in (handshake, admission, access_token):
        monkeypatch.setattr(module, "hmac", spy)
    return spy


def both(secret: bytes) -> tuple[ConnectingHandshake, AcceptingHandshake]:
    """Return a client with a credential of a secret, and a TaskManager that accepts SECRET."""
    credential = SubmitToken.make(secret, "alice", 0, bytes(16)).application(bytes(16)).for_tasks()
    accepting = AcceptingHandshake(
        OFFER, Admission(ClusterSecrets([SECRET]), False, lambda name: False), bytes(32)
    )
    return ConnectingHandshake(HELLO, credential, bytes(32)), accepting


@pytest.mark.parametrize("secret", [SECRET, OTHER_SECRET], ids=["known", "unknown"])
def test_each_proof_is_compared_whole_also_of_a_secret_that_is_not_known(
    spy: Spy, secret: bytes
) -> None:
    connecting, accepting = both(secret)
    (challenge,) = accepting.receive(connecting.hello, b"", 0).replies
    (proof,) = connecting.receive(challenge, b"", 0).replies
    assert isinstance(proof, m.Proof)
    assert spy.compared == []
    if secret == SECRET:
        for answer in accepting.receive(proof, b"", 0).replies:
            connecting.receive(answer, b"", 0)
    else:
        with pytest.raises(AuthenticationFailed):
            accepting.receive(proof, b"", 0)
    assert spy.compared[0][0] == proof.proof
    assert len(spy.compared) == (2 if secret == SECRET else 1)  # one of each side
    assert all(len(one) == len(other) == 32 for one, other in spy.compared)


@pytest.mark.parametrize("number", [0, 1], ids=["first", "last"])
def test_an_access_token_is_compared_with_that_of_every_secret(spy: Spy, number: int) -> None:
    secrets = [SECRET, OTHER_SECRET]
    token = access_token.make_access_token(secrets[number], access_token.SCOPE_STATUS, 0)
    accepted = ClusterSecrets(secrets)
    access_token.check_access_token(token.to_text(), access_token.SCOPE_STATUS, accepted, 0)
    assert [one for one, _ in spy.compared] == [token.proof, token.proof]
