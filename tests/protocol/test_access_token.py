"""Access tokens, against an HMAC written by hand."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.access_token import (
    EXPIRED,
    NO_TOKEN,
    PREFIX,
    SCOPES,
    WRONG_SCOPE,
    WRONG_TOKEN,
    check_access_token,
    make_access_token,
    parse_access_token,
)
from sluice.protocol.errors import AuthenticationFailed, ErrorCode, NotPermitted
from sluice.protocol.identity import ClusterSecrets, InvalidCredential, SubmitToken
from sluice.protocol.limits import MAX_U64
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET

BOTH = ClusterSecrets([OTHER_SECRET, SECRET])


def by_hand(secret: bytes, scope: str, expires: int) -> str:
    fields = expires.to_bytes(8, "big")
    key = hmac.new(secret, b"sluice access token\0" + scope.encode() + fields, hashlib.sha256)
    packed = base64.urlsafe_b64encode(key.digest() + fields + scope.encode())
    return "sluice-access-1-" + packed.decode().rstrip("=")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("expires", [0, 1, 1_800_000_000, MAX_U64])
@pytest.mark.parametrize("secret", [SECRET, OTHER_SECRET], ids=["second", "first"])
def test_a_token_is_an_hmac_of_any_accepted_secret(scope: str, expires: int, secret: bytes) -> None:
    text = by_hand(secret, scope, expires)
    token = make_access_token(secret, scope, expires)
    assert token.to_text() == text
    assert parse_access_token(f" {text}\n") == token
    check_access_token(text, scope, BOTH, min(expires, 1_000_000_000))


@pytest.mark.parametrize(
    ("held", "needed", "allowed"),
    [
        ("status", "status", True),
        ("status", "admin", False),
        ("admin", "status", True),
        ("admin", "admin", True),
    ],
)
def test_each_scope_covers_its_own_requests(held: str, needed: str, allowed: bool) -> None:
    text = make_access_token(SECRET, held, 0).to_text()
    if allowed:
        check_access_token(text, needed, BOTH, 5)
        return
    with pytest.raises(NotPermitted) as caught:
        check_access_token(text, needed, BOTH, 5)
    assert caught.value.reason == WRONG_SCOPE
    assert "--access admin" in caught.value.remedy


def test_a_token_ends_at_its_expiry() -> None:
    text = make_access_token(SECRET, "status", 1000).to_text()
    check_access_token(text, "status", BOTH, 1000)
    with pytest.raises(AuthenticationFailed) as caught:
        check_access_token(text, "status", BOTH, 1030)
    assert (caught.value.code, caught.value.reason) == (ErrorCode.CREDENTIAL_EXPIRED, EXPIRED)
    assert caught.value.value == "30 s ago, by this TaskManager's clock"


def test_a_revoked_token_is_refused_and_no_other() -> None:
    stolen, kept = (make_access_token(SECRET, "status", expires) for expires in (1000, 1001))
    assert stolen.token_id == hashlib.sha256(stolen.proof).digest()[:16]
    secrets = ClusterSecrets([SECRET], [stolen.token_id])
    with pytest.raises(AuthenticationFailed) as caught:
        check_access_token(stolen.to_text(), "status", secrets, 5)
    assert (caught.value.reason, caught.value.value) == ("revoked", stolen.token_id.hex())
    check_access_token(kept.to_text(), "status", secrets, 5)


def test_no_token_and_a_wrong_one_are_told_apart() -> None:
    with pytest.raises(AuthenticationFailed) as missing:
        check_access_token("", "status", BOTH, 0)
    assert missing.value.code is ErrorCode.AUTHENTICATION_REQUIRED
    assert missing.value.reason == NO_TOKEN


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        PREFIX,
        PREFIX + "????",
        PREFIX + "é",
        by_hand(SECRET, "status", 0)[:40],
        by_hand(bytes(32), "status", 0),
        by_hand(SECRET, "root", 0),
        by_hand(SECRET, "", 0),
        SubmitToken.make(SECRET).to_text(),
    ],
)
def test_every_wrong_token_gets_the_same_answer(text: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        check_access_token(text, "status", BOTH, 0)
    assert type(caught.value) is AuthenticationFailed
    assert caught.value.reason == WRONG_TOKEN
    assert str(caught.value).startswith("The access token is not accepted. Make one with:")


@given(st.integers(0, 32 + 8 + 6 - 1), st.integers(1, 255))
def test_a_token_with_any_changed_byte_is_refused(place: int, change: int) -> None:
    """A later expiry and a wider scope cannot be written into a token."""
    packed = bytearray(base64.urlsafe_b64decode(by_hand(SECRET, "status", 99)[16:] + "=="))
    packed[place] ^= change
    text = PREFIX + base64.urlsafe_b64encode(bytes(packed)).decode().rstrip("=")
    with pytest.raises(AuthenticationFailed) as caught:
        check_access_token(text, "status", BOTH, 5)
    assert caught.value.reason == WRONG_TOKEN


@given(st.text(max_size=200))
def test_any_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        check_access_token(PREFIX + text, "admin", BOTH, 5)
    assert len(text) < 10 or text not in str(caught.value)


@pytest.mark.parametrize(
    ("scope", "expires"), [("root", 0), ("status", -1), ("admin", MAX_U64 + 1)]
)
def test_a_token_that_cannot_be_made_is_refused(scope: str, expires: int) -> None:
    with pytest.raises(InvalidCredential):
        make_access_token(SECRET, scope, expires)
