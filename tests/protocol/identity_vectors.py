"""Makes ``tests/vectors/identity.json``: keys, texts and proofs that Python and the JVM agree on.

The file is committed and is the authority. Regenerate it, after a change of the format was decided,
from the root of the repository with

::

    python -m tests.protocol.identity_vectors
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake, Admission
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import (
    ClusterSecrets,
    Credential,
    SubmitToken,
    secret_id,
    secret_to_text,
)
from sluice.protocol.limits import PREFIX_BYTES
from sluice.protocol.schema import encode

VECTORS = Path(__file__).parent.parent / "vectors" / "identity.json"

SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(100, 132))
TOKEN_ID = bytes(range(200, 216))
SALT = bytes(range(50, 66))
CONNECTOR_NONCE = hashlib.sha256(b"the side that connects").digest()
ACCEPTOR_NONCE = hashlib.sha256(b"the side that accepts").digest()
BINDING = hashlib.sha256(b"a certificate").digest()

ACK = m.HelloAck(1, "tm-a", 32768, m.FLOW_CREDIT, 15, "host-a.example", 7337, "i-a", 0, 1)
CLIENT = m.Hello("sluice", 1, 1, m.ROLE_CONSUMER, "app-20250101-0001", b"", 0, 0, 13, "task 7.0")
PEER = m.Hello("sluice", 1, 1, m.ROLE_PEER, "", b"", 32768, 0, 2, "tm-b")

TOKENS = (
    ("of the owner of the secret", SubmitToken.make(SECRET)),
    ("with a subject and an expiry", SubmitToken.make(SECRET, "alice", 1_800_000_000, TOKEN_ID)),
    ("with a subject beyond ASCII", SubmitToken.make(OTHER_SECRET, "Zoë 🦀", 2**63, TOKEN_ID)),
)


def admission(*secrets: bytes, anonymous: bool = False, known: bool = False) -> Admission:
    """Return rules that know these secrets."""
    return Admission(ClusterSecrets(secrets) if secrets else None, anonymous, lambda name: known)


def _token(name: str, token: SubmitToken) -> dict[str, Any]:
    driver = token.application(SALT)
    salt = token.salt_of("wordcount")
    return {
        "name": name,
        "secret_hex": (SECRET if token.secret_id == secret_id(SECRET) else OTHER_SECRET).hex(),
        "subject": token.subject,
        "expires_at_seconds": str(token.expires_at_seconds),  # beyond what JSON numbers can hold
        "token_id_hex": token.token_id.hex(),
        "secret_id_hex": token.secret_id.hex(),
        "text": token.to_text(),
        "salt_hex": SALT.hex(),
        "driver_text": driver.to_text(),
        "task_text": driver.for_tasks().to_text(),
        "driver_claim_hex": driver.claim.pack().hex(),
        "task_claim_hex": driver.for_tasks().claim.pack().hex(),
        "application": "wordcount",
        "salt_of_application_hex": salt.hex(),
    }


def _handshakes() -> Iterator[dict[str, Any]]:
    driver = SubmitToken.make(SECRET, "alice", 0, TOKEN_ID).application(SALT)
    addressed = driver.at("host-a.example:7337").at("10.0.0.1:7337")
    peer = ClusterSecrets([SECRET]).peer("host-a.example:7337")
    for name, hello, credential, binding in (
        ("consumer", CLIENT, driver.for_tasks(), b""),
        ("producer over TLS", replace(CLIENT, role=m.ROLE_PRODUCER), driver.for_tasks(), BINDING),
        ("driver", replace(CLIENT, role=m.ROLE_DRIVER), driver, b""),
        ("driver with an address", replace(CLIENT, role=m.ROLE_DRIVER), addressed, b""),
        ("peer", PEER, peer, BINDING),
        ("copier", replace(CLIENT, role=m.ROLE_COPIER), peer, b""),
    ):
        yield _handshake(name, hello, credential, binding)


def _handshake(name: str, hello: m.Hello, credential: Credential, binding: bytes) -> dict[str, Any]:
    connects = ConnectingHandshake(hello, credential, CONNECTOR_NONCE)
    accepts = AcceptingHandshake(ACK, admission(SECRET), ACCEPTOR_NONCE)
    (challenge,) = accepts.receive(connects.hello, binding, 0).replies
    (proof,) = connects.receive(challenge, binding, 0).replies
    answer, ack = accepts.receive(proof, binding, 0).replies
    connects.receive(answer, binding, 0)
    connects.receive(ack, binding, 0)
    return {
        "name": name,
        "key_hex": credential.key.hex(),
        "claim_hex": credential.claim.pack().hex(),
        "nonce_hex": CONNECTOR_NONCE.hex(),
        "binding_hex": binding.hex(),
        "application_in_namespace": accepts.application_id,
        **{
            f"{kind}_control_hex": encode(message)[PREFIX_BYTES:].hex()
            for kind, message in (
                ("hello", connects.hello),
                ("challenge", challenge),
                ("proof", proof),
                ("answer", answer),
                ("ack", ack),
            )
        },
    }


def build() -> dict[str, list[dict[str, Any]]]:
    """Return what the file should hold."""
    return {
        "secrets": [
            {
                "text": secret_to_text(secret),
                "secret_hex": secret.hex(),
                "secret_id_hex": secret_id(secret).hex(),
            }
            for secret in (SECRET, OTHER_SECRET)
        ],
        "tokens": [_token(name, token) for name, token in TOKENS],
        "handshakes": list(_handshakes()),
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(build(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
