"""Logs the requests that change a TaskManager: who, what, and the outcome.

Each request with a method other than GET and HEAD is one line of the logger ``sluice.audit``.
Refused requests are counted like refused connections, because clients without a token can send any
number. :mod:`..process.audit_file` writes the file that they go to if one is configured.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from aiohttp import web

from ....transport.errors import counted, one_line
from .api_routes import ROUTES
from .audit_entry import AUDIT, AuditEntry, current
from .bad_requests import UNIX_PEER

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

MAX_CHANGE_CHARACTERS: Final = 300
"""Characters of a line about what changes; longer texts are cut."""

_READS: Final = frozenset({"GET", "HEAD"})
_CREDENTIALS: Final = struct.Struct("3i")
_FIRST_ERROR: Final = 400
_PARAMETERS: Final = {
    (route.method, route.path): frozenset(each.name for each in route.parameters)
    for route in ROUTES
}

logger = logging.getLogger(AUDIT)
logger.setLevel(logging.INFO)  # whatever log_level is


@web.middleware
async def audit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log a request that changes something, after its answer is made.

    Cancellation: the outcome in the line is "canceled".
    """
    if request.method in _READS:
        return await handler(request)
    entry = AuditEntry()
    token = current.set(entry)
    outcome, code, failed = "canceled", 0, False
    try:
        answer = await handler(request)
        outcome, code = str(answer.status), answer.status
        return answer
    except web.HTTPException as refused:
        outcome, code = f"{refused.status} {refused.reason}", refused.status
        raise
    except Exception as error:
        outcome, failed = f"failed: {type(error).__name__}", True
        raise
    finally:
        current.reset(token)
        level = logging.WARNING if failed or code >= _FIRST_ERROR else logging.INFO
        _log(request, entry, outcome, level, is_refused=code >= _FIRST_ERROR)


def _log(
    request: web.Request, entry: AuditEntry, outcome: str, level: int, *, is_refused: bool
) -> None:
    who, peer = _who(request, entry.token_id)
    extra: dict[str, object] = {"peer": peer}
    if is_refused:
        extra |= counted("requests that change something refused", f"{peer}:")
    logger.log(
        level,
        "%s %s by %s from %s: %s%s",
        one_line(request.method),
        _cut(_asked(request)),
        who,
        peer,
        outcome,
        f": {_cut(entry.change)}" if entry.change else "",
        extra=extra,
    )


def _asked(request: web.Request) -> str:
    """Return the path with the parameters that the route has: others may be a secret."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    known = _PARAMETERS.get((request.method, path), frozenset())
    given = [(name, value) for name, value in request.query.items() if name in known]
    return f"{request.rel_url.raw_path}{'?' if given else ''}{urlencode(given)}"


def _cut(text: str) -> str:
    short = text if len(text) <= MAX_CHANGE_CHARACTERS else f"{text[:MAX_CHANGE_CHARACTERS]}..."
    return one_line(short)


def _who(request: web.Request, token_id: bytes) -> tuple[str, str]:
    """Return who sent a request, and from where.

    An access token is named by the id that revokes it, and only if it was accepted.
    """
    who = f"token {token_id.hex()}" if token_id else "nobody known"
    transport = request.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return who, request.remote or "unknown"
    if hasattr(socket, "SO_PEERCRED") and not token_id:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(found)
        who = f"user {uid}, process {pid}"
    return who, UNIX_PEER
