"""Embedded tasks are let in, and named, by the rules of a connection."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import AuthenticationFailed, ErrorCode, ProtocolViolation
from sluice.protocol.identity import (
    SALT_BYTES,
    TOKEN_ID_BYTES,
    ClusterSecrets,
    Credential,
    SubmitToken,
)
from sluice.protocol.limits import MAX_NAME_CHARACTERS
from sluice.shuffle.taskmanager.embedded.embedded_handshake import admit
from sluice.transport.access import Access
from tests.support.raises_code import raises_code

SECRET = bytes(range(32))
SECRETS = ClusterSecrets([SECRET])


def credential(secret: bytes = SECRET, *, salt: int = 1, expires_at_seconds: int = 0) -> Credential:
    token = SubmitToken.make(secret, "tests", expires_at_seconds, bytes(TOKEN_ID_BYTES))
    return token.application(bytes([salt]) * SALT_BYTES).for_tasks()


def test_without_a_secret_everybody_is_let_in_by_its_own_name():
    assert admit(Access(), "app", None) == "app"


def test_a_credential_puts_an_application_into_its_namespace():
    mine, other = credential(), credential(salt=2)
    name = admit(Access(SECRETS), "app", mine)
    assert name == SECRETS.scope("app", mine.claim)
    assert admit(Access(SECRETS), "app", mine) == name
    assert admit(Access(SECRETS), "app", other) != name


def test_whoever_has_no_credential_is_refused_where_there_is_a_secret():
    with raises_code(ErrorCode.AUTHENTICATION_REQUIRED, kind=AuthenticationFailed):
        admit(Access(SECRETS), "app", None)
    assert admit(Access(SECRETS, allow_anonymous=True), "app", None) == "app"


@pytest.mark.parametrize(
    ("access", "claimed"),
    [
        pytest.param(Access(SECRETS), credential(bytes(32)), id="another secret"),
        pytest.param(Access(), credential(), id="no secret to check it with"),
        pytest.param(Access(SECRETS), credential(expires_at_seconds=1), id="expired"),
        pytest.param(Access(SECRETS), SECRETS.peer("host:1"), id="a peer's"),
    ],
)
def test_a_credential_that_proves_nothing_is_refused(access, claimed):
    with pytest.raises(AuthenticationFailed):
        admit(access, "app", claimed)


@pytest.mark.parametrize("name", ["", "a" * (MAX_NAME_CHARACTERS + 1), "app@" + "a" * 24])
def test_names_are_checked_as_on_a_connection(name):
    with pytest.raises(ProtocolViolation):
        admit(Access(), name, None)
