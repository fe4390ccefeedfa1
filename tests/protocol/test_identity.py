"""Keys, their derivation against hand-written HMACs, and their texts."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import MalformedMessage
from sluice.protocol.identity import (
    KIND_DRIVER,
    KIND_TASK,
    Claim,
    ClusterSecrets,
    Credential,
    InvalidCredential,
    SubmitToken,
    is_scoped,
    parse_credential,
    parse_secret,
    parse_token,
    secret_id,
    secret_to_text,
    tenant_of,
)
from sluice.protocol.limits import MAX_SUBJECT_BYTES, MAX_U64
from tests.protocol.identity_vectors import OTHER_SECRET, SALT, SECRET, TOKEN_ID, VECTORS

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text(encoding="utf-8"))
TOKEN = SubmitToken.make(SECRET, "alice", 1000, TOKEN_ID)


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


@pytest.mark.parametrize("vector", GOLDEN["tokens"], ids=lambda vector: vector["name"])
def test_keys_follow_from_the_secret(vector: dict[str, Any]) -> None:
    """Written from docs/reference/wire.md."""
    secret = bytes.fromhex(vector["secret_hex"])
    fields = int(vector["expires_at_seconds"]).to_bytes(8, "big")
    fields += bytes.fromhex(vector["token_id_hex"]) + vector["subject"].encode()
    token_key = _hmac(secret, b"sluice submit token\0" + fields)
    driver_key = _hmac(token_key, b"sluice driver\0" + bytes.fromhex(vector["salt_hex"]))
    task_key = _hmac(driver_key, b"sluice task")
    assert parse_token(vector["text"]).key == token_key
    driver = parse_credential(vector["driver_text"], "any")
    task = parse_credential(vector["task_text"], "any")
    assert (driver.key, driver.claim.kind) == (driver_key, KIND_DRIVER)
    assert (task.key, task.claim.kind) == (task_key, KIND_TASK)
    assert driver.for_tasks() == task == task.for_tasks()
    secrets = ClusterSecrets([OTHER_SECRET, SECRET])
    assert secrets.key_of(driver.claim) == (driver_key, True)
    assert secrets.key_of(task.claim) == (task_key, True)
    owner = vector["subject"].encode() or bytes.fromhex(vector["token_id_hex"])
    tag = hashlib.sha256(b"sluice tenant\0" + owner).digest() if any(owner) else bytes(5)
    letters = tag[:5] + _hmac(driver_key, b"sluice namespace")[:10]
    namespace = base64.b32encode(letters).decode().lower()
    assert (
        secrets.scope("etl", task.claim) == f"etl@{namespace}" == secrets.scope("etl", driver.claim)
    )


def test_the_id_of_a_secret_does_not_tell_it() -> None:
    assert secret_id(SECRET) == _hmac(SECRET, b"sluice secret id")[:8]


def test_the_key_of_a_peer_is_for_every_address_and_the_claim_for_one() -> None:
    secrets = ClusterSecrets([SECRET, OTHER_SECRET])
    one, two = secrets.peer("a:1"), secrets.peer("b:2")
    assert one.key == two.key == _hmac(SECRET, b"sluice peer")
    assert (one.claim.subject, two.claim.subject) == ("a:1", "b:2")


def test_an_unknown_secret_has_a_key_that_nobody_has() -> None:
    claim = SubmitToken.make(OTHER_SECRET).application(SALT).claim
    key, known = ClusterSecrets([SECRET]).key_of(claim)
    assert not known
    assert key != SubmitToken.make(OTHER_SECRET).application(SALT).key


@pytest.mark.parametrize("text", [TOKEN.to_text(), secret_to_text(SECRET)])
def test_every_process_of_an_application_makes_the_same_credential(text: str) -> None:
    one, again = parse_credential(text, "etl"), parse_credential(f" {text}\n", "etl")
    assert one == again
    assert parse_credential(text, "other").key != one.key


@given(
    secret=st.binary(min_size=32, max_size=32),
    subject=st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100
    ),
    expires=st.integers(0, MAX_U64),
    token_id=st.binary(min_size=16, max_size=16),
    salt=st.binary(min_size=16, max_size=16),
)
def test_texts_and_claims_come_back(
    secret: bytes, subject: str, expires: int, token_id: bytes, salt: bytes
) -> None:
    token = SubmitToken.make(secret, subject, expires, token_id)
    assert parse_secret(secret_to_text(secret)) == secret
    assert parse_token(token.to_text()) == token
    driver = token.application(salt)
    for credential in (driver, driver.for_tasks()):
        assert parse_credential(credential.to_text(), "any") == credential
        assert Claim.unpack(credential.claim.pack()) == credential.claim


@given(st.binary(max_size=600))
def test_any_bytes_are_a_claim_or_malformed(packed: bytes) -> None:
    try:
        claim = Claim.unpack(packed)
    except MalformedMessage:
        return
    assert claim.pack() == packed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "sluice-token-1-",
        "sluice-token-1-????",
        "sluice-token-2-" + TOKEN.to_text().removeprefix("sluice-token-1-"),
        TOKEN.to_text()[:60],
        "sluice-secret-1-AAAA",
        TOKEN.application(SALT).to_text()[:60],
        "sluice-task-1-" + TOKEN.application(SALT).to_text().removeprefix("sluice-driver-1-"),
    ],
)
def test_a_wrong_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidCredential) as caught:
        parse_credential(text, "etl")
    assert caught.value.remedy
    body = text.rpartition("-")[2]
    assert not body or body not in str(caught.value)


def test_a_key_is_not_in_the_form_that_logs_show() -> None:
    for each in (TOKEN, TOKEN.application(SALT)):
        assert repr(each.key) not in repr(each)
        assert each.key.hex() not in repr(each)
        assert "key" not in repr(each)


def test_only_drivers_and_tasks_have_texts() -> None:
    peer = ClusterSecrets([SECRET]).peer("a:1")
    with pytest.raises(InvalidCredential):
        peer.to_text()
    with pytest.raises(InvalidCredential):
        peer.for_tasks()
    assert isinstance(TOKEN.application(SALT).for_tasks(), Credential)


def test_limits_of_a_token() -> None:
    SubmitToken.make(SECRET, "é" * (MAX_SUBJECT_BYTES // 2))
    with pytest.raises(InvalidCredential):
        SubmitToken.make(SECRET, "é" * (MAX_SUBJECT_BYTES // 2) + "e")
    for expiry in (-1, MAX_U64 + 1):
        with pytest.raises(InvalidCredential):
            SubmitToken.make(SECRET, "", expiry)


@pytest.mark.parametrize(
    ("name", "scoped"),
    [
        ("etl@abcdefghijklmnopqr234567", True),
        ("a\nb@abcdefghijklmnopqr234567", True),
        ("@abcdefghijklmnopqr234567", True),
        ("etl@abcdefghijklmnopqr23456", False),
        ("etl@abcdefghijklmnopqr2345671", False),
        ("etl@ABCDEFGHIJKLMNOPQR234567", False),
        ("user@example.com", False),
        ("etl", False),
    ],
)
def test_names_of_a_namespace_have_a_form_of_their_own(name: str, scoped: bool) -> None:
    assert is_scoped(name) is scoped


def test_a_subject_is_one_tenant_under_all_its_tokens_and_secrets() -> None:
    secrets = ClusterSecrets([SECRET, OTHER_SECRET])

    def tenant(token: SubmitToken, name: str = "etl") -> str:
        return tenant_of(secrets.scope(name, token.application(token.salt_of(name)).claim))

    alice = SubmitToken.make(SECRET, "alice", 0, bytes(range(16)))
    again = SubmitToken.make(OTHER_SECRET, "alice", 1000, bytes(range(1, 17)))
    assert tenant(alice) == tenant(alice, "other") == tenant(again)
    assert tenant(alice) != tenant(SubmitToken.make(SECRET, "bob", 0, bytes(range(16))))
    assert is_scoped(tenant(alice))  # so that no application can take the name of a tenant
    assert tenant_of(tenant(alice)) == tenant(alice)


def test_a_token_without_a_subject_is_a_tenant_of_its_own() -> None:
    secrets = ClusterSecrets([SECRET])
    first, second = (SubmitToken.make(SECRET, "", 0, bytes([number] * 16)) for number in (1, 2))
    found = [
        tenant_of(secrets.scope(name, token.application(token.salt_of(name)).claim))
        for token, name in ((first, "a"), (first, "b"), (second, "a"))
    ]
    assert found[0] == found[1] != found[2]


def test_applications_of_the_secrets_owner_and_without_credential_are_tenants() -> None:
    owner = SubmitToken.make(SECRET)
    scoped = ClusterSecrets([SECRET]).scope("etl", owner.application(owner.salt_of("etl")).claim)
    assert tenant_of(scoped) == scoped
    assert tenant_of("etl") == "etl"
    assert tenant_of("@short") == "@short"
