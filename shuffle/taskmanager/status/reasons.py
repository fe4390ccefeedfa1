"""Why connections and requests are refused or dropped, in the words of status and metrics."""

from __future__ import annotations

from typing import Final

from ....protocol.access_token import EXPIRED, NO_TOKEN, REVOKED, WRONG_SCOPE, WRONG_TOKEN
from ....transport.outcomes import HANDSHAKE_REASONS

OTHER_USER: Final = "other user"
"""The process at the other end of a Unix socket has another user and group."""

CONNECTION_REASONS: Final = (
    "no credential",
    "reserved name",
    "no cluster secret here",
    "wrong role",
    "wrong proof",
    "unknown secret",
    "wrong address",
    "long name",
    "expired",
    REVOKED,
    OTHER_USER,
)
"""Reasons of identity for which an accepted connection is refused."""

REFUSAL_REASONS: Final = (*CONNECTION_REASONS, *HANDSHAKE_REASONS)
"""All reasons for which an accepted connection is refused."""

OTHER_NAME: Final = "other name"
"""The request names another host than this one, as that of a web page may."""

NOT_THE_SOCKET: Final = "not the socket"
"""The request changes something and did not come through the Unix socket."""

BAD_REQUEST: Final = "bad request"
"""The request is not HTTP."""

HTTP_REASONS: Final = (
    NO_TOKEN,
    WRONG_TOKEN,
    EXPIRED,
    REVOKED,
    WRONG_SCOPE,
    OTHER_NAME,
    NOT_THE_SOCKET,
    OTHER_USER,
    BAD_REQUEST,
)
"""Reasons for which a request to the HTTP port is refused."""

REQUEST_LATE: Final = "request"
IDLE: Final = "idle"
ANSWER_UNREAD: Final = "answer"
MADE_ROOM: Final = "made room"
NO_ROOM: Final = "no room"

DROP_REASONS: Final = (REQUEST_LATE, IDLE, ANSWER_UNREAD, MADE_ROOM, NO_ROOM)
"""Why the HTTP port closed a connection that its client had not closed: its request was late; no
next one came; the answer was not read; it made room for a new one; it was new, and there was no
room.
"""
