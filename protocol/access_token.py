"""Access tokens, which authorize requests to the HTTP port of a TaskManager.

A token is an HMAC of a cluster secret over a *scope* and an expiry::

    secret ──▶ access token (scope, expiry)

``status`` reads pages that name applications; ``admin`` also changes the TaskManager. Unlike the
keys of :mod:`sluice.protocol.identity`, the token itself is sent with each request, because HTTP
clients support nothing else. So it has one scope and a short life, and no key is derived from it.

This module does arithmetic only: the caller supplies the time.
"""

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from .errors import AuthenticationFailed, ErrorCode, NotPermitted
from .identity import (
    SECRET_BYTES,
    TOKEN_ID_BYTES,
    ClusterSecrets,
    InvalidCredential,
    decode_text,
    encode_text,
)
from .limits import MAX_U64

SCOPE_STATUS: Final = "status"
SCOPE_ADMIN: Final = "admin"

SCOPES: Final = {
    SCOPE_STATUS: frozenset({SCOPE_STATUS}),
    SCOPE_ADMIN: frozenset({SCOPE_STATUS, SCOPE_ADMIN}),
}
"""The scopes that a token of each scope covers."""

PREFIX: Final = "sluice-access-1-"

NO_TOKEN: Final = "no token"  # noqa: S105 - a reason
WRONG_TOKEN: Final = "wrong token"  # noqa: S105
EXPIRED: Final = "expired"
REVOKED: Final = "revoked"
WRONG_SCOPE: Final = "wrong scope"

_EXPIRY = struct.Struct(">Q")
_KIND: Final = "an access token"


class AccessToken(NamedTuple):
    """The fields of a token; :func:`check_access_token` proves them."""

    scope: str
    expires_at_seconds: int
    """When it expires, in seconds since 1970; 0 means never."""
    proof: bytes

    @property
    def token_id(self) -> bytes:
        """The id by which it is revoked."""
        return hashlib.sha256(self.proof).digest()[:TOKEN_ID_BYTES]

    def to_text(self) -> str:
        """Return the text that :func:`parse_access_token` reads."""
        fields = self.proof + _EXPIRY.pack(self.expires_at_seconds) + self.scope.encode()
        return PREFIX + encode_text(fields)


def make_access_token(secret: bytes, scope: str, expires_at_seconds: int) -> AccessToken:
    """Make a token of a cluster secret.

    Args:
        secret: The cluster secret.
        scope: ``status`` or ``admin``.
        expires_at_seconds: When it expires, in seconds since 1970; 0 means never.

    Raises:
        InvalidCredential: There is no such scope, or the time is out of range.
    """
    if scope not in SCOPES:
        raise InvalidCredential("There is no such scope", value=scope, limit=", ".join(SCOPES))
    if not 0 <= expires_at_seconds <= MAX_U64:
        raise InvalidCredential("The expiry of a token is out of range")
    return AccessToken(scope, expires_at_seconds, _proof(secret, scope, expires_at_seconds))


def parse_access_token(text: str) -> AccessToken:
    """Read the text of a token, without proving it.

    Raises:
        InvalidCredential: It is not one. The message does not repeat it.
    """
    packed = decode_text(text.strip(), PREFIX, _KIND)
    try:
        (expires_at_seconds,) = _EXPIRY.unpack_from(packed, SECRET_BYTES)
        scope = packed[SECRET_BYTES + _EXPIRY.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidCredential(
            f"The text of {_KIND} is damaged", remedy="Copy the whole text"
        ) from error
    return AccessToken(scope, expires_at_seconds, packed[:SECRET_BYTES])


def check_access_token(text: str, needed: str, secrets: ClusterSecrets, now_seconds: float) -> None:
    """Check that a token allows a scope.

    Args:
        text: The token; empty if there is none.
        needed: The scope that the request needs.
        secrets: Tokens of all of them are accepted.
        now_seconds: The time, in seconds since 1970.

    Raises:
        AUTHENTICATION_REQUIRED: There is no token.
        AuthenticationFailed: It is damaged or of another secret, and the error does not say which;
            or it is revoked.
        CREDENTIAL_EXPIRED: It has expired.
        NotPermitted: It does not cover the scope.
    """
    remedy = f"Make one with: sluice token create --access {needed}"
    if not text:
        raise AuthenticationFailed(
            "An access token is required",
            code=ErrorCode.AUTHENTICATION_REQUIRED,
            reason=NO_TOKEN,
            limit=f"scope {needed}",
            remedy=remedy,
        )
    try:
        token = parse_access_token(text)
    except InvalidCredential:
        token = None
    if token is None or not _is_proven(token, secrets):
        raise AuthenticationFailed(
            "The access token is not accepted", reason=WRONG_TOKEN, remedy=remedy
        )
    if token.token_id in secrets.revoked:
        raise AuthenticationFailed(
            "The access token is revoked",
            reason=REVOKED,
            value=token.token_id.hex(),
            remedy=remedy,
        )
    expires_at = token.expires_at_seconds
    if expires_at and now_seconds > expires_at:
        raise AuthenticationFailed(
            "The access token has expired",
            code=ErrorCode.CREDENTIAL_EXPIRED,
            reason=EXPIRED,
            value=f"{int(now_seconds) - expires_at} s ago, by this TaskManager's clock",
            remedy=f"{remedy}, or set the clocks right",
        )
    if needed not in SCOPES[token.scope]:
        raise NotPermitted(
            "The access token does not allow this",
            reason=WRONG_SCOPE,
            value=f"scope {token.scope}",
            limit=f"scope {needed}",
            remedy=remedy,
        )


def _is_proven(token: AccessToken, secrets: ClusterSecrets) -> bool:
    """Compare with the proofs of all secrets, in constant time."""
    proven = False
    for secret in secrets.accepted:
        expected = _proof(secret, token.scope, token.expires_at_seconds)
        proven |= hmac.compare_digest(token.proof, expected)
    return proven and token.scope in SCOPES


def _proof(secret: bytes, scope: str, expires_at_seconds: int) -> bytes:
    said = b"sluice access token\0" + scope.encode() + _EXPIRY.pack(expires_at_seconds)
    return hmac.digest(secret, said, hashlib.sha256)
