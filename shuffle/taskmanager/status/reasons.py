"""Why connections and requests are refused or dropped, in the words of status and metrics."""

from __future__ import annotations

from typing import Final

from ....protocol.access_token import EXPIRED, NO_TOKEN, WRONG_SCOPE, WRONG_TOKEN
from ....transport.outcomes import HANDSHAKE_REASONS

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
    "other user",
)
"""Reasons of identity for which an accepted connection is refused."""

REFUSAL_REASONS: Final = (*CONNECTION_REASONS, *HANDSHAKE_REASONS)
"""All reasons for which an accepted connection is refused."""

OTHER_HOST: Final = "other host"
"""The request came from another host."""

NO_HEADER: Final = "no header"
"""The request lacks the header that no form of a web page can send."""

BAD_REQUEST: Final = "bad request"
"""The request is not HTTP."""

HTTP_REASONS: Final = (
    NO_TOKEN,
    WRONG_TOKEN,
    EXPIRED,
    WRONG_SCOPE,
    OTHER_HOST,
    NO_HEADER,
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
